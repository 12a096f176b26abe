"""What became of every key that was asked for, and why each undone one is not done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args

from scene_pipeline.backfill.assets import TrackedAsset
from scene_pipeline.backfill.causes import CauseKind, FailureText, find_cause_kind
from scene_pipeline.backfill.dagster_internals import read_event_facts
from scene_pipeline.backfill.key_states import Site, read_key_states
from scene_pipeline.backfill.requests import Request, read_request
from scene_pipeline.backfill.run_failures import RunFailure, read_run_failure
from scene_pipeline.backfill.states import KeyState, StateName
from scene_pipeline.scenes.keys import PartitionKey

__all__ = [
    "Account",
    "Finding",
    "Outcome",
    "diagnose_backfill",
    "diagnose_request",
    "diagnose_window",
]

Outcome = Literal["done", "in progress", "failed", "missing"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
# Every other state of a key in a window is done.
_OF_STATE: Mapping[StateName, Outcome] = {
    "in progress": "in progress",
    "failed": "failed",
    "changed": "missing",
    "missing": "missing",
    "not covered": "missing",
}

# Failed runs whose records are read for the reason; of more, the rest is counted alone.
MAX_RUNS_READ = 500


@dataclass(frozen=True, slots=True)
class Finding:
    """One key that is not done, and why."""

    asset: TrackedAsset
    key: PartitionKey
    outcome: Outcome
    cause: CauseKind
    failure: FailureText
    state: KeyState
    run_id: str | None = None

    @property
    def command(self) -> str:
        """A command that tries this key alone."""
        return (
            f"scene-pipeline backfill launch --asset {self.asset.name} --keys '{self.key}' "
            "--states all --local"
        )


@dataclass(frozen=True, slots=True)
class Account:
    """A request's keys by outcome; every requested key is in exactly one place."""

    asset: TrackedAsset
    requested: int
    by_outcome: Mapping[Outcome, tuple[PartitionKey, ...]]
    rejected: Mapping[str, str]
    trimmed: tuple[PartitionKey, ...]
    findings: tuple[Finding, ...] = ()
    positions: Mapping[PartitionKey, int] = field(default_factory=dict)

    @property
    def by_cause(self) -> Mapping[CauseKind, int]:
        """How many keys each kind of cause holds back, most first."""
        return dict(Counter(finding.cause for finding in self.findings).most_common())

    @property
    def undone(self) -> tuple[PartitionKey, ...]:
        """Failed and missing keys: what `backfill retry` launches."""
        return self.by_outcome["failed"] + self.by_outcome["missing"]

    @property
    def clean(self) -> bool:
        """Whether nothing is left to do, to wait for, or to correct."""
        return not (self.undone or self.rejected or self.by_outcome["in progress"])

    def count_rebuilt(self, after: Account) -> int:
        """Keys that were done here and were made again by the time of ``after``."""
        done = self.by_outcome["done"]
        return sum(after.positions.get(key) != self.positions.get(key) for key in done)


def diagnose_backfill(site: Site, backfill_id: str, *, now: datetime) -> list[Account]:
    """The account of a backfill or plan of any origin, an asset at a time."""
    requests = read_request(site, backfill_id, today=now.date())
    return [diagnose_request(site, request, now=now) for request in requests]


def diagnose_window(
    site: Site,
    asset: TrackedAsset,
    *,
    keys: Iterable[PartitionKey],
    now: datetime,
    rejected: Mapping[str, str] | None = None,
) -> Account:
    """The account of a window whoever worked on it: a key whose raw data is newer is missing."""
    states = read_key_states(site, asset, keys=keys, now=now)
    outcomes = {key: _OF_STATE.get(state.state, "done") for key, state in states.items()}
    return _account(site, Request(asset, tuple(states), now, rejected or {}), states, outcomes)


def diagnose_request(site: Site, request: Request, *, now: datetime) -> Account:
    """Sort the requested keys by what became of them since the request.

    done: made since; in progress: a live run or claim has it; failed: planned since, not made;
    missing: never planned since, whatever an earlier run did.
    """
    states = read_key_states(site, request.asset, keys=request.keys, now=now)
    begun = _find_begun(site, request, states)
    outcomes = {key: _decide_outcome(state, *begun[key]) for key, state in states.items()}
    return _account(site, request, states, outcomes)


def _account(
    site: Site,
    request: Request,
    states: Mapping[PartitionKey, KeyState],
    outcomes: Mapping[PartitionKey, Outcome],
) -> Account:
    by_outcome: dict[Outcome, tuple[PartitionKey, ...]] = {
        outcome: tuple(key for key, met in outcomes.items() if met == outcome)
        for outcome in OUTCOMES
    }
    failed = [states[key] for key in by_outcome["failed"]]
    missing = [states[key] for key in by_outcome["missing"]]
    return Account(
        asset=request.asset,
        requested=len(request.keys) + len(request.rejected),
        by_outcome=by_outcome,
        rejected=request.rejected,
        trimmed=request.trimmed,
        findings=(
            *_explain_failed(site, request.asset, failed),
            *(_explain_missing(request.asset, state) for state in missing),
        ),
        positions={key: state.evidence.materialized or 0 for key, state in states.items()},
    )


def _find_begun(
    site: Site, request: Request, states: Mapping[PartitionKey, KeyState]
) -> dict[PartitionKey, tuple[bool, bool]]:
    """Whether each key was planned, and made, since the request."""
    if request.seen:
        return {
            key: (
                (state.evidence.planned or 0) > request.seen[key],
                (state.evidence.materialized or 0) > request.seen[key],
            )
            for key, state in states.items()
        }
    positions = {
        position
        for state in states.values()
        for position in (state.evidence.planned, state.evidence.materialized)
        if position is not None
    }
    facts = read_event_facts(site.instance, sorted(positions))

    def is_since(position: int | None) -> bool:
        return position is not None and facts[position].at >= request.since

    return {
        key: (is_since(state.evidence.planned), is_since(state.evidence.materialized))
        for key, state in states.items()
    }


def _decide_outcome(state: KeyState, planned_since: bool, made_since: bool) -> Outcome:
    evidence = state.evidence
    if evidence.run_live or evidence.claimed_by is not None:
        return "in progress"
    if made_since and (evidence.materialized or 0) > (evidence.planned or 0):
        return "done"
    return "failed" if planned_since else "missing"


def _explain_failed(site: Site, asset: TrackedAsset, failed: Sequence[KeyState]) -> list[Finding]:
    runs: dict[str, RunFailure] = {}
    findings: list[Finding] = []
    for state in failed:
        run_id = state.evidence.planned_run or ""
        if run_id not in runs and len(runs) < MAX_RUNS_READ:
            runs[run_id] = read_run_failure(site.instance, run_id)
        account = runs.get(run_id)
        failure = account.by_key.get(str(state.key), account.whole) if account else None
        cause: CauseKind
        if failure is None:
            words = account.last_words if account else "its run was not read"
            cause, failure = "killed", FailureText("", words)
        else:
            cause = find_cause_kind(failure)
        if not state.ready:
            cause = "upstream missing"
        findings.append(Finding(asset, state.key, "failed", cause, failure, state, run_id or None))
    return findings


def _explain_missing(asset: TrackedAsset, state: KeyState) -> Finding:
    cause: CauseKind = "never submitted" if state.ready else "upstream missing"
    words = "no run has it"
    return Finding(asset, state.key, "missing", cause, FailureText("", words), state)
