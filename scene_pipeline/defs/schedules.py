"""Schedules: ingest by the hour, a rescan by night, then the newest covered days.

`build_schedule_from_partitioned_job` is not used: its run keys are remembered for ever, one a
partition, and it knows neither the frontier nor what is done.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from scene_pipeline.backfill.assets import FOOTPRINTS
from scene_pipeline.backfill.dagster_internals import read_latest_positions
from scene_pipeline.backfill.key_states import Site, read_key_states
from scene_pipeline.backfill.tags import (
    KEYS_TAG,
    PRIORITY_TAG,
    RANGE_END_TAG,
    RANGE_START_TAG,
    digest_keys,
)
from scene_pipeline.defs.pipeline import Pipeline

__all__ = ["DAYS_A_RUN", "build_schedules", "day_ranges", "stale_days"]

# Of ``daily_coverage``, whose runs hold the rows of all their days at once.
DAYS_A_RUN = 7

# Above the queue's default of 0, and above every backfill.
DAILY_PRIORITY = "10"


def build_schedules(pipeline: Pipeline) -> list[dg.ScheduleDefinition]:
    """All schedules of the region; stopped until someone starts them."""
    return [
        *_build_plain(pipeline),
        _build_daily(pipeline),
        _build_coverage(pipeline),
    ]


def _build_plain(pipeline: Pipeline) -> Iterator[dg.ScheduleDefinition]:
    yield dg.ScheduleDefinition(
        name="hourly_ingest",
        job_name="ingest_job",
        cron_schedule="5 * * * *",
        execution_timezone="UTC",
        tags={PRIORITY_TAG: DAILY_PRIORITY},
        description="Reads every stream on from its checkpoint and publishes the frontier.",
    )
    op = f"{pipeline.region}__ingest_frontier"
    yield dg.ScheduleDefinition(
        name="nightly_rescan",
        job_name="ingest_job",
        cron_schedule="35 2 * * *",
        execution_timezone="UTC",
        run_config={"ops": {op: {"config": {"lane": "rescan"}}}},
        description="Reads the trailing window of every stream again: late, newer and deleted "
        "Items reopen their partitions.",
    )
    yield dg.ScheduleDefinition(
        name="daily_checks",
        job_name="checks_job",
        cron_schedule="30 7 * * *",
        execution_timezone="UTC",
        description="Holds the files and rows of the newest covered days to every check.",
    )


def _build_daily(pipeline: Pipeline) -> dg.ScheduleDefinition:
    @dg.schedule(
        name="daily_scenes",
        job_name="daily_scenes_job",
        cron_schedule="30 5 * * *",
        execution_timezone="UTC",
        description="Starts the newest covered day, and what is missing or changed of the days "
        "just before it: one run a tile. It skips with the two days that it compared.",
    )
    def daily_scenes(
        context: dg.ScheduleEvaluationContext,
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        now = datetime.now(UTC)
        yesterday = now.date() - timedelta(days=1)
        window = pipeline.recent_days()
        if window is None:
            yield dg.SkipReason(
                f"the newest full day is {yesterday}, the frontier covers no day of the region yet"
            )
            return
        first, last = window
        states = read_key_states(
            Site(context.instance, pipeline.state, pipeline.definition),
            FOOTPRINTS,
            keys=pipeline.definition.iter_window(first, last),
            now=now,
        )
        wanted = [state for state in states.values() if state.state in {"missing", "changed"}]
        if not wanted:
            yield dg.SkipReason(
                f"the newest full day is {yesterday}, the newest covered day {last}: "
                f"nothing is missing or changed from {first} on"
            )
            return
        # Newest first: where the limit cuts, the next tick takes the older days.
        wanted.sort(key=lambda state: state.key.day, reverse=True)
        for state in wanted[: pipeline.settings.sensor.max_keys_per_tick]:
            yield dg.RunRequest(
                run_key=f"{state.key}@{state.raw_seq}",
                partition_key=str(state.key),
                tags={PRIORITY_TAG: DAILY_PRIORITY, KEYS_TAG: digest_keys([state.key])},
            )

    return daily_scenes


def _build_coverage(pipeline: Pipeline) -> dg.ScheduleDefinition:
    @dg.schedule(
        name="hourly_coverage",
        job_name="coverage_job",
        cron_schedule="50 * * * *",
        execution_timezone="UTC",
        description="Measures the coverage of recent days whose footprints changed since.",
    )
    def hourly_coverage(
        context: dg.ScheduleEvaluationContext,
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        window = pipeline.recent_days()
        days = stale_days(context.instance, pipeline, window) if window else []
        if not days:
            looked_at = f"{window[0]} to {window[1]}" if window else "no day is covered yet"
            yield dg.SkipReason(f"no footprints are newer than their day's coverage: {looked_at}")
        for _, first, last in day_ranges(days):
            yield dg.RunRequest(
                run_key=f"{first}..{last}",
                tags={RANGE_START_TAG: first.isoformat(), RANGE_END_TAG: last.isoformat()},
            )

    return hourly_coverage


def stale_days(
    instance: dg.DagsterInstance, pipeline: Pipeline, window: tuple[date, date]
) -> list[date]:
    """Days of ``window`` with footprints newer than the last try at their coverage.

    A try that failed is not repeated until footprints change: it stays visible as failed.
    """
    keys = [str(key) for key in pipeline.definition.iter_window(*window)]
    days = sorted({key.partition("|")[0] for key in keys})
    footprints = dg.AssetKey([pipeline.region, "scene_footprints"])
    coverage = dg.AssetKey([pipeline.region, "daily_coverage"])
    built = read_latest_positions(instance, footprints, "materialized", keys)
    tried = read_latest_positions(instance, coverage, "planned", days)
    newest: dict[str, int] = {}
    for key, position in built.items():
        day = key.partition("|")[0]
        newest[day] = max(position, newest.get(day, 0))
    return [date.fromisoformat(day) for day in days if newest.get(day, 0) > tried.get(day, 0)]


def day_ranges(days: Sequence[date]) -> Iterator[tuple[int, date, date]]:
    """Neighbouring ``days`` (sorted) as ranges of at most `DAYS_A_RUN`, both ends included.

    Each comes with the number of days up to and with it.
    """
    start = 0
    for position, day in enumerate(days):
        ends = position + 1 == len(days) or days[position + 1] != day + timedelta(days=1)
        if ends or position + 1 - start == DAYS_A_RUN:
            yield position + 1, days[start], day
            start = position + 1
