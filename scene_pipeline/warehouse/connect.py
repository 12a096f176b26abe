"""Connections that leave room for others: one a process, and none for long.

The writer role's limit is the wall. A pool that kept its connection would keep a place behind it
while its process does something else, and the writers that wait would wait for the length of a
run. So a session older than two seconds ends with its transaction, and the server ends one that
idles; connecting anew costs some 20 ms, most of it for loading PostGIS.
"""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from scene_pipeline.errors import MigrationError
from scene_pipeline.warehouse.tables import REVISION

__all__ = ["create_engine", "require_revision"]

_HOLD_S = 2.0
_IDLE_S = 2
_CONNECT_ARGS = {
    "application_name": "scene-pipeline",
    "connect_timeout": 10,
    # A server that vanished without a goodbye is noticed within a minute.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


def create_engine(url: URL, *, deadline_s: float) -> sa.Engine:
    """An engine of one connection; waits for locks end at ``deadline_s`` with SQLSTATE 55P03.

    `Connection.info` holds ``gives_way_at``, on the clock of `time.monotonic`.
    """
    engine = sa.create_engine(
        url,
        pool_size=1,
        max_overflow=0,
        pool_timeout=deadline_s,
        pool_pre_ping=True,
        connect_args=_CONNECT_ARGS,
        use_native_hstore=False,  # saves a query on each connection
    )

    @sa.event.listens_for(engine, "connect")
    def _limit(driver: Any, record: Any) -> None:
        record.info["gives_way_at"] = time.monotonic() + _HOLD_S
        with driver.cursor() as cursor:
            cursor.execute(
                f"SET idle_session_timeout = '{_IDLE_S}s';"
                f" SET lock_timeout = '{int(deadline_s * 1000)}ms'"
            )
        driver.commit()

    return engine


def require_revision(found: str | None, *, schema: str, where: str) -> None:
    """Raise `MigrationError` unless the schema is at the revision that this version needs."""
    if found != REVISION:
        raise MigrationError(
            f"schema {schema} is at revision {found}, this version needs {REVISION}",
            where=where,
            next_step="run `scene-pipeline migrate` as the schema's owner",
        )
