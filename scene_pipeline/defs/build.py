"""All Dagster objects of one region, as a function of its settings."""

from __future__ import annotations

import warnings
from typing import Any

import dagster as dg

from scene_pipeline.backfill.policies import policies_of
from scene_pipeline.defs.assets import (
    build_coverage,
    build_footprints,
    build_frontier,
    build_raw_scenes,
    build_table,
    under_policy,
)
from scene_pipeline.defs.io_managers import GeoParquetIOManager, TableIOManager
from scene_pipeline.defs.jobs import build_daily_job, build_policy_job
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.settings import Settings

__all__ = ["build_definitions"]


def build_definitions(settings: Settings) -> dg.Definitions:
    """Assets, jobs, schedules and sensors of ``settings.region``; opens no database or file."""
    with warnings.catch_warnings():
        # Backfill policies are "beta" since 2023; the exact pin and the tests stand for them.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return _build(settings)


def _build(settings: Settings) -> dg.Definitions:
    pipeline = Pipeline(settings)
    policies = policies_of(settings.policies)
    resources: dict[str, Any] = {
        "geoparquet_io": GeoParquetIOManager(pipeline),
        "table_io": TableIOManager(pipeline),
    }
    footprints = build_footprints(pipeline)
    table = build_table(pipeline)
    coverage = under_policy(build_coverage(pipeline), 1)
    frontier = build_frontier(pipeline)
    batch = policies["batched"].max_keys
    return dg.Definitions(
        assets=[
            build_raw_scenes(pipeline),
            frontier,
            under_policy(footprints, batch),
            # Twice the keys: under equal policies Dagster's own backfill of both assets puts
            # both steps into one run, where the table gets none of a batch with one bad key.
            under_policy(table, 2 * batch),
            coverage,
        ],
        resources=resources,
        executor=dg.in_process_executor,
        jobs=[
            *(build_policy_job(footprints, p, resources=resources) for p in policies.values()),
            build_daily_job(footprints, table, resources=resources),
            dg.define_asset_job("footprint_table_job", [table.key]),
            dg.define_asset_job("coverage_job", [coverage.key]),
            dg.define_asset_job("ingest_job", [frontier.key]),
        ],
    )
