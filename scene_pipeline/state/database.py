"""The state database: opening, migrating, and the two kinds of transaction.

SQLite creates and migrates itself, in WAL mode. PostgreSQL is migrated by an operator
(`scene-pipeline migrate`) and refused while it is behind or ahead.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from scene_pipeline.errors import MigrationError, StateUnavailableError

__all__ = ["REVISION", "migrate_state", "open_state", "reading", "transact"]

# The newest migration; a test holds it equal to what alembic finds.
REVISION = "0002"
BUSY_TIMEOUT_S = 30.0
DEADLINE_S = 60.0
_IMMEDIATE = "scene_pipeline_immediate"
# Serialization failure, deadlock, lock not available: the transaction is gone, none of it done.
_RETRIED_SQLSTATES = frozenset({"40001", "40P01", "55P03"})

T = TypeVar("T")


def open_state(url: str | URL) -> sa.Engine:
    """An engine whose schema is this version's; raises `MigrationError` where it is not."""
    engine = _create_engine(_with_driver(url))
    found = _read_revision(engine)
    if found == REVISION:
        return engine
    if engine.dialect.name == "sqlite" and (found is None or found < REVISION):
        _upgrade(engine)
        return engine
    engine.dispose()
    raise MigrationError(
        f"the state database is at revision {found or 'none'}, this version needs {REVISION}",
        where=engine.url.render_as_string(hide_password=True),
        next_step="run `scene-pipeline migrate`"
        if found is None or found < REVISION
        else "it was written by a newer version: upgrade this installation",
    )


def migrate_state(url: str | URL) -> None:
    """Bring the schema to this version's revision; running it again changes nothing."""
    engine = _create_engine(_with_driver(url))
    try:
        _upgrade(engine)
    finally:
        engine.dispose()


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One snapshot of the database: every read inside the block sees the same state."""
    options: dict[str, Any] = {}
    if engine.dialect.name == "postgresql":
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    try:
        with _connect(engine, **options) as connection:
            yield connection
    except sa.exc.OperationalError as error:
        raise _unavailable(engine, error) from error


def transact(
    engine: sa.Engine, work: Callable[[sa.Connection], T], *, deadline_s: float = DEADLINE_S
) -> T:
    """Run ``work`` in one write transaction and commit it.

    ``work`` may run several times: a transaction that the database rolled back for the sake of
    another (serialization, deadlock, a busy SQLite) is tried again until ``deadline_s``. A
    connection that is lost is not retried, because the commit may have happened: raises
    `StateUnavailableError`, and the caller reads what is true.
    """
    begun = time.monotonic()
    attempt = 0
    while True:
        try:
            with _connect(engine, **{_IMMEDIATE: True}) as connection, connection.begin():
                return work(connection)
        except sa.exc.OperationalError as error:
            if not _was_rolled_back(error) or time.monotonic() - begun > deadline_s:
                raise _unavailable(engine, error) from error
        attempt += 1
        time.sleep(random.uniform(0.005, 0.02) * min(2**attempt, 32))  # noqa: S311  jitter


def _connect(engine: sa.Engine, **options: Any) -> sa.Connection:
    return engine.connect().execution_options(**options)


def _was_rolled_back(error: sa.exc.OperationalError) -> bool:
    sqlstate = getattr(error.orig, "sqlstate", None)
    return sqlstate in _RETRIED_SQLSTATES or "database is locked" in str(error.orig)


def _unavailable(engine: sa.Engine, error: sa.exc.OperationalError) -> StateUnavailableError:
    return StateUnavailableError(
        f"the state database did not answer: {str(error.orig).strip()}",
        where=engine.url.render_as_string(hide_password=True),
        next_step="see that it runs and accepts connections, then repeat the command",
    )


def _with_driver(url: str | URL) -> URL:
    parsed = make_url(url)
    if parsed.drivername in {"postgresql", "postgres"}:
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _create_engine(url: URL) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        if url.database and url.database != ":memory:":
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    if url.get_backend_name() == "postgresql":
        # Small on purpose: every run of every worker opens one of these.
        return sa.create_engine(url, pool_size=2, max_overflow=4, pool_pre_ping=True)
    raise MigrationError(
        f"the state database cannot be {url.get_backend_name()}",
        next_step="set state_url to sqlite:///… or postgresql://…",
    )


def _prepare_sqlite(connection: Any, record: Any) -> None:
    del record
    # The driver's own BEGIN comes late and never IMMEDIATE: transactions are begun below.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = WAL")
    # FULL: a published frontier must survive a power cut, or it could be seen going back.
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A deferred transaction that reads before it writes can be refused without waiting.
    immediate = connection.get_execution_options().get(_IMMEDIATE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _read_revision(engine: sa.Engine) -> str | None:
    with reading(engine) as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def _upgrade(engine: sa.Engine) -> None:
    # Alembic takes a tenth of a second to import: only when there is something to do.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["engine"] = engine
    command.upgrade(config, "head")
