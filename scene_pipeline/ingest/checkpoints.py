"""A stream's last durable position, and the compare-and-swap that moves it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

from scene_pipeline.errors import CheckpointLostError, DataError
from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import reading, transact

__all__ = ["Checkpoint", "CheckpointState", "Lane", "Window", "fingerprint"]

Lane = Literal["forward", "rescan"]
# blocked: the source did not answer, or a proof is missing; its token is still good.
# faulted: the source broke its contract; its window starts afresh.
CheckpointState = Literal["active", "blocked", "faulted"]


@dataclass(frozen=True, slots=True)
class Window:
    """Coordinates in [start, end), aware UTC, fixed when the enumeration starts."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where one lane of a stream stands under one scope.

    ``traversal`` None: no enumeration is running; a ``window`` that stands nevertheless is to be
    enumerated (again). ``reached``: end of the last finished window of the sweep that ends at
    ``sweep_end``. ``claimed``: what an explicit source said of itself before the traversal.
    ``ids`` and ``ids_sum`` count and sum the distinct ids of this traversal; ``last_ids`` those
    of the traversal before it over the same window. ``bound`` is the certificate.
    """

    region: str
    stream: str
    lane: Lane
    scope: str
    generation: int = 0
    token: str | None = None
    request: str | None = None
    traversal: int | None = None
    began_at: datetime | None = None
    token_at: datetime | None = None
    window: Window | None = None
    sweep_end: datetime | None = None
    reached: datetime | None = None
    claimed: Bound | None = None
    pages: int = 0
    empty_pages: int = 0
    ids: int = 0
    ids_sum: int = 0
    matched: int | None = None
    passes: int = 0
    last_ids: int | None = None
    last_ids_sum: int | None = None
    bound: Bound | None = None
    bound_at: datetime | None = None
    state: CheckpointState = "active"
    reason: str = ""
    since: datetime

    def restarted(self) -> Checkpoint:
        """The same window from its first page."""
        return replace(
            self, traversal=None, token=None, began_at=None, claimed=None, pages=0, empty_pages=0,
            ids=0, ids_sum=0, matched=None,
        )  # fmt: skip


_COLUMN = t.checkpoints.c
# Built once: SQLAlchemy takes as long to build a statement as SQLite takes to run it.
_HERE = tuple(
    _COLUMN[name] == sa.bindparam(f"at_{name}") for name in ("region", "stream", "lane", "scope")
)
_AT_GENERATION = _COLUMN.generation == sa.bindparam("at_generation")
_SELECT = sa.select(t.checkpoints).where(*_HERE)
_TAKE = (
    t.checkpoints.update()
    .where(
        *_HERE,
        _AT_GENERATION,
        _COLUMN.token.is_not_distinct_from(sa.bindparam("at_token", type_=sa.Text)),
    )
    .values(generation=_COLUMN.generation + 1)
)
_WRITE = t.checkpoints.update().where(*_HERE)
_BLOCK = t.checkpoints.update().where(*_HERE, _AT_GENERATION)
_BLOCK_STREAM = t.checkpoints.update().where(*_HERE[:3])
_COUNT_LOST = (
    t.streams.update()
    .where(
        t.streams.c.region == sa.bindparam("at_region"),
        t.streams.c.stream == sa.bindparam("at_stream"),
    )
    .values(lost_swaps=t.streams.c.lost_swaps + 1)
)


def _here(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "at_region": checkpoint.region,
        "at_stream": checkpoint.stream,
        "at_lane": checkpoint.lane,
        "at_scope": checkpoint.scope,
    }


def fingerprint(*parts: str) -> str:
    """Thirty-two hex digits that tell two lists of texts apart."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:32]


def select_checkpoint(
    connection: sa.Connection, *, region: str, stream: str, lane: Lane, scope: str
) -> Checkpoint | None:
    """The stored checkpoint, or None."""
    here = {"at_region": region, "at_stream": stream, "at_lane": lane, "at_scope": scope}
    row = connection.execute(_SELECT, here).first()
    return None if row is None else _from_row(row)


