"""One tick of the sensor: what to launch now, from the frontier and the dirty set alone.

A tick looks at a window of covered days after the last day that is done, and at the keys that
ingest re-opened behind it. The cursor moves over a day when every key of it is done or given up,
never when its work is merely queued. Work a tick is bounded by keys, whatever the archive holds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from scene_pipeline.backfill.assets import FOOTPRINTS, WAVES, TrackedAsset, choose_policy
from scene_pipeline.backfill.audit import audit_backfills
from scene_pipeline.backfill.dagster_internals import restore_run_tags
from scene_pipeline.backfill.key_states import Coverage, Site, read_coverage, read_key_states
from scene_pipeline.backfill.launch import (
    Place,
    adopt_plan,
    complete_planned_events,
    find_created_runs,
    new_launch_id,
    record_plan,
    release_launch,
    reserve_keys,
)
from scene_pipeline.backfill.local import end_dead_local_plans
from scene_pipeline.backfill.plan import Plan
from scene_pipeline.backfill.plan_store import Launcher, StoredPlan, read_open_plans
from scene_pipeline.backfill.selection import LAUNCHABLE, Selection
from scene_pipeline.backfill.states import KeyState, StateName
from scene_pipeline.backfill.tags import BACKFILL_TAG, FRONTIER_TAG, LAUNCH_TAG
from scene_pipeline.ingest.raw import RawVersion, clear_reopened, read_reopened
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.settings import PolicySettings, SensorSettings

__all__ = ["Cursor", "Requested", "Tick", "evaluate_tick", "parse_cursor"]

SENSOR = Launcher("sensor")
# A window of so many ticks' keys: one that is slow does not hold back the days after it.
_WINDOW_TICKS = 5
_DONE = frozenset({"materialized", "empty", "outdated"})
_DUE: frozenset[StateName] = frozenset({"missing", "changed", "failed"})


@dataclass(frozen=True, slots=True)
class Cursor:
    """``done_through``: every key up to this day is done or given up. ``audited_through``: the
    end of the last backfill that was audited."""

    done_through: date | None = None
    audited_through: datetime | None = None

    def __str__(self) -> str:
        return json.dumps(
            {
                "done_through": self.done_through and self.done_through.isoformat(),
                "audited_through": self.audited_through and self.audited_through.isoformat(),
            }
        )


def parse_cursor(text: str | None) -> Cursor:
    """Read ``str(Cursor)`` back; nothing is a new cursor. Raises `ValueError` for other text."""
    if not text:
        return Cursor()
    fields = json.loads(text)
    done, audited = fields["done_through"], fields["audited_through"]
    return Cursor(
        date.fromisoformat(done) if done else None,
        datetime.fromisoformat(audited) if audited else None,
    )


@dataclass(frozen=True, slots=True)
class Requested:
    """One run to request; ``run_key`` is the plan's run, so that a repeated tick makes it once."""

    job_name: str
    run_key: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tick:
    """What a tick decided, with the numbers behind it."""

    requested: tuple[Requested, ...]
    cursor: Cursor
    summary: str
    warnings: tuple[str, ...] = ()


