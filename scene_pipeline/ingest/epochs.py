"""Epochs: fixed memberships of streams, each under one routing generation.

A frontier is a promise about the members of one epoch. A change of membership (a stream joins,
changes its scope, leaves, is retired) or of the grid opens a pending epoch; it becomes current,
in `frontier.publish_frontier`, once nothing that was promised would be taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import get_args

import sqlalchemy as sa

from scene_pipeline.ingest.checkpoints import Checkpoint, Lane, to_row
from scene_pipeline.ingest.frontier_plan import Epoch, EpochState, Member
from scene_pipeline.ingest.registry import lock_region, upsert
from scene_pipeline.ingest.routing import fingerprint_grid
from scene_pipeline.scenes.keys import SceneDefinition
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import transact

__all__ = ["Reconciled", "StreamEntry", "reconcile"]


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """A configured stream. ``scope`` None: its source was not opened this time."""

    stream: str
    scope: str | None
    address: str
    finality: str
    cadence_hours: float | None


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The routing generation in force, and the configured streams that are to be read.

    One that left or was retired is not read until it joins again.
    """

    routing: int
    active: frozenset[str]


def reconcile(
    engine: sa.Engine,
    definition: SceneDefinition,
    entries: Mapping[str, StreamEntry],
    *,
    now: datetime,
) -> Reconciled:
    """Bring membership and grid in line with the settings.

    The first start makes epoch 1 of every configured stream. Later, a stream that is new in the
    settings joins, and one whose scope changed joins anew. One that is missing from the settings
    stays a member: it holds the frontier until it leaves or is retired.
    """

    def work(connection: sa.Connection) -> Reconciled:
        region = definition.region
        # Two first starts at once: one inserts, the other waits for it, and then for the lock.
        upsert(connection, t.regions, [{"region": region}], ())
        lock_region(connection, region)
        routing = _ensure_routing(connection, definition, now)
        known = _ensure_streams(connection, region, entries, now)
        base = select_epoch(connection, region, "pending") or select_epoch(
            connection, region, "current"
        )
        if base is None:
            members = tuple(Member(entry.stream, entry.scope or "") for entry in entries.values())
            open_epoch(
                connection, region, routing, members, reason="first start", now=now, state="current"
            )
        else:
            base = _fill_scopes(connection, region, base, entries)
            wanted, reasons = _plan_members(base, entries, known)
            if base.routing != routing:
                reasons.append(f"routing generation {routing}")
            if reasons:
                open_epoch(connection, region, routing, wanted, reason="; ".join(reasons), now=now)
        _ensure_checkpoints(connection, region, entries, now)
        gone = {name for name in entries if known.get(name) in ("left", "retired")}
        return Reconciled(routing, frozenset(entries.keys() - gone))

    return transact(engine, work)


def _plan_members(
    base: Epoch, entries: Mapping[str, StreamEntry], known: Mapping[str, str]
) -> tuple[tuple[Member, ...], list[str]]:
    """The membership that the settings ask for, and why it differs from ``base``."""
    wanted: list[Member] = []
    reasons: list[str] = []
    for member in base.members:
        entry = entries.get(member.stream)
        if entry and entry.scope and entry.scope != member.scope:
            # One that is leaving too: nobody enumerates its old scope any more.
            wanted.append(replace(member, scope=entry.scope))
            reasons.append(f"the scope of {member.stream} changed")
        else:
            wanted.append(member)
    for name, entry in entries.items():
        if base.find(name) is None and known.get(name, "new") == "new":
            wanted.append(Member(name, entry.scope or ""))
            reasons.append(f"{name} joins")
    return tuple(wanted), reasons


def select_epoch(connection: sa.Connection, region: str, state: EpochState) -> Epoch | None:
    """The current or the pending epoch (there is one of each at the most)."""
    column = t.epochs.c
    row = connection.execute(
        sa.select(t.epochs).where(column.region == region, column.state == state)
    ).first()
    if row is None:
        return None
    member = t.members.c
    members = connection.execute(
        sa.select(member.stream, member.scope, member.leaving_at)
        .where(member.region == region, member.epoch == row.epoch)
        .order_by(member.stream)
    )
    return Epoch(row.epoch, row.routing, row.state, tuple(Member(*each) for each in members))


def promote_epoch(connection: sa.Connection, region: str, pending: Epoch) -> None:
    """Make the pending epoch the current one; its leaving members are gone with that."""
    current = select_epoch(connection, region, "current")
    if current is not None:
        close_epoch(connection, region, current.number)
    member = t.members.c
    leaving = [each.stream for each in pending.members if each.leaving_at]
    for stream in leaving:
        connection.execute(
            t.members.delete().where(
                member.region == region, member.epoch == pending.number, member.stream == stream
            )
        )
        set_state(connection, region, stream, "left")
    column = t.epochs.c
    connection.execute(
        t.epochs.update()
        .where(column.region == region, column.epoch == pending.number)
        .values(state="current")
    )


