"""One connection a process, and none for long: the writer role's limit counts writers at work.

A pool that kept its connection would keep a place behind that limit while its process does
something else, and whoever waits would wait for the length of a run. So a session older than two
seconds ends with its transaction, and the server ends one that idles. Connecting anew costs some
20 ms, most of it for loading PostGIS.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy.engine import URL

__all__ = ["Session"]

_HOLD_S = 2.0
_IDLE_S = 2.0
_CONNECT_OPTIONS: dict[str, Any] = {
    "application_name": "scene-pipeline",
    "connect_timeout": 10,
    # A server that vanished without a goodbye is noticed within a minute.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


class Session:
    """Transactions on one connection, opened when needed; threads take turns.

    Waits for locks of the database, and for the turn, end at ``deadline_s`` with
    `psycopg.errors.LockNotAvailable`.
    """

    def __init__(self, url: URL, *, deadline_s: float) -> None:
        self._options = dict(url.get_dialect()().create_connect_args(url)[1])
        self._deadline_s = deadline_s
        self._turn = threading.Lock()
        self._kept: psycopg.Connection | None = None
        self._opened_at = self._used_at = 0.0

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection]:
        """Committed at the end of the block, or rolled back."""
        if not self._turn.acquire(timeout=self._deadline_s):
            raise psycopg.errors.LockNotAvailable("another thread kept the only connection")
        try:
            connection = self._take()
            try:
                with connection.transaction():
                    yield connection
            finally:
                self._used_at = time.monotonic()
                if connection.closed or self._used_at > self._opened_at + _HOLD_S:
                    self._drop()
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the session, if there is one."""
        with self._turn:
            self._drop()

    def _take(self) -> psycopg.Connection:
        # The server may be about to end an idle session: half its time is surely not too late.
        if self._kept is not None and time.monotonic() > self._used_at + _IDLE_S / 2:
            self._drop()
        if self._kept is None:
            self._kept = psycopg.connect(**self._options, **_CONNECT_OPTIONS)
            self._opened_at = time.monotonic()
            self._kept.execute(
                f"SET idle_session_timeout = '{_IDLE_S:g}s';"
                f" SET lock_timeout = '{self._deadline_s * 1000:.0f}ms'"
            )
            self._kept.commit()
        return self._kept

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None
