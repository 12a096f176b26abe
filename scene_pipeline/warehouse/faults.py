"""Which database errors pass by themselves, and the bounded wait for them.

The list is closed: whatever is not on it fails at once, by name. An error at connection time has
no SQLSTATE in libpq, so those are told by the server's English text.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from scene_pipeline.errors import (
    MigrationError,
    ScenePipelineError,
    TableMismatchError,
    WarehouseUnavailableError,
)

__all__ = ["passes_by_itself", "retry_within", "translate_error"]

Outcome = TypeVar("Outcome")

# PostgreSQL appendix A. Lock timeout (55P03) is not here: it is the deadline itself.
_PASSING_STATES = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "53300",  # too_many_connections
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P05",  # idle_session_timeout
        "57P03",  # cannot_connect_now: starting up, shutting down, in recovery
        "08000", "08001", "08003", "08004", "08006",  # connection exceptions
    }
)  # fmt: skip
_PASSING_TEXTS = (
    "too many connections",
    "too many clients already",
    "remaining connection slots",
    "connection refused",
    "connection reset",
    "broken pipe",
    "connection timeout",
    "timeout expired",
    "no such file or directory",  # the unix socket of a server that is restarting
    "server closed the connection",
    "connection is lost",
    "connection is closed",
    "connection is bad",
    "consuming input failed",
    "the database system is",  # starting up, shutting down, in recovery mode, not yet accepting
    "terminating connection",
)
_PAUSE_S = (0.02, 0.1)


def passes_by_itself(error: psycopg.Error) -> bool:
    """Whether the same transaction, run again, can succeed."""
    if error.sqlstate is not None:
        return error.sqlstate in _PASSING_STATES
    text = str(error).lower()
    return isinstance(error, psycopg.OperationalError) and any(t in text for t in _PASSING_TEXTS)


def retry_within(
    deadline_s: float, attempt: Callable[[], Outcome], *, where: str
) -> tuple[Outcome, float]:
    """Run ``attempt``, again after each passing error, until ``deadline_s`` after the first one.

    ``attempt`` must be a whole transaction that may run twice: a connection that dies at COMMIT
    leaves open whether it did. Pauses are 20 to 100 ms, jittered, so that a herd of writers
    spreads out. Returns the outcome and the seconds spent on failed attempts and pauses. Raises
    `WarehouseUnavailableError`, or what `translate_error` makes of any other database error.
    """
    began = time.monotonic()
    first_fault: float | None = None
    while True:
        started = time.monotonic()
        try:
            outcome = attempt()
        except psycopg.Error as error:
            if not passes_by_itself(error):
                raise translate_error(error, where=where) from error
            now = time.monotonic()
            first_fault = first_fault or now
            pause = random.uniform(*_PAUSE_S)  # noqa: S311 - jitter, not a secret
            if now + pause > first_fault + deadline_s:
                raise WarehouseUnavailableError(
                    f"PostGIS did not take the write within {deadline_s:g} s: {_first_line(error)}",
                    where=where,
                    next_step="check the server and the writers' connection limit; nothing was"
                    " changed, the same run can be launched again",
                ) from error
            time.sleep(pause)
        else:
            return outcome, started - began if first_fault else 0.0


def translate_error(error: psycopg.Error, *, where: str) -> ScenePipelineError:
    """Our error for a database error that no wait will cure; the text never holds a URL."""
    state = error.sqlstate or ""
    text = _first_line(error)
    if state in {"3F000", "42P01", "42703"}:
        return MigrationError(
            text, where=where, next_step="run `scene-pipeline migrate` as the schema's owner"
        )
    if state == "55P03":
        return WarehouseUnavailableError(
            "another transaction held the partition past the deadline",
            where=where,
            next_step="see pg_stat_activity and pg_locks; nothing was changed",
        )
    if state.startswith(("22", "23")):
        return TableMismatchError(
            text, where=where, next_step="rebuild the partition; nothing was changed"
        )
    return WarehouseUnavailableError(
        text, where=where, next_step="correct the connection or the role's rights, then run again"
    )


def _first_line(error: psycopg.Error) -> str:
    return " ".join(str(error).split("\n", maxsplit=1)[0].split()) or type(error).__name__
