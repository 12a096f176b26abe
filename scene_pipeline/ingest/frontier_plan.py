"""The rule of the frontier (pure): what a region may promise, given what is proven.

The frontier is the least certified bound over all members of one epoch: the instant before which
every Item of every stream has arrived and has a durable outcome. It moves upward only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Literal

from scene_pipeline.ingest.bounds import Bound, merge_bounds

__all__ = [
    "Epoch",
    "EpochState",
    "Evidence",
    "Gap",
    "Member",
    "MemberProof",
    "PublishedFrontier",
    "StreamBound",
    "plan_frontier",
]

EpochState = Literal["current", "pending", "closed", "abandoned"]


@dataclass(frozen=True, slots=True)
class Member:
    """A stream under one scope; "" while its source could not be opened yet.

    ``leaving_at``: it is here only until it is complete through this instant.
    """

    stream: str
    scope: str
    leaving_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """A membership; only its state ever changes."""

    number: int
    routing: int
    state: EpochState
    members: tuple[Member, ...]

    def find(self, stream: str) -> Member | None:
        """The member of that name."""
        return next((member for member in self.members if member.stream == stream), None)


@dataclass(frozen=True, slots=True)
class StreamBound:
    """One member's part of the vector: how far it is proven, by which declared rule, and why not.

    ``state`` is active or blocked; ``reason`` says why the bound does not move; ``since`` is
    when it entered that state.
    """

    stream: str
    bound: Bound | None
    finality: str
    state: str
    reason: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Gap:
    """A retired stream: proven through one instant, given up by an operator at another."""

    stream: str
    proven_through: datetime | None
    declared_through: datetime
    reason: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class PublishedFrontier:
    """The latest published promise of a region.

    ``bound`` None: nothing is promised yet. ``withheld`` says, where it is not empty, which
    proof is missing for more. ``revision`` grows with every change of this row, ``epoch`` with
    every change of membership, ``routing`` with every changed grid.
    """

    bound: Bound | None
    epoch: int
    revision: int
    routing: int
    vector: tuple[StreamBound, ...]
    holder: str | None
    holder_since: datetime | None
    withheld: str
    gaps: tuple[Gap, ...]
    published_at: datetime

    def covers(self, day: date) -> bool:
        """Whether every instant of the UTC day is before the bound."""
        return self.bound is not None and self.bound.covers_day(day)


@dataclass(frozen=True, slots=True)
class MemberProof:
    """What is durably proven of one member of an epoch."""

    part: StreamBound
    leaving_at: datetime | None = None

    @property
    def is_sealed(self) -> bool:
        """Complete through the instant at which it leaves (true of one that stays)."""
        bound = self.part.bound
        return self.leaving_at is None or (
            bound is not None and bound.endpoint != "unknown" and bound.value >= self.leaving_at
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """One snapshot of all that decides a frontier. ``unassigned``: segments of older routings."""

    published: PublishedFrontier | None
    current: Epoch
    proofs: tuple[MemberProof, ...]
    pending: Epoch | None = None
    pending_proofs: tuple[MemberProof, ...] = ()
    unassigned: int = 0


def plan_frontier(evidence: Evidence, *, now: datetime) -> tuple[PublishedFrontier, bool]:
    """What to publish, and whether the pending epoch becomes current with it (pure).

    The scalar is the least bound over all members, and never lower than the published one. It is
    withheld, with the reason, while a member has no certificate or an unknown endpoint.
    """
    before = evidence.published
    promote = _can_promote(evidence)
    epoch = evidence.pending if promote and evidence.pending else evidence.current
    proofs = evidence.pending_proofs if promote else evidence.proofs
    staying = [proof.part for proof in proofs if proof.leaving_at is None]
    bound = merge_bounds(part.bound for part in staying if part.bound is not None)
    unproven = [part for part in staying if part.bound is None or part.bound.endpoint == "unknown"]
    holder: StreamBound | None = None
    withheld = ""
    if unproven:
        bound, holder = None, unproven[0]
        withheld = (
            f"{holder.stream} has no certificate"
            if holder.bound is None
            else (f"the endpoint of {holder.stream} is unknown")
        )
    elif staying:
        holder = min(staying, key=_order)
    published = before.bound if before else None
    if published is not None and (bound is None or bound.order < published.order):
        if bound is not None and holder is not None:
            withheld = f"{holder.stream} is proven through {bound.value.isoformat()} only"
        bound = published
    name = holder.stream if holder else None
    since = now
    if before is not None and before.holder == name and before.holder_since is not None:
        since = before.holder_since
    plan = PublishedFrontier(
        bound=bound,
        epoch=epoch.number,
        revision=before.revision if before else 0,
        routing=epoch.routing,
        vector=tuple(staying),
        holder=name,
        holder_since=since,
        withheld=withheld,
        gaps=before.gaps if before else (),
        published_at=before.published_at if before else now,
    )
    if plan != before:
        plan = replace(plan, revision=plan.revision + 1, published_at=now)
    return plan, promote


def _order(part: StreamBound) -> tuple[datetime, bool]:
    if part.bound is None:
        raise ValueError(f"{part.stream} has no bound")
    return part.bound.order


def _can_promote(evidence: Evidence) -> bool:
    """Whether the pending epoch takes nothing back that was promised."""
    if evidence.pending is None or evidence.unassigned:
        return False
    if not all(proof.is_sealed for proof in evidence.pending_proofs):
        return False
    published = evidence.published.bound if evidence.published else None
    if published is None:
        return True
    staying = [p.part.bound for p in evidence.pending_proofs if p.leaving_at is None]
    known = [bound for bound in staying if bound is not None]
    merged = merge_bounds(known) if len(known) == len(staying) else None
    return merged is not None and merged.order >= published.order
