"""Asset checks: the stored partitions, held to what they promise.

In a run of one key they look at that key, in a run of their own at the newest covered days. A
run of many keys yields no Output, so its checks do not run; its body holds each partition to the
same laws before it writes.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from scene_pipeline.defs.inspection import (
    FOOTPRINT_CHECKS,
    Findings,
    inspect_footprints,
    inspect_table,
    recent_keys,
)
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.scenes.keys import PartitionKey, parse_key

__all__ = ["build_footprint_checks", "build_table_check"]


def build_footprint_checks(pipeline: Pipeline) -> dg.AssetChecksDefinition:
    """The checks of ``scene_footprints``, in one pass over the files."""
    asset = dg.AssetKey([pipeline.region, "scene_footprints"])
    specs = [
        dg.AssetCheckSpec(name, asset=asset, description=text)
        for name, text in FOOTPRINT_CHECKS.items()
    ]

    @dg.multi_asset_check(name=f"{pipeline.region}__footprint_checks", specs=specs)
    def footprint_checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        keys = _keys_of(context, pipeline)
        found = inspect_footprints(pipeline, keys)
        for name in FOOTPRINT_CHECKS:
            yield _result(found, asset, name, keys)

    return footprint_checks


def build_table_check(pipeline: Pipeline) -> dg.AssetChecksDefinition:
    """The check of ``footprint_table``."""
    asset = dg.AssetKey([pipeline.region, "footprint_table"])

    @dg.asset_check(
        asset=asset,
        name="rows_match_lake",
        description="A partition has as many rows in the table as in its GeoParquet file.",
    )
    def rows_match_lake(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        keys = _keys_of(context, pipeline)
        return _result(inspect_table(pipeline, keys), asset, "rows_match_lake", keys)

    return rows_match_lake


def _keys_of(context: dg.AssetCheckExecutionContext, pipeline: Pipeline) -> list[PartitionKey]:
    if context.has_partition_key:
        return [parse_key(context.partition_key)]
    return recent_keys(pipeline)


def _result(
    found: Findings, asset: dg.AssetKey, name: str, keys: Sequence[PartitionKey]
) -> dg.AssetCheckResult:
    faults = found.faults.get(name, [])
    window = f"{keys[0]} to {keys[-1]}" if keys else "no day is covered yet"
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=name,
        passed=not faults,
        metadata={
            "window": window,
            "partitions": found.keys,
            "rows": found.rows,
            "not materialized": found.absent,
            "faults": dg.MetadataValue.json(faults[:50]),
        },
    )
