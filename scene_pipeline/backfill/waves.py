"""A launch over several assets: a wave an asset, each with the keys that it lacks itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

import dagster as dg

from scene_pipeline.backfill.assets import TrackedAsset
from scene_pipeline.backfill.dagster_internals import Workspace, read_latest_positions
from scene_pipeline.backfill.diagnose import Account, diagnose_backfill
from scene_pipeline.backfill.key_states import Site, asset_key_of
from scene_pipeline.backfill.launch import (
    DEFAULT_PLACE,
    Advance,
    Place,
    find_created_runs,
    heal_plans,
    new_launch_id,
    reserve_keys,
    reserve_plan,
    submit_plan,
)
from scene_pipeline.backfill.local import end_dead_local_plans, execute_plan
from scene_pipeline.backfill.plan import parse_plan
from scene_pipeline.backfill.plan_store import (
    Launcher,
    StoredPlan,
    launcher_here,
    read_launch,
    read_plan,
)
from scene_pipeline.backfill.policies import Policy
from scene_pipeline.backfill.selection import LAUNCHABLE, Choice, Selection
from scene_pipeline.scenes.keys import PartitionKey

__all__ = [
    "DaemonExecutor",
    "Executor",
    "LocalExecutor",
    "Wave",
    "launch_saved",
    "launch_waves",
    "retry_undone",
    "wait_for_plan",
]

_POLL_S = 1.0


class Executor(Protocol):
    """How the runs of a plan are executed."""

    @property
    def launcher(self) -> Launcher:
        """Who is responsible for what it launches."""

    def heal(self, site: Site) -> list[StoredPlan]:
        """Finish or close what dead launchers of this kind left."""

    def execute(self, site: Site, stored: StoredPlan, advance: Advance) -> None:
        """Start the plan's runs; returns when they have ended, or at once if it does not wait."""


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Runs in this process, one after the other."""

    find_job: Callable[[str], dg.JobDefinition]
    place: Place = DEFAULT_PLACE

    @property
    def launcher(self) -> Launcher:
        """This process; where it is killed, the next launch closes its plans."""
        return launcher_here("local")

    def heal(self, site: Site) -> list[StoredPlan]:
        """Close plans of killed processes."""
        return end_dead_local_plans(site, place=self.place)

    def execute(self, site: Site, stored: StoredPlan, advance: Advance) -> None:
        """Execute every run."""
        execute_plan(site, stored, find_job=self.find_job, advance=advance, place=self.place)


@dataclass(frozen=True, slots=True)
class DaemonExecutor:
    """Runs in the daemon's queue."""

    workspace: Workspace
    wait: bool = True

    @property
    def launcher(self) -> Launcher:
        """This process, until every run of the plan exists."""
        return launcher_here("cli")

    def heal(self, site: Site) -> list[StoredPlan]:
        """Create the runs that killed command lines still owed."""
        return heal_plans(site, self.workspace, launcher=self.launcher)

    def execute(self, site: Site, stored: StoredPlan, advance: Advance) -> None:
        """Queue every run; then wait for them, if asked to."""
        submit_plan(site, self.workspace, stored, advance=None if self.wait else advance)
        if self.wait:
            wait_for_plan(site, stored, advance)


@dataclass(frozen=True, slots=True)
class Wave:
    """What one asset's part of a launch came to; no plan where nothing was wanted.

    ``held``: keys left out because a run of the launch's ``held_by`` still makes what they read.
    """

    asset: TrackedAsset
    choice: Choice
    stored: StoredPlan | None = None
    account: Account | None = None
    held: tuple[PartitionKey, ...] = ()
    held_by: str = ""


