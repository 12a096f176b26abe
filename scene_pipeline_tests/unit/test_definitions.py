"""What the definitions promise, read from the definitions themselves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import dagster as dg
import pytest

from scene_pipeline.defs.build import build_definitions
from scene_pipeline.defs.partitions import (
    MOST_KEYS,
    measure_definition,
    require_size,
    scene_partitions,
    warn_of_size,
)
from scene_pipeline.errors import SettingsError
from scene_pipeline.scenes.keys import SceneDefinition
from scene_pipeline.scenes.schema import SCENE_COLUMNS
from scene_pipeline.settings import read_settings

POLICY_JOBS = {
    "scenes_per_partition_job": 1,
    "scenes_batched_job": 20,
    "scenes_single_run_job": 1000,
}


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return build_definitions(read_settings())


@pytest.fixture(scope="module")
def graph(definitions: dg.Definitions) -> Any:
    return definitions.resolve_asset_graph()


def key(name: str) -> dg.AssetKey:
    return dg.AssetKey(["fiji", name])


def test_they_load_without_a_database_or_a_file(definitions: dg.Definitions, tmp_path: Any) -> None:
    dg.Definitions.validate_loadable(definitions)
    assert list(tmp_path.iterdir()) == []


def test_the_three_jobs_differ_in_policy_alone(definitions: dg.Definitions) -> None:
    jobs = {name: definitions.resolve_job_def(name) for name in POLICY_JOBS}
    for name, most in POLICY_JOBS.items():
        assert jobs[name].backfill_policy == dg.BackfillPolicy.multi_run(most)
        assert jobs[name].asset_layer.executable_asset_keys == {key("scene_footprints")}
        assert jobs[name].executor_def == dg.in_process_executor
    ops = {job.get_node_named("fiji__scene_footprints").definition for job in jobs.values()}
    assert len(ops) == 1, "one body"


def test_a06_job_backfills_of_twelve_keys_make_twelve_one_and_one_runs(
    definitions: dg.Definitions,
) -> None:
    """The runs that Dagster's own planner makes for a job backfill follow the job's policy."""
    counts = []
    for name in POLICY_JOBS:
        most = definitions.resolve_job_def(name).backfill_policy.max_partitions_per_run
        counts.append(-(-12 // most))
    assert counts == [12, 1, 1]


def test_dependent_assets_never_share_a_policy_of_many_keys(graph: Any) -> None:
    """With equal ones Dagster's asset backfill puts both into a run, where the table gets none."""
    compared = 0
    for asset in graph.materializable_asset_keys:
        own = graph.get(asset).backfill_policy
        for parent in graph.get(asset).parent_keys:
            other = graph.get(parent).backfill_policy
            if own is None or other is None:
                continue
            compared += 1
            most = (own.max_partitions_per_run, other.max_partitions_per_run)
            assert most == (1, 1) or most[0] != most[1], f"{parent} → {asset}"
    assert compared >= 2


@pytest.mark.parametrize("batched", [1, 2, 500, 1000])
def test_that_holds_for_every_batch_size(batched: int) -> None:
    graph = build_definitions(read_settings(policies={"batched": batched})).resolve_asset_graph()
    own, other = (
        graph.get(key(name)).backfill_policy.max_partitions_per_run
        for name in ("scene_footprints", "footprint_table")
    )
    assert own != other


def test_retries_pools_and_code_versions_are_set(definitions: dg.Definitions, graph: Any) -> None:
    retry = dg.RetryPolicy(
        max_retries=3, delay=10, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
    )
    pools = {"footprint_table": {"postgis"}, "ingest_frontier": {"stac_api"}}
    for name in ("scene_footprints", "footprint_table", "daily_coverage", "ingest_frontier"):
        node = graph.get(key(name))
        assert node.assets_def.op.retry_policy == retry
        assert node.pools == pools.get(name, set())
    assert graph.get(key("scene_footprints")).code_version == "1"
    assert graph.get(key("footprint_table")).code_version == "1"


def test_a_newcomer_finds_words_on_everything(definitions: dg.Definitions, graph: Any) -> None:
    repository = definitions.get_repository_def()
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    assert len(jobs) == 8
    described: Sequence[Any] = [*jobs, *repository.schedule_defs, *repository.sensor_defs]
    for each in described:
        assert len(each.description or "") > 30, each.name
    for asset in graph.get_all_asset_keys():
        node = graph.get(asset)
        assert len(node.description) > 60, asset
        assert node.kinds, asset
        assert node.owners == ["team:earth-observation"]
        assert node.group_name == "scenes"
        assert node.tags["region"] == "fiji"
    checks = graph.asset_check_keys
    assert len(checks) == 7
    for check in checks:
        assert graph.get_check_spec(check).description, check