def evaluate_tick(
    site: Site,
    *,
    cursor: Cursor,
    policies: PolicySettings,
    bounds: SensorSettings,
    now: datetime,
    place: Place,
) -> Tick:
    """Finish open plans, audit finished backfills, launch what is missing, move the cursor.

    Any error of a read goes up: a tick that could not look is failed, not idle.
    """
    coverage = read_coverage(site.engine, site.definition)
    requested = _finish_open_plans(site, coverage, place=place)
    audited_from = cursor.audited_through or now
    lost, audited_through = audit_backfills(site, ended_after=audited_from, now=now)
    if sum(len(each.keys) for each in lost) > bounds.max_keys_per_tick:
        audited_through = audited_from  # the next tick finds what this one cannot take
    cursor = replace(cursor, audited_through=audited_through)
    warnings: list[str] = []
    for each in lost:
        names = ", ".join(map(str, each.keys[:20])) + (" …" if len(each.keys) > 20 else "")
        warnings.append(
            f"backfill {each.backfill_id} lost {len(each.keys)} keys of {each.asset.name}, "
            f"launched now: {names}"
        )
    tick = _Round(site, coverage, policies=policies, bounds=bounds, now=now)
    for each in lost:
        tick.launch(each.asset, each.keys, Selection(states=frozenset(LAUNCHABLE), ahead=True))
    if coverage.frontier is None or coverage.frontier.bound is None:
        summary = f"no frontier is published for {site.definition.region}: nothing is covered yet"
        return Tick((*requested, *tick.requested), cursor, summary, tuple(warnings))
    days, keys, reopened = _look_for_work(site, coverage, cursor, bounds=bounds, now=now)
    open_keys = tick.work_through(keys, reopened)
    done_days = _count_leading(days, {key.day for key in open_keys})
    if done_days:
        cursor = replace(cursor, done_through=days[done_days - 1])
    clear_reopened(
        site.engine,
        site.definition.region,
        [version for version in reopened if version.key not in open_keys],
    )
    return Tick(
        (*requested, *tick.requested),
        cursor,
        tick.describe(days, len(reopened)),
        tuple(warnings),
    )


