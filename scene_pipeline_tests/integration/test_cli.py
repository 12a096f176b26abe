"""The commands that set up, ingest and look, run as a person runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scene_pipeline.backfill.tags import RANGE_END_TAG, RANGE_START_TAG
from scene_pipeline.defs.build import build_definitions
from scene_pipeline.defs.home import open_instance
from scene_pipeline.settings import load_settings
from scene_pipeline_tests.services.command import CONFIG, Command
from scene_pipeline_tests.services.postgres import find_free_port

# ------------------------------------------------------------------ errors and exit codes


@pytest.mark.parametrize(
    ("arguments", "environment", "what"),
    [
        (["init"], {"ZOOM": "high"}, "zoom: "),
        (["init"], {"TIMEZONE": "Europe/Paris"}, "timezone: "),
        (["init"], {"REGION": "al/ps"}, "region: "),
        (["init"], {"CONFIG": "nowhere.toml"}, "there is no settings file nowhere.toml"),
        (["init"], {"ZOOM": "14"}, "partition keys; above 100,000"),
        (["ingest", "run", "--until", "06/01/2024"], {}, "'06/01/2024' is not a date"),
        (["ingest", "run", "--stream", "sum"], {}, "there is no stream sum"),
        (["quarantine", "release", "--note", "all of them"], {}, "releasing everything"),
        (
            ["streams", "retire", "sum", "--through", "2024-06-01", "--reason", "r"],
            {},
            "has no streams",
        ),
    ],
)
def test_a_wrong_request_is_three_lines_and_exit_2(
    command: Command, arguments: list[str], environment: dict[str, str], what: str
) -> None:
    text = command(*arguments, **environment)
    assert text.code == 2
    assert text.out == ""
    first, *rest = text.err.splitlines()
    assert first.startswith("error: ")
    assert what in first
    assert 1 <= len(rest) <= 2
    assert rest[-1].startswith("to do: ")
    assert "Traceback" not in text.err
    parsed = command(*arguments, "--json", **environment)
    assert parsed.code == 2
    error = parsed.document["error"]
    assert what in error["what"]
    assert error["exit_code"] == 2
    assert error["next_step"]


def test_a_secret_in_a_wrong_setting_is_not_repeated(command: Command) -> None:
    wrong = "postgresql://writer:hush@host:port/scenes"
    for environment in ({"WAREHOUSE_URL": wrong}, {"STATE_URL": "hush"}, {"CAPS": "hush"}):
        outcome = command("init", **environment)
        assert outcome.code == 2
        assert "hush" not in outcome.err + outcome.out


def test_a_settings_file_that_is_not_toml_is_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("region = \n")
    outcome = command("init", CONFIG="broken.toml")
    assert outcome.code == 2
    assert "not TOML" in outcome.err
    assert "broken.toml" in outcome.err


def test_an_unknown_command_or_option_is_exit_2(command: Command) -> None:
    for arguments in (["inject"], ["init", "--fast"], ["streams", "retire"]):
        outcome = command(*arguments)
        assert outcome.code == 2
        assert "Usage: scene-pipeline" in outcome.err


def test_help_answers_without_loading_dagster() -> None:
    code = (
        "import sys\n"
        "from scene_pipeline.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'dagster', 'pyarrow', 'shapely', 'sqlalchemy', 'geopandas', 'httpx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[]"
    for name in ("demo", "init", "ingest", "backfill", "partitions", "quarantine", "doctor"):
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize(
    "group", ["backfill", "frontier", "ingest", "partitions", "quarantine", "streams"]
)
def test_every_command_of_a_group_says_what_it_does(command: Command, group: str) -> None:
    outcome = command(group, "--help")
    assert outcome.code == 0
    listed = outcome.out.partition("Commands:\n")[2].splitlines()
    assert listed
    for line in listed:
        assert len(line.split()) > 3, line
        detail = command(group, line.split()[0], "--help").out
        assert "--json" in detail, line


# ------------------------------------------------------------------ init


def test_init_is_safe_to_repeat_and_takes_new_caps_over(command: Command, tmp_path: Path) -> None:
    first = command("init", "--json").document
    assert first["partition_keys"] == 12
    assert first["pools"] == {"postgis": 4, "stac_api": 2}
    assert Path(first["dagster_home"]) == tmp_path / ".scene_pipeline" / "dagster_home"
    again = command("--json", "init", CAPS__POSTGIS_WRITERS="9").document
    assert again["pools"]["postgis"] == 9
    assert command("doctor", CAPS__POSTGIS_WRITERS="9").code == 0


def test_the_home_gets_the_settings_numbers_and_keeps_what_was_edited(
    command: Command, tmp_path: Path
) -> None:
    command("init", CAPS__BACKFILL_RUNS="11")
    config = tmp_path / ".scene_pipeline" / "dagster_home" / "dagster.yaml"
    text = config.read_text()
    assert "limit: 11  # caps.backfill_runs\n" in text
    assert "max_concurrent_runs: 13  # caps.backfill_runs + 2\n" in text
    config.write_text(text + "# mine\n")
    command("init", CAPS__BACKFILL_RUNS="12")
    assert config.read_text() == text + "# mine\n"


def test_dagster_home_of_the_environment_is_respected(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "theirs"))
    assert command("init", "--json").document["dagster_home"] == str(tmp_path / "theirs")
    assert (tmp_path / "theirs" / "dagster.yaml").exists()


# ------------------------------------------------------------------ ingest and looking


def test_ingest_then_look(command: Command) -> None:
    before = command("frontier", "show")
    assert before.code == 0
    assert "no frontier is published yet" in before.out
    report = command("ingest", "run", "--json")
    assert report.code == 0
    (stream,) = report.document["streams"]
    assert stream["items"] == stream["landed"] + sum(stream["quarantined"].values())
    assert report.document["keys_reported"] > 0
    again = command("ingest", "run", "--json").document
    assert again["keys_reported"] == 0
    assert again["streams"][0]["items"] == 0
    shown = command("frontier", "show").out
    assert "complete through 2024-06-03 00:00 UTC, last full day 2024-06-02" in shown
    assert "> sim" in shown
    assert "\x1b[" not in shown, "no colour outside a terminal"
    assert max(map(len, shown.splitlines())) <= 80
    listed = command("streams", "list", "--json").document["streams"]
    assert [(each["stream"], each["membership"], each["state"]) for each in listed] == [
        ("sim", "member", "active")
    ]


def test_until_ends_a_round_early_and_the_next_goes_on(command: Command) -> None:
    half = command("ingest", "run", "--until", "2024-06-02", "--json").document
    assert half["frontier"]["last_covered_day"] == "2024-06-01"
    rest = command("ingest", "run", "--json").document
    assert rest["frontier"]["last_covered_day"] == "2024-06-02"
    assert rest["streams"][0]["known"] == 0


def test_a_source_that_cannot_be_reached_is_exit_3_and_the_other_stream_is_done(
    command: Command, tmp_path: Path
) -> None:
    gone = f"http://127.0.0.1:{find_free_port()}"
    with (tmp_path / "scene_pipeline.toml").open("a") as config:
        config.write(f'[[streams]]\nurl = "{gone}"\ncollection = "c"\nname = "gone"\n')
        config.write('finality = { rule = "lag", hours = 1 }\n')
    outcome = command("ingest", "run", CAPS__HTTP_DEADLINE_S="1")
    assert outcome.code == 3
    assert "failed: gone: " in outcome.out
    assert gone.removeprefix("http://") in outcome.out
    document = command("ingest", "run", "--json", CAPS__HTTP_DEADLINE_S="1").document
    streams = {stream["stream"]: stream for stream in document["streams"]}
    assert streams["sim"]["error"] is None
    assert streams["sim"]["complete_through"]
    assert streams["gone"]["complete_through"] is None, "its checkpoint has not moved"
    assert document["frontier"]["complete_through"] is None, "one member is not proven at all"
    doctor = command("doctor", "--json", CAPS__HTTP_DEADLINE_S="1")
    assert doctor.code == 1
    faults = [each for each in doctor.document["findings"] if each["level"] == "fault"]
    assert [fault["subject"] for fault in faults] == ["streams"]
    assert command("streams", "list").code == 1


def test_quarantine_keeps_the_whole_item_until_someone_decides(command: Command) -> None:
    command("ingest", "run")
    listed = command("quarantine", "list", "--json").document
    if not listed["open"]:
        pytest.fail("the simulated days hold no unusable Item: choose days that do")
    item = listed["items"][0]
    assert json.loads(item["item"])["id"] == item["item_id"]
    assert item["reason"] in command("quarantine", "list").out
    assert command("quarantine", "retry").code == 1, "it is as unusable as it was"
    released = command(
        "quarantine", "release", "--item", item["item_id"], "--note", "empty granule", "--json"
    )
    assert released.document == {"released": 1}
    assert command("quarantine", "list", "--json").document["open"] == listed["open"] - 1


# ------------------------------------------------------------------ doctor


def test_doctor_finds_what_init_would_mend(command: Command) -> None:
    command("init")
    healthy = command("doctor")
    assert healthy.code == 0
    subjects = {line.split()[1] for line in healthy.out.splitlines() if line[:2] == "ok"}
    assert subjects >= {
        "settings", "definition", "state", "lake", "warehouse", "dagster", "clock", "disk",
    }  # fmt: skip
    wrong = command("doctor", CAPS__POSTGIS_WRITERS="7")
    assert wrong.code == 1
    assert "pool postgis lets 4 in, the settings say 7" in wrong.out
    assert "scene-pipeline init" in wrong.out


def test_doctor_says_when_the_definition_nears_its_ceiling(
    command: Command, tmp_path: Path
) -> None:
    config = CONFIG.replace("end_date = 2024-06-03\n", "").replace("zoom = 7", "zoom = 10")
    (tmp_path / "scene_pipeline.toml").write_text(config)
    findings = command("doctor", "--json").document["findings"]
    definition = next(each for each in findings if each["subject"] == "definition")
    assert definition["level"] in {"warning", "fault"}
    assert "regions of their own name, settings file and code location" in definition["advice"]


@pytest.mark.postgres
def test_doctor_and_migrate_on_a_real_server(command: Command, postgis_url: str) -> None:
    before = command("doctor", "--json", WAREHOUSE_URL=postgis_url)
    assert before.code == 1
    (fault,) = [each for each in before.document["findings"] if each["level"] == "fault"]
    assert fault["subject"] == "warehouse"
    assert "migrate" in fault["advice"]
    assert command("migrate", WAREHOUSE_URL=postgis_url).code == 0
    after = command("doctor", "--json", WAREHOUSE_URL=postgis_url)
    assert after.code == 0
    warned = [each for each in after.document["findings"] if each["level"] == "warning"]
    assert "superuser" in warned[0]["text"]
    crowded = command("doctor", WAREHOUSE_URL=postgis_url, CAPS__BACKFILL_RUNS="40")
    assert crowded.code == 1
    assert "42 runs may open 84 connections, the server takes 60" in crowded.out
    gone = f"postgresql://postgres@127.0.0.1:{find_free_port()}/none"
    assert command("doctor", WAREHOUSE_URL=gone, CAPS__DB_DEADLINE_S="0.5").code == 3


def test_a_tile_of_an_earlier_grid_is_told_from_a_wrong_one(command: Command) -> None:
    assert command("ingest", "run").code == 0
    assert command("ingest", "run", ZOOM="6").code == 0
    for tile, reason in (("7-127-70", "removed tile"), ("7-1-1", "unknown tile")):
        done = command("backfill", "plan", "--keys", f"2024-06-01|{tile}", ZOOM="6")
        assert (done.code, reason in done.err) == (2, True), done.err


def test_one_damaged_file_costs_its_own_day_alone(command: Command) -> None:
    assert command("ingest", "run").code == 0
    window = ("--from", "2024-06-01", "--to", "2024-06-02", "--local")
    assert command("backfill", "launch", *window).code == 0
    folder = Path(".scene_pipeline/lake/fiji")
    damaged = sorted(folder.glob("scene_footprints/date=2024-06-01/*.parquet"))
    assert damaged
    damaged[0].write_bytes(b"PAR1 and no more")
    settings = load_settings()
    job = build_definitions(settings).resolve_job_def("coverage_job")
    with open_instance(settings) as instance:
        tags = {RANGE_START_TAG: "2024-06-01", RANGE_END_TAG: "2024-06-02"}
        done = job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
    assert not done.success
    written = [path.name for path in folder.glob("daily_coverage/*.parquet")]
    assert written == ["date=2024-06-02.parquet"]
