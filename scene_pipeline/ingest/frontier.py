"""Reading and publishing the frontier; the rule itself is `frontier_plan.plan_frontier`.

`publish_frontier` reads durable evidence, plans, and swaps the published row if its revision and
epoch are still the ones it started from; a loser recomputes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import sqlalchemy as sa

from scene_pipeline.errors import CheckpointLostError
from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.checkpoints import row_bound
from scene_pipeline.ingest.epochs import promote_epoch, select_epoch
from scene_pipeline.ingest.frontier_plan import (
    Epoch,
    Evidence,
    Gap,
    MemberProof,
    PublishedFrontier,
    StreamBound,
    plan_frontier,
)
from scene_pipeline.ingest.registry import lock_region, upsert
from scene_pipeline.ingest.routing import count_unassigned
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import reading, transact

__all__ = [
    "Gap",
    "PublishedFrontier",
    "StreamBound",
    "publish_frontier",
    "read_frontier",
]


def read_frontier(engine: sa.Engine, region: str) -> PublishedFrontier | None:
    """The latest revision of ``region``, or None where nothing was ever published."""
    with reading(engine) as connection:
        return select_frontier(connection, region)


def select_frontier(connection: sa.Connection, region: str) -> PublishedFrontier | None:
    """`read_frontier` inside a transaction."""
    row = connection.execute(sa.select(t.frontiers).where(t.frontiers.c.region == region)).first()
    if row is None:
        return None
    gaps = connection.execute(
        sa.select(t.gaps).where(t.gaps.c.region == region).order_by(t.gaps.c.epoch)
    )
    return PublishedFrontier(
        bound=row_bound(row),
        epoch=row.epoch,
        revision=row.revision,
        routing=row.routing,
        vector=decode_vector(row.vector),
        holder=row.holder,
        holder_since=row.holder_since,
        withheld=row.withheld,
        gaps=tuple(
            Gap(g.stream, g.proven_through, g.declared_through, g.reason, g.recorded_at)
            for g in gaps
        ),
        published_at=row.published_at,
    )


def encode_vector(vector: Sequence[StreamBound]) -> str:
    """The vector as JSON, for the published row."""
    return json.dumps([asdict(part) for part in vector], default=datetime.isoformat)


def decode_vector(text: str) -> tuple[StreamBound, ...]:
    """Inverse of `encode_vector`."""
    return tuple(
        StreamBound(
            stream=part["stream"],
            bound=part["bound"]
            and Bound(datetime.fromisoformat(part["bound"]["value"]), part["bound"]["endpoint"]),
            finality=part["finality"],
            state=part["state"],
            reason=part["reason"],
            since=part["since"] and datetime.fromisoformat(part["since"]),
        )
        for part in json.loads(text)
    )


def read_evidence(engine: sa.Engine, region: str) -> Evidence | None:
    """One snapshot of the durable evidence; None before the first ingest."""
    with reading(engine) as connection:
        current = select_epoch(connection, region, "current")
        if current is None:
            return None
        pending = select_epoch(connection, region, "pending")
        return Evidence(
            published=select_frontier(connection, region),
            current=current,
            proofs=_select_proofs(connection, region, current),
            pending=pending,
            pending_proofs=_select_proofs(connection, region, pending) if pending else (),
            unassigned=count_unassigned(connection, region, pending.routing) if pending else 0,
        )


def _select_proofs(connection: sa.Connection, region: str, epoch: Epoch) -> tuple[MemberProof, ...]:
    member, checkpoint, stream = t.members.c, t.checkpoints.c, t.streams.c
    rows = connection.execute(
        sa.select(
            member.stream, member.leaving_at, checkpoint.bound_value, checkpoint.bound_endpoint,
            stream.finality, checkpoint.state, checkpoint.reason, checkpoint.since,
        )
        .join_from(
            t.members,
            t.checkpoints,
            sa.and_(
                checkpoint.region == member.region,
                checkpoint.stream == member.stream,
                checkpoint.lane == "forward",
                checkpoint.scope == member.scope,
            ),
            isouter=True,
        )
        .join(
            t.streams,
            sa.and_(stream.region == member.region, stream.stream == member.stream),
            isouter=True,
        )
        .where(member.region == region, member.epoch == epoch.number)
        .order_by(member.stream)
    )  # fmt: skip
    return tuple(
        MemberProof(
            StreamBound(
                stream=row.stream,
                bound=row_bound(row),
                finality=row.finality or "none",
                state=row.state or "blocked",
                reason=(row.reason or "") if row.state else "its source was never opened",
                since=row.since,
            ),
            row.leaving_at,
        )
        for row in rows
    )


# A loser recomputes; more losses in a row than this mean that something else is wrong.
_ATTEMPTS = 10


def publish_frontier(engine: sa.Engine, region: str, *, now: datetime) -> PublishedFrontier | None:
    """Publish what the durable evidence proves; returns what is published, None before any epoch.

    Evidence is read first and swapped in after, so that a crash in between is harmless, and an
    aggregator that comes late finds another revision or epoch and recomputes.
    """
    for _ in range(_ATTEMPTS):
        evidence = read_evidence(engine, region)
        if evidence is None:
            return None
        published = swap_frontier(engine, region, evidence, now=now)
        if published is not None:
            return published
    raise CheckpointLostError(
        f"{_ATTEMPTS} other aggregators published the frontier first",
        where=f"region {region}",
        next_step="nothing is lost; read the frontier, or publish again",
    )


def swap_frontier(
    engine: sa.Engine, region: str, evidence: Evidence, *, now: datetime
) -> PublishedFrontier | None:
    """Publish the plan of ``evidence`` if nothing was published since; None where it lost."""
    plan, promote = plan_frontier(evidence, now=now)
    if plan == evidence.published and not promote:
        return plan

    def work(connection: sa.Connection) -> PublishedFrontier | None:
        lock_region(connection, region)
        before = select_frontier(connection, region)
        current = select_epoch(connection, region, "current")
        pending = select_epoch(connection, region, "pending")
        if (before and before.revision) != (evidence.published and evidence.published.revision):
            return None
        if (current, pending) != (evidence.current, evidence.pending):
            return None
        if promote and pending is not None:
            promote_epoch(connection, region, pending)
        row = {
            "region": region,
            "revision": plan.revision,
            "epoch": plan.epoch,
            "routing": plan.routing,
            "bound_value": plan.bound and plan.bound.value,
            "bound_endpoint": plan.bound and plan.bound.endpoint,
            "holder": plan.holder,
            "published_at": plan.published_at,
        }
        whole = {
            **row,
            "holder_since": plan.holder_since,
            "withheld": plan.withheld,
            "vector": encode_vector(plan.vector),
        }
        upsert(connection, t.frontiers, [whole])
        if before is None or (before.bound, before.epoch, before.routing) != (
            plan.bound, plan.epoch, plan.routing,
        ):  # fmt: skip
            connection.execute(t.frontier_history.insert().values(**row))
        return select_frontier(connection, region)

    return transact(engine, work)
