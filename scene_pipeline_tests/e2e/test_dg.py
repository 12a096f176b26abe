"""Dagster's own ``dg`` in the checkout, and new missions that are nothing but settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyogrio
import pytest

from scene_pipeline.ingest.runner import run_ingest
from scene_pipeline.settings import read_settings
from scene_pipeline_tests.services.command import CONFIG, Command
from scene_pipeline_tests.services.http_region import make_item
from scene_pipeline_tests.services.http_server import serve
from scene_pipeline_tests.services.memory_stac import MemoryStac

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dg")
    places = f'lake = "{folder}/lake"\nstate_url = "sqlite:///{folder}/state.db"\n'
    (folder / "scene_pipeline.toml").write_text(places + CONFIG)
    return folder


def dg(folder: Path, *arguments: str) -> str:
    """Run ``dg`` in the project, on data in ``folder``."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "dg"), *arguments],
        cwd=PROJECT,
        env={
            **os.environ,
            "SCENE_PIPELINE_CONFIG": str(folder / "scene_pipeline.toml"),
            "DAGSTER_HOME": str(folder),
            "VIRTUAL_ENV": str(Path(sys.executable).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_dg_finds_no_fault_in_the_definitions(folder: Path) -> None:
    assert "All definitions loaded successfully" in dg(folder, "check", "defs")


def test_dg_lists_what_the_project_defines(folder: Path) -> None:
    listed = json.loads(dg(folder, "list", "defs", "--json"))
    assets = {asset["asset_key"] for asset in listed["assets"]}
    assert {"fiji/raw_scenes", "fiji/scene_footprints", "fiji/footprint_table"} <= assets
    assert {"scenes_batched_job", "ingest_job"} <= {job["name"] for job in listed["jobs"]}
    assert [sensor["name"] for sensor in listed["sensors"]] == ["scenes_sensor"]


def test_dg_launches_a_partition_of_a_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCENE_PIPELINE_CONFIG", str(folder / "scene_pipeline.toml"))
    run_ingest(read_settings())
    dg(folder, "launch", "--job", "scenes_per_partition_job", "--partition", "2024-06-01|7-126-70")
    (written,) = (folder / "lake/fiji/scene_footprints").rglob("*.parquet")
    assert written.parts[-2:] == ("date=2024-06-01", "tile=7-126-70.parquet")


MISSIONS = """\
region = "coast"
start_date = 2024-06-01
end_date = 2024-06-03
area = [10.0, 1.0, 11.0, 2.0]
zoom = 5

[[streams]]                                  # a Collection of any STAC API
url = "{url}"
collection = "radar"
finality = {{ rule = "lag", hours = 24 }}
requests_per_s = 500

[[streams]]                                  # a provider that sends files
path = "{folder}/delivery.ndjson"
collection = "optical"
finality = {{ rule = "lag", hours = 240 }}
on_unusable = "hold"

[policies]
default = "single_run"
"""


def test_a_new_collection_and_a_new_provider_are_lines_of_settings(
    command: Command, tmp_path: Path
) -> None:
    def item(collection: str, day: int) -> dict[str, object]:
        made = make_item(f"{collection}-{day}", f"2024-06-0{day}T10:00:00Z")
        return {**made, "collection": collection}

    api = MemoryStac([item("radar", 1), item("radar", 2), item("another", 1)])
    delivery = [item("optical", 1), item("optical", 2)]
    (tmp_path / "delivery.ndjson").write_text("\n".join(map(json.dumps, delivery)))
    with serve(api.respond) as server:
        api.url = server.url
        (tmp_path / "scene_pipeline.toml").write_text(
            MISSIONS.format(url=server.url, folder=tmp_path)
        )
        frontier = command("ingest", "run", "--json").document["frontier"]
    assert frontier["last_covered_day"] == "2024-06-02"
    assert {part["stream"]: part["finality"] for part in frontier["vector"]} == {
        "archive-optical": "lag 240 h",
        "stac-radar": "lag 24 h",
    }
    window = ("--from", "2024-06-01", "--to", "2024-06-02")
    assert command("backfill", "launch", *window, "--local", "--json").code == 0
    rows = pyogrio.read_dataframe(
        tmp_path / ".scene_pipeline/scenes.gpkg", layer="scene_footprints"
    )
    assert set(rows["item_id"]) == {"radar-1", "radar-2", "optical-1", "optical-2"}
