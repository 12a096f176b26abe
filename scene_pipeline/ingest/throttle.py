"""One request rate a provider, shared by all streams and processes through the state database.

A request reserves the next free slot in one UPDATE; slots are ``1 / requests_per_s`` apart. A
429 moves the next slot for everybody. PostgreSQL's clock is used where there is one, so that
machines need not agree on the time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from scene_pipeline.state.database import transact
from scene_pipeline.state.tables import throttles

__all__ = ["SharedThrottle", "Throttle"]


class Throttle(Protocol):
    """When the next request may start."""

    def reserve(self, patience_s: float) -> float | None:
        """Take a slot and return the seconds to wait for it; None if it is past ``patience_s``."""

    def hold(self, pause_s: float) -> None:
        """Nobody asks again before ``pause_s`` from now; counts a refusal."""


@dataclass(frozen=True, slots=True)
class SharedThrottle:
    """The `Throttle` of one provider (``source``, its scheme and host) in the state database."""

    engine: sa.Engine = field(repr=False)
    source: str
    requests_per_s: float

    def reserve(self, patience_s: float) -> float | None:
        """See `Throttle.reserve`; a slot out of reach is left to others."""
        interval_s, row = 1 / self.requests_per_s, throttles.c

        def take(connection: sa.Connection) -> float | None:
            now = self._prepare(connection)
            wait_s: float | None = connection.execute(
                throttles.update()
                .where(row.source == self.source, row.next_at_s <= now + patience_s)
                .values(
                    next_at_s=_later(row.next_at_s, now) + interval_s, requests=row.requests + 1
                )
                .returning(row.next_at_s - interval_s - now)
            ).scalar()
            return wait_s

        wait_s = transact(self.engine, take)
        return None if wait_s is None else max(0.0, wait_s)

    def hold(self, pause_s: float) -> None:
        """See `Throttle.hold`; a shorter hold never cuts a longer one."""
        row = throttles.c

        def push(connection: sa.Connection) -> None:
            now = self._prepare(connection)
            connection.execute(
                throttles.update()
                .where(row.source == self.source)
                .values(next_at_s=_later(row.next_at_s, now + pause_s), refused=row.refused + 1)
            )

        transact(self.engine, push)

    def _prepare(self, connection: sa.Connection) -> Any:
        """Make the row if it is not there; return the time as seen inside the transaction."""
        is_postgres = connection.dialect.name == "postgresql"
        insert = (postgresql if is_postgres else sqlite).insert(throttles)
        row = {"source": self.source, "next_at_s": 0.0, "requests": 0, "refused": 0}
        connection.execute(insert.values(row).on_conflict_do_nothing())
        if is_postgres:
            return sa.extract("epoch", sa.func.statement_timestamp()).cast(sa.Double)
        return sa.literal(time.time(), sa.Double)


def _later(one: Any, other: Any) -> Any:
    return sa.case((one > other, one), else_=other)
