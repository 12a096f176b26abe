"""What the body of a run costs a key, apart from reading, building and storing it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, ClassVar

import dagster as dg

from scene_pipeline.backfill.assets import FOOTPRINTS, TrackedAsset
from scene_pipeline.defs.body import materialize_keys
from scene_pipeline.defs.home import open_instance
from scene_pipeline.defs.makers import Facts, Made
from scene_pipeline.defs.metadata import to_metadata
from scene_pipeline.defs.partitions import scene_partitions
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.scenes.keys import PartitionKey, parse_key
from scene_pipeline.settings import read_settings
from scene_pipeline_tests.benchmarks.harness import Result, benchmark, compare
from scene_pipeline_tests.services.scene_rows import make_partition

KEYS = 120
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# As many and as large as those of a real partition, the map included.
_FACTS = {
    "scenes": 12, "rows": 12, "repaired": 1, "outside": 0, "bytes": 16_000, "crs": "EPSG:3857",
    "bbox": [0.0, 0.0, 1.0, 1.0], "path": "/lake/scene_footprints/date=2024-06-01/tile=7.parquet",
    "seconds_read": 0.01, "seconds_build": 0.01, "seconds_write": 0.01,
    "map": f"![map](data:image/svg+xml;base64,{'A' * 4_000})",
}  # fmt: skip


class _Ready:
    """A maker that neither reads nor stores: what is left is the body's own."""

    asset: ClassVar[TrackedAsset] = FOOTPRINTS
    store_together: ClassVar[int] = 1

    def make(self, keys: Sequence[PartitionKey]) -> Iterator[tuple[PartitionKey, Made | Exception]]:
        for key in keys:
            yield key, Made(make_partition(key, 0), _FACTS, FOOTPRINTS)

    def store(self, made: Sequence[Made]) -> Iterator[tuple[PartitionKey, Facts | Exception]]:
        for each in made:
            yield each.key, {}


@benchmark("body_per_key_vs_bare_event")
def bench_body() -> Result:
    """A run of many keys that do nothing, against a loop that logs the same events."""
    with tempfile.TemporaryDirectory() as folder:
        settings = read_settings(
            region="alps",
            start_date=date(2024, 6, 1),
            area=(6.0, 45.0, 12.0, 47.0),
            zoom=7,
            state_url=f"sqlite:///{folder}/state.db",
            lake=f"{folder}/lake",
            dagster_home=f"{folder}/home",
        )
        pipeline = Pipeline(settings)
        last = date(2024, 6, KEYS // len(pipeline.definition.tiles))
        keys = [str(key) for key in pipeline.definition.iter_window(settings.start_date, last)]
        assert len(keys) == KEYS
        with open_instance(settings) as instance:
            jobs = {name: _build_job(pipeline, name) for name in ("ours", "bare")}

            def run(name: str) -> None:
                result = jobs[name].execute_in_process(
                    instance=instance,
                    run_config=_QUIET,
                    tags={
                        "dagster/asset_partition_range_start": keys[0],
                        "dagster/asset_partition_range_end": keys[-1],
                    },
                )
                assert result.success

            result = compare(
                lambda: run("ours"), lambda: run("bare"), rounds=7, target=1.5,
                extra={"keys": KEYS},
            )  # fmt: skip
            pipeline.state.dispose()
            return result


def _build_job(pipeline: Pipeline, name: str) -> dg.JobDefinition:
    retry = dg.RetryPolicy()

    def ours(context: dg.AssetExecutionContext) -> Iterator[Any]:
        yield from materialize_keys(context, pipeline, maker=_Ready(), retry=retry)

    def bare(context: dg.AssetExecutionContext) -> Iterator[Any]:
        for text in context.partition_keys:
            partition = make_partition(parse_key(text), 0)
            context.log_event(
                dg.AssetMaterialization(
                    context.asset_key,
                    partition=text,
                    metadata=to_metadata({**_FACTS, "rows": partition.rows.num_rows}),
                    tags={"dagster/data_version": "0.0.1"},
                )
            )
        # No output: Dagster would record every key a second time.
        yield from ()

    body: Any = {"ours": ours, "bare": bare}[name]
    # Dagster wants types, not their names.
    body.__annotations__ = {
        "context": dg.AssetExecutionContext,
        "return": Iterator[dg.Output[Any]],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        asset = dg.asset(
            body,
            name=name,
            key_prefix=["alps"],
            partitions_def=scene_partitions(pipeline.definition),
            backfill_policy=dg.BackfillPolicy.single_run(),
            output_required=False,
        )
        job = dg.define_asset_job(f"{name}_job", [asset])
        return dg.Definitions(
            assets=[asset], executor=dg.in_process_executor, jobs=[job]
        ).resolve_job_def(job.name)