def open_epoch(
    connection: sa.Connection,
    region: str,
    routing: int,
    members: tuple[Member, ...],
    *,
    reason: str,
    now: datetime,
    state: EpochState = "pending",
) -> int:
    """Open the next epoch; returns its number. A pending one takes the place of another."""
    column = t.epochs.c
    if state == "pending":
        connection.execute(
            t.epochs.update()
            .where(column.region == region, column.state == "pending")
            .values(state="abandoned")
        )
    newest = connection.execute(
        sa.select(sa.func.max(column.epoch)).where(column.region == region)
    ).scalar()
    number = (newest or 0) + 1
    connection.execute(
        t.epochs.insert().values(
            region=region, epoch=number, routing=routing, state=state, reason=reason, opened_at=now
        )
    )
    if members:
        connection.execute(
            t.members.insert(),
            [
                {"region": region, "epoch": number, "stream": each.stream, "scope": each.scope,
                 "leaving_at": each.leaving_at}
                for each in members
            ],
        )  # fmt: skip
    return number


def close_epoch(connection: sa.Connection, region: str, number: int) -> None:
    """Close an epoch."""
    column = t.epochs.c
    connection.execute(
        t.epochs.update()
        .where(column.region == region, column.epoch == number)
        .values(state="closed")
    )


def _ensure_routing(connection: sa.Connection, definition: SceneDefinition, now: datetime) -> int:
    column = t.routings.c
    newest = connection.execute(
        sa.select(column.generation, column.fingerprint)
        .where(column.region == definition.region)
        .order_by(column.generation.desc())
        .limit(1)
    ).first()
    found = fingerprint_grid(definition)
    if newest is not None and newest.fingerprint == found:
        return int(newest.generation)
    generation = 1 if newest is None else newest.generation + 1
    connection.execute(
        t.routings.insert().values(
            region=definition.region,
            generation=generation,
            fingerprint=found,
            grid=definition.grid,
            tiles=" ".join(definition.tiles),
            opened_at=now,
        )
    )
    return int(generation)


def _ensure_streams(
    connection: sa.Connection, region: str, entries: Mapping[str, StreamEntry], now: datetime
) -> dict[str, str]:
    """Register what the settings say of each stream; returns the states from before."""
    column = t.streams.c
    stored = {
        row.stream: row
        for row in connection.execute(
            sa.select(
                column.stream, column.state, column.address, column.finality, column.cadence_hours
            ).where(column.region == region)
        )
    }
    rows = []
    for name, entry in entries.items():
        row = stored.get(name)
        address = entry.address or (row.address if row else "")
        told = (address, entry.finality, entry.cadence_hours)
        if row is None or row.state == "new" or told != tuple(row[2:]):
            state = "member" if row is None or row.state == "new" else row.state
            rows.append(
                {"region": region, "stream": name, "state": state, "address": address,
                 "finality": entry.finality, "cadence_hours": entry.cadence_hours,
                 "joined_at": now}
            )  # fmt: skip
    upsert(connection, t.streams, rows, ("state", "address", "finality", "cadence_hours"))
    return {name: row.state for name, row in stored.items()}


def _fill_scopes(
    connection: sa.Connection, region: str, base: Epoch, entries: Mapping[str, StreamEntry]
) -> Epoch:
    """A member whose source opens for the first time gets its scope; nothing was proven before."""
    filled = []
    column = t.members.c
    for member in base.members:
        entry = entries.get(member.stream)
        if member.scope or entry is None or not entry.scope:
            filled.append(member)
            continue
        connection.execute(
            t.members.update()
            .where(column.region == region, column.stream == member.stream, column.scope == "")
            .values(scope=entry.scope)
        )
        filled.append(replace(member, scope=entry.scope))
    return replace(base, members=tuple(filled))


def _ensure_checkpoints(
    connection: sa.Connection, region: str, entries: Mapping[str, StreamEntry], now: datetime
) -> None:
    column = t.checkpoints.c
    stored = {
        (row.stream, row.lane, row.scope)
        for row in connection.execute(
            sa.select(column.stream, column.lane, column.scope).where(column.region == region)
        )
    }
    rows = [
        to_row(Checkpoint(region=region, stream=name, lane=lane, scope=entry.scope, since=now))
        for name, entry in entries.items()
        for lane in get_args(Lane)
        if entry.scope is not None and (name, lane, entry.scope) not in stored
    ]
    if rows:
        connection.execute(t.checkpoints.insert(), rows)


def set_state(connection: sa.Connection, region: str, stream: str, state: str) -> None:
    """Write a stream's state."""
    column = t.streams.c
    connection.execute(
        t.streams.update()
        .where(column.region == region, column.stream == stream)
        .values(state=state)
    )
