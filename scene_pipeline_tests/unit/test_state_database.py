"""The state database: migrations, transactions, and refusals."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from scene_pipeline.errors import MigrationError, StateUnavailableError
from scene_pipeline.state import database, tables
from scene_pipeline.state.database import REVISION, migrate_state, open_state, reading, transact
from scene_pipeline.state.keysets import match_keys


@pytest.fixture
def engine(tmp_path: Path) -> sa.Engine:
    return open_state(f"sqlite:///{tmp_path}/state.db")


def _differences(engine: sa.Engine) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        return list(compare_metadata(context, tables.metadata))


def test_the_newest_migration_is_the_one_that_is_needed() -> None:
    config = Config()
    folder = Path(database.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    assert ScriptDirectory.from_config(config).get_current_head() == REVISION


def test_migrations_make_the_tables_of_the_code(engine: sa.Engine) -> None:
    assert _differences(engine) == []


@pytest.mark.postgres
def test_postgresql_is_refused_until_it_is_migrated(postgis_url: str) -> None:
    with pytest.raises(MigrationError, match="revision none"):
        open_state(postgis_url)
    migrate_state(postgis_url)
    migrate_state(postgis_url)
    engine = open_state(postgis_url)
    ours = set(tables.metadata.tables)
    found = set(sa.inspect(engine).get_table_names())
    assert ours <= found
    engine.dispose()


def test_a_newer_database_is_refused(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(MigrationError, match="9999") as caught:
        open_state(engine.url)
    assert "upgrade this installation" in caught.value.next_step


def test_another_database_is_refused() -> None:
    with pytest.raises(MigrationError, match="cannot be mysql"):
        open_state("mysql://localhost/x")


def test_every_instant_reads_back_and_sorts_as_time(engine: sa.Engine) -> None:
    instants = [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2024, 6, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ]
    rows = [{"region": "r", "generation": n, "fingerprint": "", "grid": "", "tiles": "",
             "opened_at": at} for n, at in enumerate(reversed(instants))]  # fmt: skip
    opened = tables.routings.c.opened_at
    with engine.begin() as connection:
        connection.execute(tables.routings.insert(), rows)
        found = list(connection.execute(sa.select(opened).order_by(opened)).scalars())
    assert found == instants


def test_a_naive_instant_is_refused(engine: sa.Engine) -> None:
    row = {"region": "r", "generation": 1, "fingerprint": "", "grid": "", "tiles": ""}
    naive = datetime(2024, 6, 1)  # noqa: DTZ001
    with engine.begin() as connection, pytest.raises(sa.exc.StatementError, match="naive"):
        connection.execute(tables.routings.insert().values(**row, opened_at=naive))


def test_a_busy_transaction_is_tried_again_and_a_lost_connection_is_not(
    engine: sa.Engine,
) -> None:
    def fail(text: str) -> sa.exc.OperationalError:
        return sa.exc.OperationalError("", {}, RuntimeError(text))

    errors = [fail("database is locked"), fail("database is locked")]

    def work(connection: sa.Connection) -> int:
        if errors:
            raise errors.pop()
        return 7

    assert transact(engine, work) == 7
    errors.append(fail("server closed the connection"))
    with pytest.raises(StateUnavailableError, match="closed the connection"):
        transact(engine, work)


def test_a_reader_sees_one_snapshot(engine: sa.Engine) -> None:
    count = sa.select(sa.func.count()).select_from(tables.regions)
    with reading(engine) as connection:
        assert connection.execute(count).scalar() == 0
        insert = tables.regions.insert().values(region="r")
        transact(engine, lambda other: other.execute(insert))
        assert connection.execute(count).scalar() == 0
    with reading(engine) as connection:
        assert connection.execute(count).scalar() == 1


@pytest.mark.parametrize("turned", [False, True])
def test_pairs_of_keys_match_exactly(engine: sa.Engine, turned: bool) -> None:
    table = tables.quarantine
    pairs = [("a", "x"), ("a", "y"), ("b", "x"), ("c", "z")]
    pairs = [(b, a) for a, b in pairs] if turned else pairs
    wanted = set(pairs[:3])
    at = datetime(2024, 6, 1, tzinfo=UTC)
    rows = [{"region": "r", "stream": "s", "collection": c, "item_id": i, "digest": "d",
             "state": "held", "reason": "", "explanation": "", "item": "", "first_at": at}
            for c, i in pairs]  # fmt: skip
    with engine.begin() as connection:
        connection.execute(table.insert(), rows)
        found = [
            tuple(row)
            for among in match_keys(table.c.collection, table.c.item_id, wanted)
            for row in connection.execute(
                sa.select(table.c.collection, table.c.item_id).where(among)
            )
        ]
    assert len(found) == 3
    assert set(found) == wanted
