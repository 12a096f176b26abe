"""The backfill and partitions commands on a region that was really built, one file spoilt."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from scene_pipeline.cli.main import main
from scene_pipeline.settings import load_settings
from scene_pipeline_tests.services.built_region import START, BuiltRegion, build_region
from scene_pipeline_tests.services.command import Command, Outcome

DAYS = 2
LAST = START + timedelta(days=DAYS - 1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltRegion:
    """The table's partition of one key has failed, because its file is not readable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
        return build_region(tmp_path_factory.mktemp("commands"), days=DAYS, damage=True)


@pytest.fixture
def run(
    built: BuiltRegion, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    monkeypatch.setenv("SCENE_PIPELINE_CONFIG", str(built.config))
    load_settings.cache_clear()

    def command(*arguments: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        printed = capsys.readouterr()
        code = left.value.code
        assert isinstance(code, int)
        return Outcome(code, printed.out, printed.err)

    yield command
    load_settings.cache_clear()


def spoilt(built: BuiltRegion) -> str:
    assert built.damaged is not None
    return str(built.damaged)


def test_the_strip_shows_a_cell_a_key_and_a_line_a_tile(run: Command, built: BuiltRegion) -> None:
    answer = run("partitions", "status", "--asset", "footprint_table")
    assert answer.code == 1, "a failed key is a finding"
    assert "1 failed" in answer.out
    lines = answer.out.splitlines()
    tiles = built.pipeline.definition.tiles
    cells = {line.split()[0]: line.split()[1] for line in lines if line.startswith(tiles)}
    assert set(cells) == set(tiles)
    assert all(len(marks) == DAYS for marks in cells.values())
    assert built.damaged is not None
    assert cells[built.damaged.tile][(built.damaged.day - START).days] == "x"
    assert run("partitions", "status", "--asset", "scene_footprints").code == 0
    counts = run("partitions", "status", "--json").document["assets"]
    assert [each["asset"] for each in counts] == ["scene_footprints", "footprint_table"]
    assert counts[1]["keys"][spoilt(built)] == "failed"
    assert sum(counts[0]["counts"].values()) == len(tiles) * DAYS


def test_a_plan_counts_states_and_runs_and_starts_nothing(run: Command, built: BuiltRegion) -> None:
    text = run("backfill", "plan")
    assert text.code == 0
    assert "to run: 0 keys" in text.out
    window = ("--from", str(START), "--to", str(LAST))
    answer = run("backfill", "plan", *window, "--states", "all", "--json")
    footprints, table = answer.document["plans"]
    keys = len(built.pipeline.definition.tiles) * DAYS
    assert footprints["keys"] == table["keys"] == keys
    assert footprints["runs"] == {"per_partition": keys, "batched": 1, "single_run": 1}
    assert footprints["recommended"]["policy"] in {"batched", "per_partition"}
    assert footprints["estimated_s"] > 0
    assert footprints["rectangles"][0]["from"].startswith(str(START))
    limited = run("backfill", "plan", *window, "--states", "all", "--limit", "5", "--json")
    assert [len(plan["trimmed"]) for plan in limited.document["plans"]] == [keys - 5] * 2
    failed = run("backfill", "plan", "--states", "failed", "--json").document["plans"]
    assert [plan["keys"] for plan in failed] == [0, 1]


def test_the_diagnosis_names_key_cause_error_and_what_to_do(
    run: Command, built: BuiltRegion
) -> None:
    rows = run("backfill", "status", "--json").document["backfills"]
    (failed,) = [row for row in rows if row["failed"]]
    assert failed["asset"] == "footprint_table"
    answer = run("backfill", "diagnose", failed["backfill"])
    assert answer.code == 1
    for part in (
        f"failed: {spoilt(built)}",
        "causes: 1 data",
        "error     LakeFileError",
        f"backfill launch --asset footprint_table --keys '{spoilt(built)}' --states all --local",
        f"scene-pipeline backfill retry {failed['backfill']}",
    ):
        assert part in answer.out
    (account,) = run("backfill", "diagnose", failed["backfill"], "--json").document["accounts"]
    assert account["requested"] == account["done"] + 1
    assert account["findings"][0]["upstream_version"] >= 0


def test_a_window_is_diagnosed_with_rejected_keys_apart(run: Command, built: BuiltRegion) -> None:
    """One day too far at the end, after an edit: not failed, and not cut off in silence."""
    after = LAST + timedelta(days=1)
    answer = run(
        "backfill", "diagnose", "--asset", "scene_footprints", "--from", str(START), "--to",
        str(after), "--json",
    )  # fmt: skip
    assert answer.code == 1
    (account,) = answer.document["accounts"]
    tiles = built.pipeline.definition.tiles
    assert account["rejected"] == {f"{after}|{tile}": "after end" for tile in tiles}
    assert (account["done"], account["failed"], account["missing"]) == (len(tiles) * DAYS, [], [])


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("backfill", "plan", "--from", "2024-06-02", "--to", "2024-06-01"), 2, "reversed"),
        (("backfill", "plan", "--from", "2024-6-2"), 2, "'2024-6-2' is not a date"),
        (("backfill", "plan", "--to", "2024-07-01"), 2, "after end"),
        (("backfill", "plan", "--keys", "2024-06-01|nowhere"), 2, "unknown tile"),
        (("backfill", "plan", "--keys", "20240601"), 2, "is not a partition key"),
        (("backfill", "plan", "--keys", "2024-06-01|a", "--tiles", "a"), 2, "not both"),
        (("backfill", "plan", "--states", "done"), 2, "no state that can be launched"),
        (("backfill", "plan", "--asset", "raw_scenes"), 2, "no asset 'raw_scenes'"),
        (("backfill", "plan", "--save", "plan.json"), 2, "of one asset"),
        (("backfill", "diagnose", "nonesuch"), 2, "there is no backfill nonesuch"),
        (("backfill", "status", "nonesuch"), 2, "there is no backfill nonesuch"),
        (("backfill", "launch", "--states", "all"), 3, "no Dagster daemon is running"),
    ],
)
def test_a_wrong_request_starts_nothing_and_says_what_to_do(
    run: Command, arguments: tuple[str, ...], code: int, text: str
) -> None:
    answer = run(*arguments)
    assert answer.code == code
    assert text in answer.err
    assert answer.out == ""


