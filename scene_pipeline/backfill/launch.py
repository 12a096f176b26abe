"""Launching a plan: keys reserved, runs created, then a row on Dagster's Backfills page.

Every launcher takes the same steps, and each can be the last one before a crash:

1. claim the chosen keys under the launch's id, look again, and plan what is still wanted;
2. store the plan;
3. create its runs (Dagster writes a planned event a key, which shows the key as in progress);
4. add the row, mark the plan as recorded, release the claims.

What a dead launcher left is finished by `heal_plans` of the next launch, or by the sensor.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import dagster as dg

from scene_pipeline.backfill.assets import TrackedAsset
from scene_pipeline.backfill.claims import Claims
from scene_pipeline.backfill.dagster_internals import (
    BulkActionStatus,
    Workspace,
    add_backfill_row,
    create_planned_run,
    load_job,
    plan_run_id,
    read_latest_positions,
    report_planned,
)
from scene_pipeline.backfill.key_states import Site, asset_key_of, has_ended, read_key_states
from scene_pipeline.backfill.plan import Plan, plan_runs, require_fresh
from scene_pipeline.backfill.plan_store import (
    Launcher,
    StoredPlan,
    mark_recorded,
    read_open_plans,
    read_plan,
    take_over,
    write_plan,
)
from scene_pipeline.backfill.policies import Policy
from scene_pipeline.backfill.selection import Choice, Selection, choose_keys
from scene_pipeline.backfill.tags import BACKFILL_TAG, LAUNCH_TAG, RUN_TAG
from scene_pipeline.scenes.keys import PartitionKey

__all__ = [
    "DEFAULT_PLACE",
    "LAUNCH_LEASE_S",
    "Place",
    "adopt_plan",
    "complete_planned_events",
    "find_created_runs",
    "heal_plans",
    "launch_claims",
    "new_launch_id",
    "record_plan",
    "release_launch",
    "reserve_keys",
    "reserve_plan",
    "submit_plan",
]

# Long enough to create the runs of a plan (5 to 8 ms a key), short enough to wait for.
LAUNCH_LEASE_S = 300.0

Advance = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Names of the code location and repository under which Dagster's pages show the jobs."""

    location: str = "scene_pipeline"
    repository: str = "__repository__"


DEFAULT_PLACE = Place()


def new_launch_id() -> str:
    """The id that links the waves of one launch."""
    return f"launch-{uuid.uuid4().hex[:10]}"


def launch_claims(site: Site, asset: TrackedAsset, launch_id: str) -> Claims:
    """The claims of a launch on the keys of an asset; its runs inherit them."""
    return Claims(
        site.engine,
        region=site.definition.region,
        asset=asset.name,
        run_id=launch_id,
        lease_s=LAUNCH_LEASE_S,
        run_ended=lambda run_id: has_ended(site.instance, run_id),
    )


def reserve_keys(
    site: Site,
    asset: TrackedAsset,
    policy: Policy,
    *,
    keys: Sequence[PartitionKey],
    selection: Selection,
    launcher: Launcher,
    launch_id: str,
    now: datetime,
) -> tuple[StoredPlan | None, Choice]:
    """Choose among ``keys`` by their state, claim them, and store the plan of their runs.

    The plan is None where nothing is wanted; the choice says why. A key that another launcher
    takes between the two looks is left to it.
    """

    def look(at: Iterable[PartitionKey], among: Selection) -> Choice:
        states = read_key_states(site, asset, keys=at, now=now, launch_id=launch_id)
        return choose_keys(states, among)

    choice = look(keys, selection)
    claims = launch_claims(site, asset, launch_id)
    taken = claims.take([state.key for state in choice.chosen])
    # In the order chosen: with a limit the same keys come first again.
    again = look((s.key for s in choice.chosen if s.key in taken), replace(selection, limit=None))
    claims.release(taken - {state.key for state in again.chosen})
    choice = replace(choice, chosen=again.chosen)
    if not choice.chosen:
        return None, choice
    plan = plan_runs(choice, site.definition, asset=asset, policy=policy, order=selection.order)
    return _store(site, plan, launcher=launcher, launch_id=launch_id, now=now), choice


def reserve_plan(
    site: Site, plan: Plan, *, launcher: Launcher, launch_id: str, now: datetime
) -> StoredPlan:
    """Claim the keys of a plan that was made earlier, and store it.

    Raises `StalePlanError` where definition, raw data or a key have moved since.
    """
    claims = launch_claims(site, plan.asset, launch_id)
    keys = [planned.key for planned in plan.keys]
    claims.take(keys)
    try:
        states = read_key_states(site, plan.asset, keys=keys, now=now)
        require_fresh(plan, site.definition, states)
    except Exception:
        claims.release(keys)
        raise
    return _store(site, plan, launcher=launcher, launch_id=launch_id, now=now)


