"""A launch over several assets: a wave an asset, each with the keys that it lacks itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
    submit_plan,
)
from scene_pipeline.backfill.local import end_dead_local_plans, execute_plan
from scene_pipeline.backfill.plan_store import Launcher, StoredPlan, launcher_here
from scene_pipeline.backfill.policies import Policy
from scene_pipeline.backfill.selection import Choice, Selection
from scene_pipeline.scenes.keys import PartitionKey

__all__ = ["DaemonExecutor", "Executor", "LocalExecutor", "Wave", "launch_waves", "wait_for_plan"]

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
    """What one asset's part of a launch came to; no plan where nothing was wanted."""

    asset: TrackedAsset
    choice: Choice
    stored: StoredPlan | None = None
    account: Account | None = None


def launch_waves(
    site: Site,
    executor: Executor,
    *,
    policies: Mapping[TrackedAsset, Policy],
    keys: Mapping[TrackedAsset, Sequence[PartitionKey]],
    selection: Selection,
    advance: Callable[[TrackedAsset, int, int, str], None],
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[Wave]:
    """Launch each asset of ``policies`` in turn; a wave starts when the one before has ended.

    ``advance`` gets the asset, keys done, keys planned and a few words. Without waiting there is
    one wave: what the next one can do is not known before it.
    """
    executor.heal(site)
    launch_id = new_launch_id()
    waves: list[Wave] = []
    made: frozenset[PartitionKey] = frozenset()
    for asset in sorted(policies, key=lambda each: each.wave):
        stored, choice = reserve_keys(
            site,
            asset,
            policies[asset],
            keys=keys[asset],
            selection=replace(selection, follow=made),
            launcher=executor.launcher,
            launch_id=launch_id,
            now=clock(),
        )
        if stored is None:
            waves.append(Wave(asset, choice))
            continue
        total = len(stored.plan.keys)

        def report(done: int, text: str, *, asset: TrackedAsset = asset, of: int = total) -> None:
            advance(asset, done, of, text)

        executor.execute(site, stored, report)
        (account,) = diagnose_backfill(site, stored.plan.plan_id, now=clock())
        waves.append(Wave(asset, choice, stored, account))
        if account.by_outcome["in progress"]:
            break
        made = frozenset(account.by_outcome["done"])
    return waves


def wait_for_plan(site: Site, stored: StoredPlan, advance: Advance) -> None:
    """Wait until every run of the plan has ended; ``advance`` gets the keys made so far."""
    plan = stored.plan
    asset_key = asset_key_of(site.definition, plan.asset.name)
    seen = {str(planned.key): planned.seen for planned in plan.keys}
    while True:
        runs = find_created_runs(site.instance, plan).values()
        made = read_latest_positions(site.instance, asset_key, "materialized", list(seen))
        ended = sum(run.is_finished for run in runs)
        done = sum(position > seen[name] for name, position in made.items())
        advance(done, f"{ended} of {len(plan.rectangles)} runs ended")
        if ended == len(plan.rectangles):
            return
        time.sleep(_POLL_S)