def test_keys_come_from_a_file_whose_wrong_line_is_named(run: Command, tmp_path: Path) -> None:
    listed = tmp_path / "keys.txt"
    listed.write_text("# from the audit\n2024-06-01|7-126-70\n\n2024-06-31|7-126-70\n")
    answer = run("backfill", "plan", "--keys-file", str(listed))
    assert answer.code == 2
    assert f"where: {listed}, line 4" in answer.err


def test_a_saved_plan_is_launched_once_and_refused_when_it_is_stale(
    run: Command, built: BuiltRegion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "plan.json"
    key = f"{START}|{built.pipeline.definition.tiles[0]}"
    asked = ("--asset", "scene_footprints", "--keys", key, "--states", "all")
    assert run("backfill", "plan", *asked, "--save", str(saved)).code == 0
    monkeypatch.setenv("SCENE_PIPELINE_ZOOM", "6")
    load_settings.cache_clear()
    edited = run("backfill", "launch", "--local", "--plan", str(saved))
    assert edited.code == 2
    assert "made under definition" in edited.err
    monkeypatch.delenv("SCENE_PIPELINE_ZOOM")
    load_settings.cache_clear()
    launched = run("backfill", "launch", "--local", "--plan", str(saved), "--json")
    assert launched.code == 0
    (wave,) = launched.document["waves"]
    assert (wave["keys"], wave["account"]["done"]) == (1, 1)
    again = run("backfill", "launch", "--local", "--plan", str(saved))
    assert again.code == 2
    assert "was started or made since plan" in again.err


def test_a_retry_launches_exactly_what_is_not_done(run: Command, built: BuiltRegion) -> None:
    """Last, because it mends the region: first the file, then the table's one key."""
    rows = run("backfill", "status", "--json").document["backfills"]
    (failed,) = [row["backfill"] for row in rows if row["failed"]]
    still = run("backfill", "retry", failed, "--local", "--json")
    assert still.code == 1, "the file is still spoilt"
    assert len(still.document["launched"]) == 1
    mended = run(
        "backfill", "launch", "--local", "--asset", "scene_footprints", "--keys", spoilt(built),
        "--states", "all",
    )  # fmt: skip
    assert mended.code == 0
    answer = run("backfill", "retry", failed, "--local", "--json")
    assert answer.code == 0
    (account,) = answer.document["accounts"]
    assert account["done"] == account["requested"]
    assert account["good_keys_rebuilt"] == 0
    assert run("backfill", "launch", "--local").out.count("nothing to run") == 1
    assert run("backfill", "retry", failed, "--local", "--json").document["launched"] == []


def test_dagsters_own_command_for_a_range_works(built: BuiltRegion) -> None:
    """A rectangle of days and neighbouring tiles, in one run of this process."""
    first, second = built.pipeline.definition.tiles[2:4]  # not the spoilt one
    finished = subprocess.run(
        [
            sys.executable, "-m", "dagster", "asset", "materialize", "-m",
            "scene_pipeline.definitions", "-a", "ranges", "--select", 'key:"fiji/footprint_table"',
            "--partition-range", f"{START}|{first}...{LAST}|{second}",
        ],
        env={
            **os.environ,
            "SCENE_PIPELINE_CONFIG": str(built.config),
            "DAGSTER_HOME": str(built.settings.dagster_home),
        },
        cwd=built.base,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    made = [line for line in finished.stderr.splitlines() if "ASSET_MATERIALIZATION - " in line]
    assert len(made) == 2 * DAYS, finished.stderr[-2000:]
    assert "RUN_SUCCESS" in finished.stderr


@pytest.mark.parametrize("command", ["plan", "launch", "retry", "diagnose", "status"])
def test_every_command_explains_itself(run: Command, command: str) -> None:
    answer = run("backfill", command, "--help")
    assert answer.code == 0
    assert "Usage: scene-pipeline backfill" in answer.out
    assert "Examples:" in run("backfill", "--help").out
