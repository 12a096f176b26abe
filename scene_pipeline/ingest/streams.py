"""The streams of a region as an operator sees them: proven how far, held by what, for how long."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import sqlalchemy as sa

from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.checkpoints import row_bound
from scene_pipeline.ingest.epochs import select_epoch
from scene_pipeline.ingest.membership import join_stream, leave_stream, retire_stream
from scene_pipeline.ingest.quarantine import OPEN
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import reading

__all__ = ["BARREN", "StreamView", "join_stream", "leave_stream", "list_streams", "retire_stream"]

BARREN = "it has never brought an Item; are collection and area what the provider has?"


@dataclass(frozen=True, slots=True)
class StreamView:
    """One stream.

    ``membership``: member, joining (its history is not complete through the frontier yet),
    leaving, left, retired, new (joins with the next ingest). ``is_configured``: the settings
    name it; a member that they do not name still holds the frontier. ``state`` and ``reason``:
    of its forward checkpoint. ``stalled_for``: set where nothing new has come for longer than
    its cadence; alive and empty is not the same as well. ``is_barren``: it was read and has
    never brought an Item, as a misspelt Collection does. ``violations`` by kind: late, changed,
    vanished.
    """

    stream: str
    membership: str
    is_configured: bool
    address: str
    finality: str
    bound: Bound | None
    state: str
    reason: str
    since: datetime | None
    last_page_at: datetime | None
    last_new_at: datetime | None
    stalled_for: timedelta | None
    is_barren: bool
    pages: int
    landed: int
    outside: int
    lost_swaps: int
    quarantined: Mapping[str, int] = field(default_factory=dict)
    violations: Mapping[str, int] = field(default_factory=dict)


def list_streams(
    engine: sa.Engine, region: str, *, configured: Collection[str], now: datetime
) -> list[StreamView]:
    """Every stream that the region has ever had, by name."""
    with reading(engine) as connection:
        current = select_epoch(connection, region, "current")
        pending = select_epoch(connection, region, "pending")
        scopes: dict[str, str] = {}
        roles: dict[str, str] = {}
        for epoch, role in ((current, "member"), (pending, "joining")):
            for member in epoch.members if epoch else ():
                scopes[member.stream] = member.scope
                same = current is not None and member in current.members
                roles[member.stream] = (
                    "leaving" if member.leaving_at else ("member" if same else role)
                )
        proofs = {
            (row.stream, row.scope): row
            for row in connection.execute(
                sa.select(t.checkpoints).where(
                    t.checkpoints.c.region == region, t.checkpoints.c.lane == "forward"
                )
            )
        }
        quarantined = _count(connection, t.quarantine, region, "reason", states=OPEN)
        violations = _count(connection, t.violations, region, "kind")
        rows = connection.execute(
            sa.select(t.streams).where(t.streams.c.region == region).order_by(t.streams.c.stream)
        ).all()
    views = []
    for row in rows:
        proof = proofs.get((row.stream, scopes.get(row.stream, "")))
        active = row.state == "member"
        views.append(
            StreamView(
                stream=row.stream,
                membership=roles.get(row.stream, row.state) if active else row.state,
                is_configured=row.stream in configured,
                address=row.address,
                finality=row.finality,
                bound=row_bound(proof) if proof else None,
                state=proof.state if proof else "blocked",
                reason=proof.reason if proof else "its source was never opened",
                since=proof.since if proof else None,
                last_page_at=row.last_page_at,
                last_new_at=row.last_new_at,
                stalled_for=_measure_stall(row, now) if active else None,
                is_barren=active and row.pages > 0 and row.last_new_at is None,
                pages=row.pages,
                landed=row.landed,
                outside=row.outside,
                lost_swaps=row.lost_swaps,
                quarantined=quarantined.get(row.stream, {}),
                violations=violations.get(row.stream, {}),
            )
        )
    return views


def _measure_stall(row: sa.Row[tuple[object, ...]], now: datetime) -> timedelta | None:
    if row.cadence_hours is None:
        return None
    quiet = now - (row.last_new_at or row.joined_at)
    return quiet if quiet > timedelta(hours=row.cadence_hours) else None


def _count(
    connection: sa.Connection,
    table: sa.Table,
    region: str,
    by: str,
    *,
    states: Collection[str] | None = None,
) -> dict[str, dict[str, int]]:
    query = sa.select(table.c.stream, table.c[by], sa.func.count()).where(table.c.region == region)
    if states is not None:
        query = query.where(table.c.state.in_(states))
    counts: dict[str, dict[str, int]] = {}
    for stream, value, count in connection.execute(query.group_by(table.c.stream, table.c[by])):
        counts.setdefault(stream, {})[value] = count
    return counts