def _look_for_work(
    site: Site, coverage: Coverage, cursor: Cursor, *, bounds: SensorSettings, now: datetime
) -> tuple[list[date], list[PartitionKey], list[RawVersion]]:
    """Covered days after the last one that is done, their keys, and the re-opened keys."""
    definition = site.definition
    first = definition.start
    if cursor.done_through is not None:
        first = max(first, cursor.done_through + timedelta(days=1))
    last = definition.last_day(now.date())
    most = max(1, _WINDOW_TICKS * bounds.max_keys_per_tick // len(definition.tiles))
    days: list[date] = []
    while first <= last and len(days) < most and coverage.frontier is not None:
        if not coverage.frontier.covers(first):
            break
        days.append(first)
        first += timedelta(days=1)
    window = list(definition.iter_window(days[0], days[-1])) if days else []
    reopened = read_reopened(site.engine, definition.region, bounds.max_keys_per_tick)
    return days, [key for key in window if coverage.covers(key)], reopened


def _count_leading(days: Sequence[date], open_days: set[date]) -> int:
    count = 0
    while count < len(days) and days[count] not in open_days:
        count += 1
    return count


def _finish_open_plans(site: Site, coverage: Coverage, *, place: Place) -> list[Requested]:
    """Ask for the runs that open plans still lack, and record those that are complete.

    A plan becomes a row of the Backfills page a tick after its runs were requested: only then
    do they exist.
    """
    end_dead_local_plans(site, place=place)
    requested: list[Requested] = []
    for stored in read_open_plans(site.engine, region=site.definition.region):
        if stored.launcher.kind == "local":
            continue
        if stored.launcher.kind == "cli" and not adopt_plan(site, stored, launcher=SENSOR):
            continue
        created = find_created_runs(site.instance, stored.plan)
        if len(created) < len(stored.plan.rectangles) and restore_run_tags(
            site.instance,
            stored.plan.policy.job_name,
            tags={BACKFILL_TAG: stored.plan.plan_id},
            since=stored.created_at,
        ):
            created = find_created_runs(site.instance, stored.plan)
        lacking = [run for run in stored.plan.runs if run.index not in created]
        if lacking:
            requested += _requests(stored, coverage, only={run.index for run in lacking})
        else:
            complete_planned_events(site, stored.plan, created)
            record_plan(site, stored, place=place)
            release_launch(site, stored.plan, stored.launch_id)
    return requested


def _requests(
    stored: StoredPlan, coverage: Coverage, *, only: set[int] | None = None
) -> list[Requested]:
    plan: Plan = stored.plan
    tags = {LAUNCH_TAG: stored.launch_id}
    if coverage.frontier is not None:
        tags[FRONTIER_TAG] = f"{coverage.frontier.epoch}.{coverage.frontier.revision}"
    return [
        Requested(plan.policy.job_name, f"{plan.plan_id}:{run.index}", {**run.tags, **tags})
        for run in plan.runs
        if only is None or run.index in only
    ]


class _Round:
    """The launches of one tick and their budget of keys."""

    def __init__(
        self,
        site: Site,
        coverage: Coverage,
        *,
        policies: PolicySettings,
        bounds: SensorSettings,
        now: datetime,
    ) -> None:
        self.requested: list[Requested] = []
        self._site = site
        self._coverage = coverage
        self._policies = policies
        self._bounds = bounds
        self._now = now
        self._launch_id = new_launch_id()
        self._budget = bounds.max_keys_per_tick
        self._counts: Counter[str] = Counter()

    def launch(
        self, asset: TrackedAsset, keys: Iterable[PartitionKey], selection: Selection
    ) -> None:
        """Reserve ``keys`` as far as the budget goes and request their runs."""
        wanted = list(keys)[: self._budget]
        if not wanted:
            return
        stored, _ = reserve_keys(
            self._site,
            asset,
            choose_policy(asset, self._policies),
            keys=wanted,
            selection=selection,
            launcher=SENSOR,
            launch_id=self._launch_id,
            now=self._now,
        )
        if stored is None or stored.launch_id != self._launch_id:
            return
        self._budget -= len(stored.plan.keys)
        self._counts["launched"] += len(stored.plan.keys)
        self.requested += _requests(stored, self._coverage)

    def work_through(
        self, window: Sequence[PartitionKey], reopened: Sequence[RawVersion]
    ) -> set[PartitionKey]:
        """Launch what the keys lack, asset by asset; returns those not done and not given up."""
        keys = list(dict.fromkeys([*(version.key for version in reopened), *window]))
        open_keys: set[PartitionKey] = set()
        blocked: set[PartitionKey] = set()
        for asset in WAVES:
            states = read_key_states(
                self._site, asset, keys=keys, now=self._now, coverage=self._coverage
            )
            given_up = {key for key, state in states.items() if self._has_given_up(state)}
            # A table key whose footprints are given up has nothing to wait for.
            settled = given_up | (blocked if asset != FOOTPRINTS else set())
            waiting = {
                key
                for key, state in states.items()
                if state.state not in _DONE and state.state != "invalid" and key not in settled
            }
            due = [key for key in keys if key in waiting and self._is_due(states[key])]
            self.launch(asset, due, Selection(states=_DUE))
            open_keys |= waiting
            blocked |= given_up
            self._counts["done"] += sum(state.state in _DONE for state in states.values())
            self._counts["in progress"] += sum(s.state == "in progress" for s in states.values())
            self._counts["given up"] += len(given_up)
            self._counts["keys"] += len(states)
        return open_keys

    def _has_given_up(self, state: KeyState) -> bool:
        """Failed as often as may be: left visible as `failed`."""
        limit = self._bounds.max_relaunches
        return state.state == "failed" and state.evidence.run_attempt > limit

    def _is_due(self, state: KeyState) -> bool:
        """Missing or changed with its upstream there, or failed and rested long enough."""
        if state.state != "failed":
            return state.state in {"missing", "changed"} and state.ready
        attempt = max(1, state.evidence.run_attempt)
        pause = timedelta(minutes=self._bounds.relaunch_pause_minutes * 2 ** (attempt - 1))
        ended_at = state.evidence.run_ended_at
        return state.ready and (ended_at is None or self._now - ended_at >= pause)

    def describe(self, days: Sequence[date], reopened: int) -> str:
        """The numbers that were compared."""
        frontier = self._coverage.frontier
        bound = frontier.bound.value.isoformat() if frontier and frontier.bound else "none"
        window = f"{days[0]} to {days[-1]}" if days else "no newly covered day"
        counts = self._counts
        return (
            f"frontier {bound}; {window}, {reopened} re-opened keys; over both assets "
            f"{counts['keys']} keys: {counts['done']} done, {counts['in progress']} in progress, "
            f"{counts['given up']} failed and given up, {counts['launched']} launched now"
        )
