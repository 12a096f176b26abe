"""The five assets, each from a factory.

No postponed annotations here: Dagster reads the type of ``context`` as an object.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from scene_pipeline.defs.body import cover_days, materialize_keys
from scene_pipeline.defs.failures import mapped_failures
from scene_pipeline.defs.ingest import as_round_failure, ingest_round, log_streams, parse_lane
from scene_pipeline.defs.makers import FootprintMaker, Made, TableMaker
from scene_pipeline.defs.metadata import coverage_schema, scene_schema
from scene_pipeline.defs.partitions import day_partitions, scene_partitions
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.settings import RetrySettings

__all__ = [
    "GROUP",
    "build_coverage",
    "build_footprints",
    "build_frontier",
    "build_raw_scenes",
    "build_table",
    "retry_policy",
    "under_policy",
]

GROUP = "scenes"
COVERAGE_CODE_VERSION = "1"


def retry_policy(settings: RetrySettings) -> dg.RetryPolicy:
    """Dagster's policy of a step, which a run of many keys applies to each key."""
    return dg.RetryPolicy(
        max_retries=settings.max_retries,
        delay=settings.delay_s,
        backoff=dg.Backoff.EXPONENTIAL,
        jitter=dg.Jitter.PLUS_MINUS,
    )


def _common(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "key_prefix": [pipeline.region],
        "group_name": GROUP,
        "owners": list(pipeline.settings.owners),
        "tags": {"region": pipeline.region},
    }


def build_raw_scenes(pipeline: Pipeline) -> dg.AssetSpec:
    """What ingest has landed, recorded a key at a time; Dagster does not run it."""
    return dg.AssetSpec(
        key=[pipeline.region, "raw_scenes"],
        group_name=GROUP,
        owners=list(pipeline.settings.owners),
        tags={"region": pipeline.region},
        kinds={"stac", "parquet"},
        partitions_def=scene_partitions(pipeline.definition),
        deps=[dg.AssetKey([pipeline.region, "ingest_frontier"])],
        description=(
            "STAC Items as the providers published them, one tile and UTC day a partition. "
            "`ingest_frontier` lands them and reports each partition here once its day is "
            "covered, or again when a late or newer Item changes it. The data version is the "
            "raw version: a counter that goes up with every change."
        ),
    )


def under_policy(asset: dg.AssetsDefinition, max_keys: int) -> dg.AssetsDefinition:
    """``asset`` with at most ``max_keys`` keys a run.

    The op stays the same object: Dagster refuses a location whose jobs hold two of one name.
    """
    return asset.with_attributes(backfill_policy=dg.BackfillPolicy.multi_run(max_keys))


def build_footprints(pipeline: Pipeline) -> dg.AssetsDefinition:
    """The lake's asset."""
    retry = retry_policy(pipeline.settings.retries)
    maker = FootprintMaker(pipeline)

    @dg.asset(
        **_common(pipeline),
        partitions_def=scene_partitions(pipeline.definition),
        deps=[dg.AssetKey([pipeline.region, "raw_scenes"])],
        retry_policy=retry,
        io_manager_key="geoparquet_io",
        output_required=False,
        code_version=maker.asset.code_version,
        kinds={"parquet", "geopandas"},
        metadata={"dagster/column_schema": scene_schema()},
        description=(
            "Footprints of the scenes that a tile holds on a UTC day: repaired, split at the "
            "antimeridian, projected to EPSG:3857 and cut to the tile. One GeoParquet file a "
            "partition; a day without a scene is an empty file, which is a result too."
        ),
    )
    def scene_footprints(context: dg.AssetExecutionContext) -> Iterator[dg.Output[Made]]:
        yield from materialize_keys(context, pipeline, maker=maker, retry=retry)

    return scene_footprints


def build_table(pipeline: Pipeline) -> dg.AssetsDefinition:
    """The warehouse's asset."""
    retry = retry_policy(pipeline.settings.retries)
    maker = TableMaker(pipeline)

    @dg.asset(
        **_common(pipeline),
        partitions_def=scene_partitions(pipeline.definition),
        deps=[dg.AssetKey([pipeline.region, "scene_footprints"])],
        retry_policy=retry,
        io_manager_key="table_io",
        output_required=False,
        code_version=maker.asset.code_version,
        kinds={"postgres"} if pipeline.settings.warehouse_engine_url else {"geopackage"},
        metadata={"dagster/column_schema": scene_schema()},
        pool="postgis",
        description=(
            "The same rows as the GeoParquet file, in one table (PostGIS, or a GeoPackage where "
            "no server is set). Each partition is replaced in one transaction, whole or not at "
            "all, under the pool `postgis`."
        ),
    )
    def footprint_table(context: dg.AssetExecutionContext) -> Iterator[dg.Output[Made]]:
        yield from materialize_keys(context, pipeline, maker=maker, retry=retry)

    return footprint_table


def build_coverage(pipeline: Pipeline) -> dg.AssetsDefinition:
    """How much of each tile a day's scenes cover."""
    # Not an input: Dagster would load every day of a run before its body starts, so that one
    # damaged file would cost them all.
    footprints = dg.AssetDep(
        dg.AssetKey([pipeline.region, "scene_footprints"]),
        partition_mapping=dg.MultiToSingleDimensionPartitionMapping("date"),
    )

    @dg.asset(
        **_common(pipeline),
        partitions_def=day_partitions(pipeline.definition),
        deps=[footprints],
        retry_policy=retry_policy(pipeline.settings.retries),
        output_required=False,
        code_version=COVERAGE_CODE_VERSION,
        kinds={"parquet"},
        metadata={"dagster/column_schema": coverage_schema()},
        description=(
            "How many scenes each tile has on a UTC day, what share of the tile they cover "
            "together, and their cloud cover. Each partition shows a map of its day and lies in "
            "the lake as a small Parquet file."
        ),
    )
    def daily_coverage(
        context: dg.AssetExecutionContext,
    ) -> Iterator[dg.MaterializeResult[Any]]:
        yield from cover_days(context, pipeline)

    return daily_coverage


class IngestConfig(dg.Config):
    """Which streams a round reads, and in which lane."""

    lane: str = Field(
        default="forward",
        description="`forward` moves on from the checkpoints; `rescan` reads the trailing window "
        "again for late, newer and deleted Items, and never moves the frontier.",
    )
    streams: list[str] = Field(default=[], description="Names of streams; empty: all of them.")


def build_frontier(pipeline: Pipeline) -> dg.AssetsDefinition:
    """One round of ingest over every stream, and the frontier that it published."""

    @dg.asset(
        **_common(pipeline),
        retry_policy=retry_policy(pipeline.settings.retries),
        kinds={"stac"},
        pool="stac_api",
        description=(
            "Reads every stream (one Collection of one STAC API) page by page into the raw lake, "
            "and publishes the frontier: the instant before which every stream is proven "
            "complete. Only days before it are built."
        ),
    )
    def ingest_frontier(
        context: dg.AssetExecutionContext, config: IngestConfig
    ) -> dg.MaterializeResult[Any]:
        with mapped_failures():
            report, metadata = ingest_round(
                pipeline,
                lane=parse_lane(config.lane),
                streams=config.streams or None,
                record=context.log_event,
            )
        log_streams(context.log, report)
        if report.errors:
            # The streams that went well are recorded; the run is red for those that did not.
            context.log_event(dg.AssetMaterialization(context.asset_key, metadata=metadata))
            raise as_round_failure(report)
        return dg.MaterializeResult(metadata=metadata)

    return ingest_frontier
