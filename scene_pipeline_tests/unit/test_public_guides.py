"""docs/public-guides.md, claim by claim, on the installed Dagster.

These assert Dagster's behaviour, not ours: one that fails after an upgrade means that the page,
and what works around it, must be looked at again.
"""

# No deferred annotations: Dagster reads those of bodies.
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest
from dagster._cli import create_dagster_cli
from dagster._core.instance.config import dagster_instance_config_schema
from upath import UPath

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "public-guides.md").read_text()

DAYS = dg.DailyPartitionsDefinition("2024-06-01", end_date="2024-06-05")
KEYS = dg.MultiPartitionsDefinition(
    {"date": DAYS, "tile": dg.StaticPartitionsDefinition(["a", "b", "c"])}
)
START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def run_range(
    instance: dg.DagsterInstance, first: str, last: str, body: Any, **resources: Any
) -> dg.ExecuteInProcessResult:
    made = dg.asset(
        name="made", partitions_def=KEYS, backfill_policy=dg.BackfillPolicy.single_run()
    )(body)
    job = dg.define_asset_job("job", [made])
    definitions = dg.Definitions(assets=[made], jobs=[job], resources=resources)
    return definitions.resolve_job_def("job").execute_in_process(
        instance=instance, tags={START: first, END: last}, raise_on_error=False
    )


def error_of(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    error = failure.step_failure_data.error
    assert error is not None
    return error.message + (error.cause.message if error.cause else "")


@pytest.mark.parametrize("words", [("asset", "backfill"), ("backfill",)])
def test_commands_that_do_not_exist(words: tuple[str, ...]) -> None:
    group: Any = create_dagster_cli()
    assert "backfill" in group.commands["job"].commands
    for word in words[:-1]:
        group = group.commands[word]
    assert isinstance(group, click.Group)
    assert words[-1] not in group.commands


def test_keys_in_range_take_one_range() -> None:
    with pytest.raises(TypeError):
        DAYS.get_partition_keys_in_range("2024-06-01", "2024-06-02")  # type: ignore[call-arg,arg-type]
    inside = DAYS.get_partition_keys_in_range(dg.PartitionKeyRange("2024-06-01", "2024-06-02"))
    assert list(inside) == ["2024-06-01", "2024-06-02"]


def test_metadata_knows_no_partition() -> None:
    for call in (dg.MaterializeResult.__new__, dg.AssetExecutionContext.add_output_metadata):
        assert "partition" not in inspect.signature(call).parameters
    assert "partition" in inspect.signature(dg.AssetMaterialization.__new__).parameters


def test_the_one_key_of_a_run_of_many_raises(instance: dg.DagsterInstance) -> None:
    def body(context: dg.AssetExecutionContext) -> None:
        assert len(context.partition_keys) == 2
        _ = context.partition_key

    assert "Cannot access partition_key" in error_of(
        run_range(instance, "2024-06-01|a", "2024-06-01|b", body)
    )


class _TextManager(dg.UPathIOManager):
    extension = ".txt"

    def dump_to_path(self, context: dg.OutputContext, obj: object, path: UPath) -> None:
        path.write_text(str(obj))

    def load_from_path(self, context: dg.InputContext, path: UPath) -> str:
        return path.read_text()


def test_a_path_manager_refuses_several_partitions(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    def body(context: dg.AssetExecutionContext) -> int:
        return 1

    result = run_range(
        instance, "2024-06-01|a", "2024-06-01|b", body, io_manager=_TextManager(UPath(tmp_path))
    )
    assert "does not support persisting an output associated with multiple" in error_of(result)


@pytest.mark.parametrize(
    ("first", "last", "keys"),
    [
        ("2024-06-01|b", "2024-06-02|c", 4),  # the keys in between would be five
        ("2024-06-01|c", "2024-06-02|b", 0),  # reversed tiles, and a green run
    ],
)
def test_a_range_is_a_rectangle(
    instance: dg.DagsterInstance, first: str, last: str, keys: int
) -> None:
    seen: list[str] = []

    def body(context: dg.AssetExecutionContext) -> None:
        seen.extend(context.partition_keys)

    # Nothing is stored: the manager would refuse several partitions.
    body.__annotations__["return"] = None
    result = run_range(instance, first, last, body)
    assert result.success
    assert len(seen) == keys


# Dagster's own schedule calls, and tags with, what Dagster has deprecated.
@pytest.mark.filterwarnings("ignore:Non-compliant tag keys")
@pytest.mark.filterwarnings("ignore:Function `JobDefinition.run_request_for_partition`")
def test_the_ready_made_schedule_is_a_run_a_tile_and_never_twice() -> None:
    @dg.asset(partitions_def=KEYS)
    def made() -> None: ...

    job = dg.define_asset_job("job", [made])
    schedule = dg.build_schedule_from_partitioned_job(job, hour_of_day=5)
    definitions = dg.Definitions(assets=[made], jobs=[job], schedules=[schedule])
    at = datetime(2024, 6, 3, 5, tzinfo=UTC)
    with dg.build_schedule_context(scheduled_execution_time=at) as context:
        tick = definitions.resolve_schedule_def(schedule.name).evaluate_tick(context)
    expected = [f"2024-06-02|{tile}" for tile in "abc"]
    assert [request.run_key for request in tick.run_requests or []] == expected


def test_pools_have_only_a_default_in_the_file() -> None:
    concurrency: Any = dagster_instance_config_schema()["concurrency"]
    pools = concurrency.config_type.fields["pools"].config_type.fields
    assert set(pools) == {"default_limit", "granularity", "op_granularity_run_buffer"}
    cli: Any = create_dagster_cli()
    assert "set" in cli.commands["instance"].commands["concurrency"].commands


@pytest.mark.parametrize("name", ["dagster.yaml", "dagster.production.yaml"])
def test_slots_of_killed_runs_are_freed_here_alone(name: str) -> None:
    monitoring: Any = dagster_instance_config_schema()["run_monitoring"]
    freed = monitoring.config_type.fields["free_slots_after_run_end_seconds"]
    assert not freed.default_provided
    assert "free_slots_after_run_end_seconds: 20" in (ROOT / "infra" / name).read_text()


_MEETING = """\
import os, time
from pathlib import Path
import dagster as dg

@dg.op
def meet():
    folder = Path(os.environ["MEETING"])
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < deadline, "alone"
        time.sleep(0.05)

@dg.job(executor_def=dg.multiprocess_executor.configured({"max_concurrent": 1}))
def meeting_job():
    meet()
"""


def test_max_concurrent_does_not_reach_across_runs(tmp_path: Path) -> None:
    """Each of two runs ends once the op of the other is there too."""
    (tmp_path / "meeting.py").write_text(_MEETING)
    for name in ("home", "place"):
        (tmp_path / name).mkdir()
    environment = {
        **os.environ, "DAGSTER_HOME": str(tmp_path / "home"), "MEETING": str(tmp_path / "place")
    }  # fmt: skip
    dg.DagsterInstance.from_config(str(tmp_path / "home")).dispose()
    command = [sys.executable, "-m", "dagster", "job", "execute", "-f", "meeting.py",
               "-j", "meeting_job"]  # fmt: skip
    runs = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [run.wait(timeout=200) for run in runs] == [0, 0]


def test_the_tests_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(?:scene_pipeline_tests/unit/)?(test_\w+\.py)`", PAGE))
    assert len(named) == 4
    here = {path.name for path in (ROOT / "scene_pipeline_tests").rglob("test_*.py")}
    assert named <= here
