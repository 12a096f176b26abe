"""Both IO managers, through Dagster itself: one key, the run's keys, and what they refuse."""

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from scene_pipeline.defs.io_managers import GeoParquetIOManager, TableIOManager
from scene_pipeline.defs.partitions import day_partitions, scene_partitions
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.lake.frames import from_geopandas, to_geopandas
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.settings import read_settings
from scene_pipeline_tests.services.scene_rows import make_partition

START = date(2024, 6, 1)
MANAGERS = {"geoparquet_io": GeoParquetIOManager, "table_io": TableIOManager}


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(
        read_settings(region="alps", start_date=START, area=(6.0, 45.0, 12.0, 48.0), zoom=7)
    )


@pytest.fixture(params=sorted(MANAGERS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def keys_of(pipeline: Pipeline, days: int, tiles: int) -> list[PartitionKey]:
    last = START + timedelta(days=days - 1)
    return list(pipeline.definition.iter_window(START, last, pipeline.definition.tiles[:tiles]))


def stored_rows(pipeline: Pipeline, kind: str, key: PartitionKey) -> Any:
    return pipeline.lake.read(key).rows if kind == "geoparquet_io" else pipeline.warehouse.read(key)


def run_asset(
    pipeline: Pipeline,
    kind: str,
    *,
    keys: list[PartitionKey],
    body: Callable[[dg.AssetExecutionContext], Any],
    partitions: dg.PartitionsDefinition[str] | None = None,
    ins: Mapping[str, dg.AssetIn] | None = None,
) -> dg.ExecuteInProcessResult:
    """Materialize one asset over the rectangle from the first key to the last."""
    asset = dg.asset(
        name="asset",
        partitions_def=partitions or scene_partitions(pipeline.definition),
        io_manager_key=kind,
        ins=ins,
        backfill_policy=dg.BackfillPolicy.single_run(),
        retry_policy=dg.RetryPolicy(max_retries=2),
    )(body)
    defs = dg.Definitions(
        assets=[asset],
        resources={name: manager(pipeline) for name, manager in MANAGERS.items()},
        jobs=[dg.define_asset_job("job", [asset])],
    )
    return defs.resolve_job_def("job").execute_in_process(
        instance=dg.DagsterInstance.ephemeral(),
        raise_on_error=False,
        tags={
            "dagster/asset_partition_range_start": str(keys[0]),
            "dagster/asset_partition_range_end": str(keys[-1]),
        },
    )


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    assert not result.success
    (event,) = [e for e in result.all_events if e.is_step_failure]
    return str(event.step_failure_data.error_display_string)


def test_a_frame_for_one_key_is_stored_with_its_version(pipeline: Pipeline, kind: str) -> None:
    (key,) = keys_of(pipeline, 1, 1)
    partition = make_partition(key, 5, raw_seq=7)

    def asset(context: dg.AssetExecutionContext) -> Any:
        return to_geopandas(partition.rows)

    result = run_asset(pipeline, kind, keys=[key], body=asset)
    assert result.success
    rows = stored_rows(pipeline, kind, key)
    assert sorted(rows["item_id"].to_pylist()) == sorted(partition.rows["item_id"].to_pylist())
    assert set(rows["raw_seq"].to_pylist()) == {7}
    (event,) = result.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert metadata["rows"].value == 5
    assert metadata["seconds_write"].value > 0


@pytest.mark.parametrize("as_frame", [True, False])
def test_a_mapping_writes_exactly_the_keys_of_the_run(
    pipeline: Pipeline, kind: str, as_frame: bool
) -> None:
    keys = keys_of(pipeline, 3, 2)

    def asset(context: dg.AssetExecutionContext) -> Any:
        tables = {
            text: make_partition(key, count).rows
            for count, (text, key) in enumerate(zip(context.partition_keys, keys, strict=True))
        }
        return {k: to_geopandas(v) for k, v in tables.items()} if as_frame else tables

    assert run_asset(pipeline, kind, keys=keys, body=asset).success
    assert [stored_rows(pipeline, kind, key).num_rows for key in keys] == [0, 1, 2, 3, 4, 5]


def test_a24_a_missing_or_extra_key_is_an_error_and_nothing_is_written(
    pipeline: Pipeline, kind: str
) -> None:
    keys = keys_of(pipeline, 2, 1)
    extra = keys_of(pipeline, 3, 1)[-1]

    def asset(context: dg.AssetExecutionContext) -> Any:
        return {str(keys[0]): make_partition(keys[0], 1).rows,
                str(extra): make_partition(extra, 1).rows}  # fmt: skip

    text = failure_text(run_asset(pipeline, kind, keys=keys, body=asset))
    assert f"not of the run: {extra}" in text
    assert f"missing: {keys[1]}" in text
    assert all(pipeline.lake.read_version(key) is None for key in [*keys, extra])
    assert pipeline.warehouse.count_rows([*keys, extra]).get(keys[0], 0) == 0


def test_a24_one_frame_for_two_keys_is_refused(pipeline: Pipeline, kind: str) -> None:
    keys = keys_of(pipeline, 2, 1)

    def asset(context: dg.AssetExecutionContext) -> Any:
        return make_partition(keys[0], 1).rows

    text = failure_text(run_asset(pipeline, kind, keys=keys, body=asset))
    assert "one frame for 2 keys" in text


def test_a35_a_frame_without_or_in_another_crs_is_refused(pipeline: Pipeline, kind: str) -> None:
    (key,) = keys_of(pipeline, 1, 1)
    frame = to_geopandas(make_partition(key, 2).rows)

    for wrong in (frame.to_crs(4326), frame.set_crs(None, allow_override=True)):
        text = failure_text(run_asset(pipeline, kind, keys=[key], body=_returning(wrong)))
        assert "EPSG:3857" in text


def _returning(value: Any) -> Callable[[dg.AssetExecutionContext], Any]:
    def asset(context: dg.AssetExecutionContext) -> Any:
        return value

    return asset


def test_an_error_that_no_retry_helps_is_a_failure_without_retries(
    pipeline: Pipeline, kind: str
) -> None:
    (key,) = keys_of(pipeline, 1, 1)
    newer, older = make_partition(key, 3, raw_seq=9), make_partition(key, 1, raw_seq=8)
    assert run_asset(pipeline, kind, keys=[key], body=_returning(newer.rows)).success
    result = run_asset(pipeline, kind, keys=[key], body=_returning(older.rows))
    text = failure_text(result)
    assert "9" in text
    assert "8" in text
    assert stored_rows(pipeline, kind, key).num_rows == 3
    assert not [e for e in result.all_events if e.is_step_up_for_retry]


def write_lake(pipeline: Pipeline, keys: list[PartitionKey]) -> None:
    for count, key in enumerate(keys, start=1):
        partition = make_partition(key, count)
        pipeline.lake.write(key, partition.rows, raw_seq=1)
        list(pipeline.warehouse.replace_many([partition]))


def load(
    pipeline: Pipeline, kind: str, *, keys: list[PartitionKey], as_table: bool, missing: str
) -> tuple[dg.ExecuteInProcessResult, list[Any]]:
    """What an asset of the day's grain gets as its input."""
    seen: list[Any] = []

    def as_arrow(context: dg.AssetExecutionContext, upstream: pa.Table) -> None:
        seen.append(upstream)

    def as_frame(context: dg.AssetExecutionContext, upstream: Any) -> None:
        seen.append(upstream)

    upstream = dg.AssetIn(
        key="upstream",
        partition_mapping=dg.MultiToSingleDimensionPartitionMapping("date"),
        input_manager_key=kind,
        metadata={"missing": missing},
    )
    source = dg.AssetSpec("upstream", partitions_def=scene_partitions(pipeline.definition))
    body = as_arrow if as_table else as_frame
    asset = dg.asset(
        name="day",
        partitions_def=day_partitions(pipeline.definition),
        ins={"upstream": upstream},
    )(body)
    defs = dg.Definitions(
        assets=[source, asset],
        resources={
            **{name: manager(pipeline) for name, manager in MANAGERS.items()},
            "io_manager": dg.mem_io_manager,
        },
        jobs=[dg.define_asset_job("job", [asset])],
    )
    result = defs.resolve_job_def("job").execute_in_process(
        instance=dg.DagsterInstance.ephemeral(),
        raise_on_error=False,
        partition_key=keys[0].day.isoformat(),
    )
    return result, seen


@pytest.mark.parametrize("as_table", [True, False])
def test_a26_a_day_loads_as_one_frame_with_its_key_columns(
    pipeline: Pipeline, kind: str, as_table: bool
) -> None:
    keys = keys_of(pipeline, 1, len(pipeline.definition.tiles))
    write_lake(pipeline, keys)
    result, seen = load(pipeline, kind, keys=keys, as_table=as_table, missing="fail")
    assert result.success
    (day,) = seen
    table = day if as_table else from_geopandas(day)
    if not as_table:
        assert day.crs.to_epsg() == 3857
    counted = table.group_by("tile").aggregate([("item_id", "count")]).to_pydict()
    expected = {key.tile: count for count, key in enumerate(keys, start=1)}
    assert dict(zip(counted["tile"], counted["item_id_count"], strict=True)) == expected


def test_a26_a_missing_key_fails_by_name_unless_the_input_skips_it(pipeline: Pipeline) -> None:
    keys = keys_of(pipeline, 1, len(pipeline.definition.tiles))
    write_lake(pipeline, keys[:-1])
    result, seen = load(pipeline, "geoparquet_io", keys=keys, as_table=True, missing="fail")
    assert str(keys[-1]) in failure_text(result)
    assert seen == []
    result, seen = load(pipeline, "geoparquet_io", keys=keys, as_table=True, missing="skip")
    assert result.success
    assert seen[0].num_rows == sum(range(1, len(keys)))