def _store(
    site: Site, plan: Plan, *, launcher: Launcher, launch_id: str, now: datetime
) -> StoredPlan:
    write_plan(site.engine, plan, launch_id=launch_id, launcher=launcher, at=now)
    stored = read_plan(site.engine, region=plan.region, plan_id=plan.plan_id)
    if stored is None:
        raise LookupError(f"plan {plan.plan_id} was stored and is gone")
    if stored.launch_id != launch_id:
        # The same wish was launched before; its own launch goes on with it.
        release_launch(site, plan, launch_id)
    return stored


def find_created_runs(instance: dg.DagsterInstance, plan: Plan) -> dict[int, dg.DagsterRun]:
    """The plan's runs that exist, by their index from 1."""
    runs = instance.get_runs(dg.RunsFilter(tags={BACKFILL_TAG: plan.plan_id}))
    return {int(run.tags[RUN_TAG].partition("/")[0]): run for run in runs if RUN_TAG in run.tags}


def complete_planned_events(site: Site, plan: Plan, created: Mapping[int, dg.DagsterRun]) -> None:
    """Give each key of a live run its planned event, if a killed daemon did not get that far.

    Without one the key would be taken for missing once the launch gives its claim up.
    """
    asset_key = asset_key_of(site.definition, plan.asset.name)
    seen = {str(planned.key): planned.seen for planned in plan.keys}
    planned = read_latest_positions(site.instance, asset_key, "planned", list(seen))
    for index, run in created.items():
        names = map(str, plan.rectangles[index - 1])
        lacking = [name for name in names if planned.get(name, 0) <= seen[name]]
        if not run.is_finished:
            report_planned(site.instance, run, asset_key, lacking)


def submit_plan(
    site: Site, workspace: Workspace, stored: StoredPlan, *, advance: Advance | None = None
) -> None:
    """Create the runs that do not exist yet and hand them to the daemon, then record the plan.

    Calling it again, after a crash at any point, creates nothing twice.
    """
    plan = stored.plan
    total = len(plan.rectangles)
    claims = launch_claims(site, plan.asset, stored.launch_id)
    with claims.keep(planned.key for planned in plan.keys):
        job = load_job(site.instance, workspace, plan.policy.job_name, region=plan.region)
        for run in plan.runs:
            create_planned_run(
                site.instance,
                workspace,
                job,
                run_id=plan_run_id(plan.plan_id, run.index),
                tags={**run.tags, LAUNCH_TAG: stored.launch_id},
            )
            if advance is not None:
                advance(run.index, f"of {total} runs created")
        record_plan(site, stored, place=Place(*job.place))


def record_plan(
    site: Site,
    stored: StoredPlan,
    *,
    place: Place,
    status: BulkActionStatus = BulkActionStatus.REQUESTED,
) -> None:
    """Add the plan's row to the Backfills page and mark it as recorded.

    The runs must exist: a row without unfinished runs is completed at the daemon's first look.
    """
    plan = stored.plan
    first = min(planned.key.day for planned in plan.keys)
    last = max(planned.key.day for planned in plan.keys)
    days = str(first) if first == last else f"{first} to {last}"
    add_backfill_row(
        site.instance,
        backfill_id=plan.plan_id,
        status=status,
        title=f"{plan.asset.name} of {plan.region}: {len(plan.keys)} keys of {days}",
        tags={LAUNCH_TAG: stored.launch_id, "scene_pipeline/launcher": stored.launcher.kind},
        job_name=plan.policy.job_name,
        location_name=place.location,
        repository_name=place.repository,
        asset_key=asset_key_of(site.definition, plan.asset.name),
        keys=[str(planned.key) for planned in plan.keys],
        started_at=stored.created_at,
    )
    mark_recorded(site.engine, stored, at=datetime.now(UTC))


def release_launch(site: Site, plan: Plan, launch_id: str) -> None:
    """Release the launch's claims on the plan's keys: their planned events speak for them now."""
    launch_claims(site, plan.asset, launch_id).release(planned.key for planned in plan.keys)


def adopt_plan(site: Site, stored: StoredPlan, *, launcher: Launcher) -> bool:
    """Take over the plan of a command line that died on the way; False where it lives, or another
    was first.

    A run that it created and never queued goes: not every key may have its planned event, and
    whoever looks would take such a key for missing.
    """
    dead = stored.launcher.kind == "cli" and stored.launcher.is_dead
    if not dead or not take_over(site.engine, stored, launcher=launcher):
        return False
    # By their ids: on PostgreSQL a run may even lack its tags.
    ids = [plan_run_id(stored.plan.plan_id, run.index) for run in stored.plan.runs]
    unqueued = dg.RunsFilter(run_ids=ids, statuses=[dg.DagsterRunStatus.NOT_STARTED])
    for run in site.instance.get_runs(unqueued):
        site.instance.delete_run(run.run_id)
    return True


def heal_plans(site: Site, workspace: Workspace, *, launcher: Launcher) -> list[StoredPlan]:
    """Finish the launches of command lines that died on the way; returns their plans."""
    healed: list[StoredPlan] = []
    for stored in read_open_plans(site.engine, region=site.definition.region):
        if adopt_plan(site, stored, launcher=launcher):
            submit_plan(site, workspace, stored)
            healed.append(stored)
    return healed
