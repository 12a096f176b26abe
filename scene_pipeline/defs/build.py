"""All Dagster objects of one region, as a function of its settings."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg

from scene_pipeline.backfill.policies import policies_of
from scene_pipeline.defs.alerts import build_failure_webhook
from scene_pipeline.defs.assets import (
    build_coverage,
    build_footprints,
    build_frontier,
    build_raw_scenes,
    build_table,
    under_policy,
)
from scene_pipeline.defs.checks import build_footprint_checks, build_table_check
from scene_pipeline.defs.io_managers import GeoParquetIOManager, TableIOManager
from scene_pipeline.defs.jobs import build_daily_job, build_plain_jobs, build_policy_jobs
from scene_pipeline.defs.partitions import warn_of_size
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.defs.schedules import DAYS_A_RUN, build_schedules
from scene_pipeline.defs.sensors import build_scenes_sensor
from scene_pipeline.settings import Settings, read_settings

__all__ = ["build_definitions", "build_range_definitions", "load_region"]


def load_region(config: Path) -> dg.Definitions:
    """The region of that settings file: what a code location of a workspace of several loads."""
    return build_definitions(read_settings(config=config))


def build_definitions(settings: Settings) -> dg.Definitions:
    """Assets, jobs, schedules and sensors of ``settings.region``; opens no database or file."""
    with warnings.catch_warnings():
        # Backfill policies are "beta" since 2023; the exact pin and the tests stand for them.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return _build(settings)


def build_range_definitions(settings: Settings) -> dg.Definitions:
    """Footprints and table under Dagster's single-run policy.

    `dagster asset materialize --partition-range` refuses assets of any other; the daemon's
    definitions keep theirs, which bound what one run takes.
    """
    pipeline = Pipeline(settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.Definitions(
            assets=[
                asset.with_attributes(backfill_policy=dg.BackfillPolicy.single_run())
                for asset in (build_footprints(pipeline), build_table(pipeline))
            ],
            resources=_build_resources(pipeline),
            executor=dg.in_process_executor,
        )


def _build_resources(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "geoparquet_io": GeoParquetIOManager(pipeline),
        "table_io": TableIOManager(pipeline),
    }


def _build(settings: Settings) -> dg.Definitions:
    pipeline = Pipeline(settings)
    warn_of_size(pipeline.definition, today=datetime.now(UTC).date())
    policies = policies_of(settings.policies)
    resources = _build_resources(pipeline)
    footprints = build_footprints(pipeline)
    table = build_table(pipeline)
    coverage = under_policy(build_coverage(pipeline), DAYS_A_RUN)
    frontier = build_frontier(pipeline)
    footprint_checks = build_footprint_checks(pipeline)
    table_check = build_table_check(pipeline)
    policy_jobs = build_policy_jobs(
        *(footprints, footprint_checks, policies),
        resources=resources,
        region=settings.region,
        sizes=settings.policies.resources,
    )
    plain_jobs = build_plain_jobs(frontier, table, coverage, region=settings.region)
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
        asset_checks=[footprint_checks, table_check],
        resources=resources,
        executor=dg.in_process_executor,
        jobs=[
            *policy_jobs,
            build_daily_job(
                [footprints, table], [footprint_checks, table_check], resources, settings.region
            ),
            *plain_jobs.values(),
        ],
        schedules=build_schedules(pipeline),
        sensors=[
            build_scenes_sensor(pipeline, jobs=[*policy_jobs, plain_jobs["footprint_table_job"]]),
            *build_failure_webhook(settings),
        ],
    )
