"""Executing a plan in this process, where no daemon runs: the demo, tests, ``--local``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import dagster as dg

from scene_pipeline.backfill.claims import read_claims
from scene_pipeline.backfill.dagster_internals import BulkActionStatus, plan_run_id
from scene_pipeline.backfill.key_states import Site
from scene_pipeline.backfill.launch import (
    DEFAULT_PLACE,
    LAUNCH_LEASE_S,
    Place,
    find_created_runs,
    launch_claims,
    record_plan,
    release_launch,
)
from scene_pipeline.backfill.plan_store import StoredPlan, forget_plan, read_open_plans
from scene_pipeline.backfill.tags import LAUNCH_TAG, PARTITION_TAG

__all__ = ["end_dead_local_plans", "execute_plan"]

Advance = Callable[[int, str], None]

# Dagster's console logger prints every event; failures are told by the account at the end.
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def execute_plan(
    site: Site,
    stored: StoredPlan,
    *,
    find_job: Callable[[str], dg.JobDefinition],
    advance: Advance | None = None,
    place: Place = DEFAULT_PLACE,
) -> None:
    """Run the plan's runs one after the other; a failed run does not stop the next one.

    The row on the Backfills page is added when all is over: a row before that would be the
    daemon's to close.
    """
    plan = stored.plan
    job = find_job(plan.policy.job_name)
    done = 0
    status = BulkActionStatus.CANCELED
    claims = launch_claims(site, plan.asset, stored.launch_id)
    try:
        with claims.keep(planned.key for planned in plan.keys):
            succeeded = True
            for run in plan.runs:
                tags = {**run.tags, LAUNCH_TAG: stored.launch_id}
                result = job.execute_in_process(
                    run_config=_QUIET,
                    instance=site.instance,
                    partition_key=tags.pop(PARTITION_TAG, None),
                    tags=tags,
                    run_id=plan_run_id(plan.plan_id, run.index),
                    raise_on_error=False,
                )
                succeeded = succeeded and result.success
                done += run.rectangle.size
                if advance is not None:
                    advance(done, f"run {run.index} of {len(plan.rectangles)}")
        status = (
            BulkActionStatus.COMPLETED_SUCCESS if succeeded else BulkActionStatus.COMPLETED_FAILED
        )
    finally:
        record_plan(site, stored, place=place, status=status)


def end_dead_local_plans(site: Site, *, place: Place = DEFAULT_PLACE) -> list[StoredPlan]:
    """Close plans whose process was killed, so that their keys are `failed`, not in progress.

    A run of a killed process would stay started for ever: nothing else watches it.
    """
    ended: list[StoredPlan] = []
    for stored in read_open_plans(site.engine, region=site.definition.region):
        if stored.launcher.kind != "local" or not (
            stored.launcher.is_dead or _is_silent(site, stored)
        ):
            continue
        runs = find_created_runs(site.instance, stored.plan)
        for run in runs.values():
            if not run.is_finished:
                site.instance.report_run_failed(run, "the process that executed it was killed")
        release_launch(site, stored.plan, stored.launch_id)
        if runs:
            record_plan(site, stored, place=place, status=BulkActionStatus.COMPLETED_FAILED)
        else:
            forget_plan(site.engine, stored)
        ended.append(stored)
    return ended


def _is_silent(site: Site, stored: StoredPlan) -> bool:
    """Whether neither the launch nor a run of it holds a live claim: a living one renews them."""
    now = datetime.now(UTC)
    if (now - stored.created_at).total_seconds() < LAUNCH_LEASE_S:
        return False
    days = [planned.key.day for planned in stored.plan.keys]
    live = read_claims(
        site.engine,
        region=stored.plan.region,
        asset=stored.plan.asset.name,
        first=min(days),
        last=max(days),
        at=now,
    )
    holders = {
        stored.launch_id,
        *(run.run_id for run in find_created_runs(site.instance, stored.plan).values()),
    }
    return all(claim.run_id not in holders for claim in live.values())