def read_checkpoint(
    engine: sa.Engine, *, region: str, stream: str, lane: Lane, scope: str
) -> Checkpoint:
    """The stored checkpoint; raises `DataError` where the stream was never registered."""
    with reading(engine) as connection:
        found = select_checkpoint(connection, region=region, stream=stream, lane=lane, scope=scope)
    if found is None:
        raise DataError(f"stream {stream} has no checkpoint", where=f"region {region}, {lane}")
    return found


def count_lost_swap(engine: sa.Engine, stored: Checkpoint) -> None:
    """Count a stale retry that lost, and changed nothing else."""
    here = {"at_region": stored.region, "at_stream": stored.stream}
    transact(engine, lambda connection: connection.execute(_COUNT_LOST, here))


def lock_checkpoint(connection: sa.Connection, stored: Checkpoint) -> None:
    """Take the checkpoint for this transaction if it is still ``stored``; else raise.

    Stream, lane, scope, generation and token must all match. The generation moves on at once,
    so that on PostgreSQL the row stays locked until the commit, and a second taker waits, then
    loses. Raises `CheckpointLostError`.
    """
    taken = connection.execute(
        _TAKE,
        {**_here(stored), "at_generation": stored.generation, "at_token": stored.token},
    )
    if taken.rowcount != 1:
        raise CheckpointLostError(
            f"another ingester moved the checkpoint of {stored.stream} first",
            where=f"stream {stored.stream}, lane {stored.lane}, generation {stored.generation}",
            next_step="nothing was written; the ingester rereads the checkpoint and goes on there",
        )


def write_checkpoint(connection: sa.Connection, checkpoint: Checkpoint) -> None:
    """Write a checkpoint that `lock_checkpoint` has taken."""
    connection.execute(_WRITE, {**_here(checkpoint), **to_row(checkpoint)})


def block_checkpoint(
    engine: sa.Engine, stored: Checkpoint, *, state: CheckpointState, reason: str, now: datetime
) -> None:
    """Record why a stream does not move, unless another ingester has moved it meanwhile."""
    values = {
        **_here(stored),
        "at_generation": stored.generation,
        "state": state,
        "reason": reason,
        "since": now if stored.state == "active" else stored.since,
    }
    transact(engine, lambda connection: connection.execute(_BLOCK, values))


def block_stream(
    engine: sa.Engine, region: str, stream: str, *, lane: Lane, reason: str, now: datetime
) -> None:
    """Record that a stream's source cannot even be opened."""
    here = {"at_region": region, "at_stream": stream, "at_lane": lane}
    values = {**here, "state": "blocked", "reason": reason, "since": now}
    active = _BLOCK_STREAM.where(_COLUMN.state == "active")
    transact(engine, lambda connection: connection.execute(active, values))


def row_bound(row: Any, prefix: str = "bound") -> Bound | None:
    """The bound that a row keeps in two columns."""
    value = getattr(row, f"{prefix}_value")
    return None if value is None else Bound(value, getattr(row, f"{prefix}_endpoint"))


_PLAIN = (
    "region", "stream", "lane", "scope", "generation", "token", "request", "traversal",
    "began_at", "token_at", "sweep_end", "reached", "pages", "empty_pages", "ids", "ids_sum",
    "matched", "passes", "last_ids", "last_ids_sum", "bound_at", "state", "reason", "since",
)  # fmt: skip


def to_row(checkpoint: Checkpoint) -> dict[str, Any]:
    """The row that keeps a checkpoint."""
    window, bound, claimed = checkpoint.window, checkpoint.bound, checkpoint.claimed
    return {
        **{name: getattr(checkpoint, name) for name in _PLAIN},
        "window_start": window and window.start,
        "window_end": window and window.end,
        "bound_value": bound and bound.value,
        "bound_endpoint": bound and bound.endpoint,
        "claimed_value": claimed and claimed.value,
        "claimed_endpoint": claimed and claimed.endpoint,
    }


def _from_row(row: Any) -> Checkpoint:
    return Checkpoint(
        **{name: getattr(row, name) for name in _PLAIN},
        window=row.window_start and Window(row.window_start, row.window_end),
        bound=row_bound(row),
        claimed=row_bound(row, "claimed"),
    )