def launch_waves(
    site: Site,
    executor: Executor,
    *,
    policies: Mapping[TrackedAsset, Policy],
    keys: Mapping[TrackedAsset, Sequence[PartitionKey]],
    selection: Selection,
    advance: Callable[[TrackedAsset, int, int, str], None],
    following: Collection[TrackedAsset] = (),
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[Wave]:
    """Launch each asset of ``policies`` in turn; a wave starts when the one before has ended.

    ``advance`` gets the asset, keys done, keys planned and a few words. Assets that are
    ``following`` take what an earlier wave made, and their own failed keys, no more. Where the
    executor does not wait, a later wave leaves out the keys of an earlier one: it would read what
    is about to be replaced.
    """
    executor.heal(site)
    launch_id = new_launch_id()
    waves: list[Wave] = []
    made: frozenset[PartitionKey] = frozenset()
    busy: set[PartitionKey] = set()
    busy_with = ""
    for asset in sorted(policies, key=lambda each: each.wave):
        held = tuple(key for key in keys[asset] if key in busy)
        stored, choice = reserve_keys(
            site,
            asset,
            policies[asset],
            keys=[key for key in keys[asset] if key not in busy],
            selection=replace(
                selection,
                follow=made,
                states=frozenset({"failed"}) if asset in following else selection.states,
            ),
            launcher=executor.launcher,
            launch_id=launch_id,
            now=clock(),
        )
        if stored is None:
            waves.append(Wave(asset, choice, held=held, held_by=busy_with))
            continue
        total = len(stored.plan.keys)

        def report(done: int, text: str, *, asset: TrackedAsset = asset, of: int = total) -> None:
            advance(asset, done, of, text)

        executor.execute(site, stored, report)
        (account,) = diagnose_backfill(site, stored.plan.plan_id, now=clock())
        waves.append(Wave(asset, choice, stored, account, held, busy_with))
        busy |= set(account.by_outcome["in progress"])
        busy_with = stored.plan.plan_id
        made = frozenset(account.by_outcome["done"])
    return waves


def launch_saved(
    site: Site,
    executor: Executor,
    *,
    document: str,
    advance: Callable[[TrackedAsset, int, int, str], None],
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[Wave]:
    """Launch a plan that was saved earlier; raises `StalePlanError` if it means something else."""
    plan = parse_plan(document)
    executor.heal(site)
    stored = reserve_plan(
        site, plan, launcher=executor.launcher, launch_id=new_launch_id(), now=clock()
    )
    executor.execute(
        site, stored, lambda done, text: advance(plan.asset, done, len(plan.keys), text)
    )
    (account,) = diagnose_backfill(site, plan.plan_id, now=clock())
    return [Wave(plan.asset, Choice((), plan.trimmed), stored, account)]


def _find_following(site: Site, backfill_id: str) -> set[TrackedAsset]:
    """Assets of the later waves of the launch that a plan belongs to; none for other backfills."""
    region = site.definition.region
    stored = read_plan(site.engine, region=region, plan_id=backfill_id)
    if stored is None:
        return set()
    linked = read_launch(site.engine, region=region, launch_id=stored.launch_id)
    return {each.plan.asset for each in linked if each.plan.asset.wave > stored.plan.asset.wave}


def retry_undone(
    site: Site,
    executor: Executor,
    *,
    backfill_id: str,
    policies: Mapping[TrackedAsset, Policy],
    advance: Callable[[TrackedAsset, int, int, str], None],
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[Wave]:
    """Launch exactly the failed and missing keys of a backfill, whatever their state was.

    The later waves of the same launch follow with what the retried keys now let them do.
    """
    undone = {
        account.asset: account.undone
        for account in diagnose_backfill(site, backfill_id, now=clock())
    }
    following = _find_following(site, backfill_id)
    keys: dict[TrackedAsset, Sequence[PartitionKey]] = {
        **undone,
        **{asset: [key for keys in undone.values() for key in keys] for asset in following},
    }
    return launch_waves(
        site,
        executor,
        policies={asset: policies[asset] for asset in keys},
        keys=keys,
        selection=Selection(states=frozenset(LAUNCHABLE), ahead=True),
        advance=advance,
        following=following,
        clock=clock,
    )


def wait_for_plan(site: Site, stored: StoredPlan, advance: Advance) -> None:
    """Wait until every run of the plan has ended; ``advance`` gets the keys made so far."""
    plan = stored.plan
    asset_key = asset_key_of(site.definition, plan.asset.name)
    seen = {str(planned.key): planned.seen for planned in plan.keys}
    while True:
        begun = time.monotonic()
        runs = find_created_runs(site.instance, plan).values()
        made = read_latest_positions(site.instance, asset_key, "materialized", list(seen))
        ended = sum(run.is_finished for run in runs)
        done = sum(position > seen[name] for name, position in made.items())
        advance(done, f"{ended} of {len(plan.rectangles)} runs ended")
        if ended == len(plan.rectangles):
            return
        # Looking at many runs takes its time, which is the runs' too.
        time.sleep(max(_POLL_S, 10 * (time.monotonic() - begun)))