def test_column_schemas_are_the_one_schema(graph: Any) -> None:
    for name in ("scene_footprints", "footprint_table"):
        schema = graph.get(key(name)).metadata["dagster/column_schema"]
        assert [column.name for column in schema.columns] == [c.name for c in SCENE_COLUMNS]
        assert [column.constraints.nullable for column in schema.columns] == [
            c.nullable for c in SCENE_COLUMNS
        ]
        assert all(column.description for column in schema.columns)


@pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars`")
def test_no_secret_is_in_what_the_web_server_gets() -> None:
    definitions = build_definitions(
        read_settings(
            warehouse_url="postgresql://writer:hush-hush@db/scenes",
            s3={"access_key": "hush-hush", "secret_key": "hush-hush"},
        )
    )
    from dagster._core.remote_representation.external_data import RepositorySnap

    snap = RepositorySnap.from_def(definitions.get_repository_def())
    assert "hush-hush" not in dg.serialize_value(snap)


# ------------------------------------------------------------------ partitions


def definition(
    *, tiles: int = 6, start: date = date(2024, 6, 1), end: date | None = None
) -> SceneDefinition:
    names = tuple(f"7-{n}-0" for n in range(tiles))
    return SceneDefinition("r", start, end, "grid", names)


def test_the_key_is_day_then_tile_in_declared_order() -> None:
    partitions = scene_partitions(
        SceneDefinition("r", date(2024, 6, 1), date(2024, 6, 3), "g", ("b", "a"))
    )
    assert partitions.get_partition_keys() == [
        "2024-06-01|b", "2024-06-01|a", "2024-06-02|b", "2024-06-02|a",
    ]  # fmt: skip
    assert partitions.get_tags_for_partition_key("2024-06-01|b") == {
        "dagster/partition": "2024-06-01|b"
    }


def test_dagsters_end_is_the_definitions_end() -> None:
    ours = definition(end=date(2024, 6, 15))
    theirs = scene_partitions(ours)
    assert theirs.get_last_partition_key() == f"{ours.last_day(date(2030, 1, 1))}|{ours.tiles[-1]}"


def test_days_are_utc_days_whatever_the_clock_change() -> None:
    """A19: 2024-03-10 has 23 hours in Los Angeles; here every day is there, once."""
    partitions = scene_partitions(definition(tiles=1, start=date(2024, 3, 1), end=date(2024, 4, 1)))
    days = [text.partition("|")[0] for text in partitions.get_partition_keys()]
    assert days == [f"2024-03-{day:02d}" for day in range(1, 32)]


@pytest.mark.parametrize("tiles", [1, 7, 300, 999])
@pytest.mark.parametrize("days", [0, 1, 99, 100])
def test_the_size_is_days_times_tiles_and_the_crossing_is_the_first_day_too_many(
    tiles: int, days: int
) -> None:
    open_ended = definition(tiles=tiles)
    today = date.fromordinal(open_ended.start.toordinal() + days)
    size = measure_definition(open_ended, today=today)
    assert size.keys == days * tiles
    assert size.crosses_on is not None
    up_to_crossing = (size.crosses_on - open_ended.start).days
    assert up_to_crossing * tiles <= MOST_KEYS < (up_to_crossing + 1) * tiles


def test_a_definition_that_ends_before_never_crosses() -> None:
    # 100 tiles: the thousandth day is the last that fits.
    fits = definition(tiles=100, end=date.fromordinal(date(2024, 6, 1).toordinal() + 1000))
    more = definition(tiles=100, end=date.fromordinal(date(2024, 6, 1).toordinal() + 1001))
    assert measure_definition(fits, today=date(2030, 1, 1)).crosses_on is None
    assert measure_definition(more, today=date(2030, 1, 1)).crosses_on is not None
    assert measure_definition(fits, today=date(2030, 1, 1)).keys == MOST_KEYS


def test_a16_above_the_ceiling_init_refuses_and_loading_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    large = definition(tiles=400)
    today = date(2025, 6, 1)
    with pytest.raises(SettingsError, match="146,000 partition keys"):
        require_size(large, today=today)
    warn_of_size(large, today=today)
    (record,) = caplog.records
    assert "146,000 partition keys" in record.message
    assert "100,000 are crossed on 2025-02-06" in record.message
    caplog.clear()
    warn_of_size(definition(), today=today)
    assert caplog.records == []
