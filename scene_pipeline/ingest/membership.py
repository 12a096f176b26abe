"""What an operator decides of a stream: it joins again, leaves, or is given up."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa

from scene_pipeline.errors import UsageError
from scene_pipeline.ingest.epochs import close_epoch, open_epoch, select_epoch, set_state
from scene_pipeline.ingest.frontier_plan import Epoch, Member
from scene_pipeline.ingest.registry import lock_region
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import transact

__all__ = ["join_stream", "leave_stream", "retire_stream"]


def join_stream(engine: sa.Engine, region: str, stream: str, *, now: datetime) -> None:
    """Let a stream that left or was retired join again, with the next ingest.

    Raises `UsageError` for a stream that is unknown or a member already.
    """

    def work(connection: sa.Connection) -> None:
        lock_region(connection, region)
        state = _require_stream(connection, region, stream)
        if state == "member":
            raise UsageError(f"stream {stream} is a member already", where=f"region {region}")
        set_state(connection, region, stream, "new")

    del now
    transact(engine, work)


def leave_stream(
    engine: sa.Engine, region: str, stream: str, *, through: datetime, now: datetime
) -> int:
    """Let a stream go once it is complete through an instant; returns the pending epoch.

    Until it is, the current epoch still waits for it. Raises `UsageError` for a stream that is
    not a member, or the last one.
    """

    def work(connection: sa.Connection) -> int:
        lock_region(connection, region)
        base = _select_base(connection, region)
        _require_member(base, stream, region)
        current = select_epoch(connection, region, "current")
        promised = current is not None and current.find(stream) is not None
        members = tuple(
            replace(member, leaving_at=through) if member.stream == stream else member
            for member in base.members
            if promised or member.stream != stream
        )
        if all(member.leaving_at for member in members):
            raise _last_member(stream, region)
        if not promised:
            set_state(connection, region, stream, "left")
        reason = f"{stream} leaves once complete through {through.isoformat()}"
        return open_epoch(connection, region, base.routing, members, reason=reason, now=now)

    return transact(engine, work)


def retire_stream(
    engine: sa.Engine, region: str, stream: str, *, through: datetime, reason: str, now: datetime
) -> int:
    """Give up a dead provider, at once; returns the new current epoch.

    ``through`` is the operator's word on how far it delivered. What was never proven is recorded
    as a gap that every reader of the frontier sees. Raises `UsageError` for a stream that is not
    a member, or the last one, and without a reason.
    """
    if not reason.strip():
        raise UsageError("retiring a stream needs a reason", where=f"stream {stream}")

    def work(connection: sa.Connection) -> int:
        lock_region(connection, region)
        base = _select_base(connection, region)
        _require_member(base, stream, region)
        current = select_epoch(connection, region, "current")
        number = base.number if current is None else current.number
        if current is not None and (member := current.find(stream)) is not None:
            rest = tuple(each for each in current.members if each.stream != stream)
            if not rest:
                raise _last_member(stream, region)
            close_epoch(connection, region, current.number)
            why = f"{stream} retired: {reason}"
            number = open_epoch(
                connection, region, current.routing, rest, reason=why, now=now, state="current"
            )
            _record_gap(connection, region, number, member, through=through, reason=reason, now=now)
        if base.state == "pending":
            rest = tuple(each for each in base.members if each.stream != stream)
            if all(member.leaving_at for member in rest):
                raise _last_member(stream, region)
            open_epoch(connection, region, base.routing, rest, reason=f"without {stream}", now=now)
        set_state(connection, region, stream, "retired")
        return number

    return transact(engine, work)


def _select_base(connection: sa.Connection, region: str) -> Epoch:
    base = select_epoch(connection, region, "pending") or select_epoch(
        connection, region, "current"
    )
    if base is None:
        raise UsageError(
            f"region {region} has no streams yet",
            next_step="run `scene-pipeline ingest run` once: it registers the configured streams",
        )
    return base


def _require_stream(connection: sa.Connection, region: str, stream: str) -> str:
    column = t.streams.c
    state = connection.execute(
        sa.select(column.state).where(column.region == region, column.stream == stream)
    ).scalar()
    if state is None:
        raise UsageError(
            f"there is no stream {stream} in region {region}",
            next_step="`scene-pipeline streams list` names them",
        )
    return str(state)


def _require_member(base: Epoch, stream: str, region: str) -> None:
    if base.find(stream) is None:
        names = ", ".join(member.stream for member in base.members)
        raise UsageError(
            f"stream {stream} is not a member of region {region}",
            next_step=f"members are {names}",
        )


def _last_member(stream: str, region: str) -> UsageError:
    return UsageError(
        f"stream {stream} is the last member of region {region}: no frontier could stand on none",
        next_step="let another stream join first",
    )


def _record_gap(
    connection: sa.Connection,
    region: str,
    epoch: int,
    member: Member,
    *,
    through: datetime,
    reason: str,
    now: datetime,
) -> None:
    checkpoint = t.checkpoints.c
    proven = connection.execute(
        sa.select(checkpoint.bound_value).where(
            checkpoint.region == region,
            checkpoint.stream == member.stream,
            checkpoint.lane == "forward",
            checkpoint.scope == member.scope,
        )
    ).scalar()
    connection.execute(
        t.gaps.insert().values(
            region=region, epoch=epoch, stream=member.stream, proven_through=proven,
            declared_through=through, reason=reason, recorded_at=now,
        )
    )  # fmt: skip
