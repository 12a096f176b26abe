"""One request rate a provider, shared by all streams and processes through the state database.

A request reserves the next free slot in one statement; slots are ``1 / requests_per_s`` apart. A
429 moves the next slot for everybody. PostgreSQL's clock is used where there is one, so that
machines need not agree on the time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

import sqlalchemy as sa

from scene_pipeline.state.database import reading, transact
from scene_pipeline.state.tables import throttles

__all__ = ["SharedThrottle", "Throttle", "read_requests"]


class Throttle(Protocol):
    """When the next request may start."""

    def reserve(self, patience_s: float) -> float | None:
        """Take a slot and return the seconds to wait for it; None if it is past ``patience_s``."""

    def hold(self, pause_s: float) -> None:
        """Nobody asks again before ``pause_s`` from now; counts a refusal."""


# One statement each, which both databases read alike; {now} is seconds since 1970. Written out,
# because an upsert built by SQLAlchemy is compiled anew for every request.
_RESERVE = """
    INSERT INTO throttles AS mine (source, next_at_s, requests, refused)
    VALUES (:source, {now} + :interval_s, 1, 0)
    ON CONFLICT (source) DO UPDATE SET
        next_at_s = CASE WHEN mine.next_at_s > {now} THEN mine.next_at_s ELSE {now} END
            + :interval_s,
        requests = mine.requests + 1
    WHERE mine.next_at_s <= {now} + :patience_s
    RETURNING next_at_s - :interval_s - {now}
"""
_HOLD = """
    INSERT INTO throttles AS mine (source, next_at_s, requests, refused)
    VALUES (:source, {now} + :pause_s, 0, 1)
    ON CONFLICT (source) DO UPDATE SET
        next_at_s = CASE WHEN mine.next_at_s > excluded.next_at_s
            THEN mine.next_at_s ELSE excluded.next_at_s END,
        refused = mine.refused + 1
    RETURNING next_at_s
"""
_CLOCKS = {
    "sqlite": ":now",
    "postgresql": "CAST(extract(epoch FROM statement_timestamp()) AS float8)",
}
_STATEMENTS = {
    (statement, dialect): sa.text(statement.format(now=now))
    for statement in (_RESERVE, _HOLD)
    for dialect, now in _CLOCKS.items()
}


@dataclass(frozen=True, slots=True)
class SharedThrottle:
    """The `Throttle` of one provider (``source``, its scheme and host) in the state database."""

    engine: sa.Engine = field(repr=False)
    source: str
    requests_per_s: float

    def reserve(self, patience_s: float) -> float | None:
        """See `Throttle.reserve`; a slot out of reach is left to others."""
        wait_s = self._run(_RESERVE, interval_s=1 / self.requests_per_s, patience_s=patience_s)
        return None if wait_s is None else max(0.0, wait_s)

    def hold(self, pause_s: float) -> None:
        """See `Throttle.hold`; a shorter hold never cuts a longer one."""
        self._run(_HOLD, pause_s=pause_s)

    def _run(self, statement: str, **seconds: float) -> float | None:
        def execute(connection: sa.Connection) -> float | None:
            prepared = _STATEMENTS[statement, connection.dialect.name]
            values = {"source": self.source, **seconds}
            if connection.dialect.name == "sqlite":
                values["now"] = (
                    time.time()
                )  # inside the transaction: a lock may have been waited for
            answer: float | None = connection.execute(prepared, values).scalar()
            return answer

        return transact(self.engine, execute)


def read_requests(engine: sa.Engine) -> list[tuple[str, int, int]]:
    """Each source (scheme and host), its requests so far, and how many it refused with 429."""
    column = throttles.c
    query = sa.select(column.source, column.requests, column.refused).order_by(column.source)
    with reading(engine) as connection:
        return [(source, made, refused) for source, made, refused in connection.execute(query)]
