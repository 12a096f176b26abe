"""Two regions in one workspace: shared databases, lake and instance, never meeting."""

from __future__ import annotations

import gc
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from scene_pipeline.backfill.dagster_internals import load_job, open_workspace
from scene_pipeline.backfill.key_states import Site
from scene_pipeline.backfill.overview import read_overview
from scene_pipeline.backfill.tags import REGION_TAG
from scene_pipeline.defs.home import open_instance
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.errors import SettingsError
from scene_pipeline.ingest.retention import read_retention
from scene_pipeline.settings import read_settings
from scene_pipeline_tests.services.command import CONFIG, Command

REGIONS = ("north", "south")
MODULE = """\
from pathlib import Path

from scene_pipeline.defs.build import load_region

defs = load_region(Path(__file__).with_suffix(".toml"))
"""
RETENTION = "\n[retention]\nraw_days = 1\ntable_months = 1\n"


def connect(pipeline: Pipeline) -> sa.Connection:
    """A connection that ends with its block."""
    return sa.create_engine(pipeline.state.url, poolclass=sa.NullPool).connect()


def write_regions(folder: Path, url: str) -> Path:
    """A module and a settings file a region, and the workspace that loads both.

    Both have the same area: their tiles and keys have the same names.
    """
    shared = f'lake = "{folder}/lake"\nstate_url = "{url}"\nwarehouse_url = "{url}"\n'
    shared += f'dagster_home = "{folder}/home"\n'
    entries = ["load_from:"]
    for number, name in enumerate(REGIONS):
        config = CONFIG.replace('"fiji"', f'"{name}"').replace('"sim"', f'"sim-{name}"')
        if number:  # a policy and a start of its own
            config = (
                config.replace("2024-06-01", "2024-06-02") + '[policies]\ndefault = "single_run"\n'
            )
        (folder / f"{name}.toml").write_text(shared + config)
        (folder / f"{name}.py").write_text(MODULE)
        entries.append(f"  - python_file: {{relative_path: {name}.py, location_name: {name}}}")
    workspace = folder / "workspace.yaml"
    workspace.write_text("\n".join(entries))
    return workspace


def test_a_region_is_read_from_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_regions(tmp_path, "sqlite:///x.db")
    monkeypatch.setenv("SCENE_PIPELINE_CONFIG", str(tmp_path / "south.toml"))
    monkeypatch.setenv("SCENE_PIPELINE_ZOOM", "6")
    north = read_settings(config=tmp_path / "north.toml")
    assert (north.region, north.zoom, north.policies.default) == ("north", 6, "batched")
    assert read_settings().region == "south"
    (tmp_path / "north.toml").write_text("region = 'a b'")
    with pytest.raises(SettingsError, match="region: ") as caught:
        read_settings(config=tmp_path / "north.toml")
    assert "north.toml" in caught.value.where


@pytest.mark.postgres
# A command's connections end with its process, which here goes on.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
def test_regions_share_everything_and_never_meet(
    command: Command, tmp_path: Path, postgis_url: str
) -> None:
    workspace = write_regions(tmp_path, postgis_url)
    config = {name: str(tmp_path / f"{name}.toml") for name in REGIONS}
    assert command("migrate", CONFIG=config["north"]).code == 0
    for name in REGIONS:
        assert command("ingest", "run", CONFIG=config[name]).code == 0
        done = command("backfill", "launch", "--from", "2024-06-02", "--to", "2024-06-02",
                       "--local", CONFIG=config[name])  # fmt: skip
        assert done.code == 0, done.out + done.err

    pipelines = {n: Pipeline(read_settings(config=tmp_path / f"{n}.toml")) for n in REGIONS}
    keys = {
        name: list(each.definition.iter_window(each.definition.end, each.definition.end))
        for name, each in pipelines.items()
    }
    assert keys["north"] == keys["south"], "the same names"
    rows = {}
    with connect(pipelines["north"]) as connection:
        for table in ("items", "raw_versions", "plans", "segments", "streams", "frontiers"):
            query = sa.text(f"SELECT region, count(*) FROM {table} GROUP BY region")
            rows[table] = dict(connection.execute(query).tuples().all())
        query = sa.text("SELECT region, count(*) FROM scenes.scene_footprints GROUP BY region")
        rows["footprints"] = dict(connection.execute(query).tuples().all())
    assert all(set(each) == set(REGIONS) for each in rows.values()), rows
    assert rows["footprints"]["north"] == rows["footprints"]["south"] > 0

    with open_instance(pipelines["north"].settings) as instance:
        for name, pipeline in pipelines.items():
            site = Site(instance, pipeline.state, pipeline.definition)
            overview = read_overview(site, now=datetime.now(UTC))
            seen = {row["backfill"] for row in overview}
            assert len(seen) == 2, "its own two waves, not the other region's"
            tags = {run.tags[REGION_TAG] for run in instance.get_runs()
                    if run.tags["dagster/backfill"] in seen}  # fmt: skip
            assert tags == {name}
        with open_workspace(instance, workspace_file=str(workspace), module="") as opened:
            found = {
                name: load_job(instance, opened, "scenes_batched_job", region=name).place[0]
                for name in REGIONS
            }
        assert found == {name: name for name in REGIONS}

    (tmp_path / "north.toml").write_text(Path(config["north"]).read_text() + RETENTION)
    assert command("expire", CONFIG=config["north"]).code == 0
    assert read_retention(pipelines["south"].state, "south") == (None, None)
    with connect(pipelines["south"]) as connection:
        query = sa.text("SELECT count(*) FROM scenes.scene_footprints WHERE region = 'south'")
        assert connection.execute(query).scalar_one() == rows["footprints"]["south"]
    for pipeline in pipelines.values():
        pipeline.state.dispose()
    gc.collect()
