"""The sensor that keeps covered days built: thin over `backfill.ticks`.

No postponed annotations here: Dagster reads the type of ``context`` as an object.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from scene_pipeline.backfill.key_states import Site
from scene_pipeline.backfill.launch import Place
from scene_pipeline.backfill.ticks import Requested, evaluate_tick, parse_cursor
from scene_pipeline.defs.pipeline import Pipeline

__all__ = ["build_scenes_sensor"]

INTERVAL_S = 30


def build_scenes_sensor(
    pipeline: Pipeline,
    *,
    jobs: Sequence[Any],
    running: bool = False,
    interval_s: int = INTERVAL_S,
) -> dg.SensorDefinition:
    """Launches missing and changed keys of covered days, and relaunches failed ones.

    ``jobs`` are those of the policies and the table. ``running``: on without a click.
    """

    @dg.sensor(
        name="scenes_sensor",
        jobs=list(jobs),
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING
        if running
        else dg.DefaultSensorStatus.STOPPED,
        description=(
            "Reads the published frontier, then launches what covered days and re-opened keys "
            "lack: footprints first, then the table. Failed keys are relaunched a few times with "
            "a growing pause, then left visible. Also finishes launches that were killed, and "
            "relaunches keys that Dagster's own backfills lost."
        ),
    )
    def scenes_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        tick = evaluate_tick(
            Site(context.instance, pipeline.state, pipeline.definition),
            cursor=parse_cursor(context.cursor),
            policies=pipeline.settings.policies,
            bounds=pipeline.settings.sensor,
            now=datetime.now(UTC),
            place=_place_of(context),
        )
        for warning in tick.warnings:
            context.log.warning(warning)
        context.log.info(tick.summary)
        return dg.SensorResult(
            run_requests=[_run_request(requested) for requested in tick.requested],
            skip_reason=None if tick.requested else dg.SkipReason(tick.summary),
            cursor=str(tick.cursor),
        )

    return scenes_sensor


def _run_request(requested: Requested) -> dg.RunRequest:
    return dg.RunRequest(
        job_name=requested.job_name, run_key=requested.run_key, tags=dict(requested.tags)
    )


def _place_of(context: dg.SensorEvaluationContext) -> Place:
    origin = context.code_location_origin
    default = Place()
    return Place(
        origin.location_name if origin else default.location,
        context.repository_name or default.repository,
    )
