"""Faults of a real server: restarts in mid-transaction, limits, deadlocks, held locks, triggers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import psycopg
import pytest
import sqlalchemy as sa

from scene_pipeline.errors import TableMismatchError, WarehouseUnavailableError
from scene_pipeline.warehouse import Replaced, TableVersion
from scene_pipeline.warehouse.migrate import migrate_warehouse
from scene_pipeline.warehouse.postgis import lock_numbers
from scene_pipeline.warehouse.roles import Roles
from scene_pipeline_tests.conftest import require_service
from scene_pipeline_tests.services import postgres as pg
from scene_pipeline_tests.services.planted import (
    DROP_A_ROW,
    GATE,
    RAISE_STATE,
    WAIT_AT_COMMIT,
    WAIT_IN_COPY,
    migrate,
    session,
    wait_until,
    waiting_pid,
)
from scene_pipeline_tests.services.scene_rows import REGION, key_of, make_partition
from scene_pipeline_tests.services.writers import open_target

pytestmark = pytest.mark.postgres

OLD = make_partition(key_of(), ["old-1", "old-2"], raw_seq=1)
NEW = make_partition(key_of(), ["a", "b", "c"], raw_seq=2)


@pytest.fixture
def url(postgis_url: str) -> str:
    return migrate(postgis_url)


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[pg.PostgresCluster]:
    """A server that may be stopped without taking other tests down."""
    require_service(pg.find_binaries() is not None, "PostgreSQL with PostGIS")
    with pg.run_cluster() as cluster:
        yield cluster


@pytest.fixture
def own_url(own_cluster: pg.PostgresCluster) -> str:
    return migrate(own_cluster.url(own_cluster.new_database()))


@contextmanager
def writer_held_at(trigger: str, url: str, *, deadline_s: float = 60) -> Iterator[Future[Replaced]]:
    """``OLD`` is stored; a thread replaces it by ``NEW`` and waits in ``trigger``.

    The holder's session ends with the block, or with the server.
    """
    warehouse = open_target(url, deadline_s=deadline_s)
    warehouse.replace(OLD)
    holder = psycopg.connect(url, autocommit=True)
    try:
        holder.execute(trigger)
        holder.execute(f"SELECT pg_advisory_lock({GATE})")
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(warehouse.replace, NEW)
            wait_until(lambda: waiting_pid(holder) is not None)
            yield writing
    finally:
        holder.close()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.parametrize("trigger", [WAIT_IN_COPY, WAIT_AT_COMMIT], ids=["mid-COPY", "at COMMIT"])
def test_a_restart_in_mid_transaction_is_waited_for_and_retried(
    own_cluster: pg.PostgresCluster, own_url: str, trigger: str, mode: str
) -> None:
    with writer_held_at(trigger, own_url) as writing:
        own_cluster.stop(mode)
        own_cluster.start()
        replaced = writing.result(timeout=60)
    assert replaced.written_rows == 3
    assert replaced.waited_s > 0
    warehouse = open_target(own_url)
    assert warehouse.read(key_of()).equals(NEW.rows)
    assert warehouse.read_versions([key_of()]) == {key_of(): TableVersion(2, 3)}


@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.parametrize("trigger", [WAIT_IN_COPY, WAIT_AT_COMMIT], ids=["mid-COPY", "at COMMIT"])
def test_a_server_that_stays_down_leaves_the_old_partition_whole(
    own_cluster: pg.PostgresCluster, own_url: str, trigger: str, mode: str
) -> None:
    with writer_held_at(trigger, own_url, deadline_s=1) as writing:
        own_cluster.stop(mode)
        try:
            with pytest.raises(WarehouseUnavailableError, match="within 1 s") as caught:
                writing.result(timeout=60)
        finally:
            own_cluster.start()
    assert "2024-06-01|7-66-45 of region alps" in caught.value.where
    assert "launched again" in caught.value.next_step
    warehouse = open_target(own_url)
    assert warehouse.read(key_of()).equals(OLD.rows)
    assert warehouse.read_versions([key_of()]) == {key_of(): TableVersion(1, 2)}
    with session(own_url) as connection:  # the holder is gone, so the same call goes through
        connection.execute("SELECT 1")
    assert warehouse.replace(NEW).deleted_rows == 2


def test_a_crash_of_the_servers_backend_and_its_recovery(
    own_cluster: pg.PostgresCluster, own_url: str
) -> None:
    """One backend killed with -9 makes the server drop all sessions and recover."""
    with writer_held_at(WAIT_IN_COPY, own_url) as writing:
        with psycopg.connect(own_url, autocommit=True) as connection:
            pid = waiting_pid(connection)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        replaced = writing.result(timeout=60)
    assert replaced.waited_s > 0
    assert open_target(own_url).read(key_of()).equals(NEW.rows)


def test_a_batch_survives_a_restart(own_cluster: pg.PostgresCluster, own_url: str) -> None:
    warehouse = open_target(own_url, deadline_s=60)
    batch = [make_partition(key_of(day), [f"b{day}", "b"][: day % 2 + 1]) for day in range(1, 9)]
    with session(own_url) as watcher, ThreadPoolExecutor(1) as pool:
        watcher.execute(WAIT_IN_COPY)
        watcher.execute(f"SELECT pg_advisory_lock({GATE})")
        writing = pool.submit(lambda: list(warehouse.replace_many(batch)))
        wait_until(lambda: waiting_pid(watcher) is not None)
        own_cluster.stop("immediate")
        own_cluster.start()
        outcomes = writing.result(timeout=60)
    assert sorted(o.key for o in outcomes if isinstance(o, Replaced)) == [p.key for p in batch]
    # "b" was in days 1, 3, 5 and 7, written in that order.
    counts = warehouse.count_rows([p.key for p in batch])
    assert counts == {key_of(day): 2 if day == 7 else 1 for day in range(1, 9)}


@pytest.mark.parametrize("state", ["40P01", "40001", "53300", "57P03"])
def test_passing_errors_are_retried(url: str, state: str) -> None:
    with session(url) as connection:
        connection.execute(RAISE_STATE.format(state=state, times=2))
        warehouse = open_target(url)
        replaced = warehouse.replace(NEW)
        assert connection.execute("SELECT last_value FROM calls").fetchone() == (3,)
    assert replaced.waited_s >= 0.04
    assert warehouse.read(key_of()).equals(NEW.rows)


@pytest.mark.parametrize("state", ["42501", "55P03", "XX000", "P0001"])
def test_other_errors_fail_at_once_by_name(url: str, state: str) -> None:
    with session(url) as connection:
        open_target(url).replace(OLD)
        connection.execute(RAISE_STATE.format(state=state, times=9))
        with pytest.raises(WarehouseUnavailableError) as caught:
            open_target(url).replace(NEW)
        assert connection.execute("SELECT last_value FROM calls").fetchone() == (1,)
    assert "2024-06-01|7-66-45 of region alps" in caught.value.where
    assert open_target(url).read(key_of()).equals(OLD.rows)


def test_an_error_that_never_passes_ends_at_the_deadline(url: str) -> None:
    with session(url) as connection:
        connection.execute(RAISE_STATE.format(state="40P01", times=10**6))
        with pytest.raises(WarehouseUnavailableError, match=r"within 0\.3 s: planted"):
            open_target(url, deadline_s=0.3).replace(NEW)
        (calls,) = connection.execute("SELECT last_value FROM calls").fetchone() or (0,)
    assert calls >= 2


def test_a_passing_error_in_a_batch_costs_its_key_one_more_try(url: str) -> None:
    batch = [make_partition(key_of(day), [f"i{day}"]) for day in range(1, 6)]
    with session(url) as connection:
        connection.execute(RAISE_STATE.format(state="40P01", times=2))
        warehouse = open_target(url)
        outcomes = list(warehouse.replace_many(batch))
        assert connection.execute("SELECT last_value FROM calls").fetchone() == (7,)
    assert [outcome.key for outcome in outcomes if isinstance(outcome, Replaced)] == [
        partition.key for partition in batch
    ]
    assert set(warehouse.count_rows([p.key for p in batch]).values()) == {1}


def test_a_real_deadlock_ends_with_both_partitions_written(url: str) -> None:
    warehouse = open_target(url)
    batch = [make_partition(key_of(day), [f"i{day}"]) for day in (1, 2)]
    list(warehouse.replace_many(batch))
    hold = "SELECT FROM scenes.partition_versions WHERE acq_date = %s FOR UPDATE"
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with session(url) as watcher, psycopg.connect(url) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute(hold, [key_of(2).day])
        writing = pool.submit(lambda: list(warehouse.replace_many(batch)))
        wait_until(lambda: watcher.execute(waiting).fetchone() == (1,))
        with suppress(psycopg.errors.DeadlockDetected):  # each waits for the other; one is let go
            rival.execute(hold, [key_of(1).day])
        rival.rollback()
        outcomes = writing.result(timeout=60)
    assert all(isinstance(outcome, Replaced) for outcome in outcomes)
    assert warehouse.count_rows([key_of(1), key_of(2)]) == {key_of(1): 1, key_of(2): 1}


def test_too_many_connections_are_waited_for(
    postgres: pg.PostgresCluster, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = url.rsplit("/", 1)[1]
    roles = Roles(f"o_{name}", f"w_{name}", f"r_{name}", writer_limit=1)
    engine_url = sa.make_url(url).set(drivername="postgresql+psycopg")
    migrate_warehouse(engine_url, schema="scenes", roles=roles, with_roles=True)
    as_writer = postgres.url(name, user=roles.writer)
    with psycopg.connect(as_writer) as occupant:
        with pytest.raises(WarehouseUnavailableError, match="too many connections for role") as no:
            open_target(as_writer, deadline_s=0.3).replace(NEW)
        assert "connection limit" in no.value.next_step
        monkeypatch.setattr(time, "sleep", lambda seconds: occupant.close())
        replaced = open_target(as_writer).replace(NEW)
    assert replaced.waited_s > 0
    assert replaced.written_rows == 3


def test_a_lock_held_past_the_deadline_names_the_partition(url: str) -> None:
    open_target(url).replace(OLD)
    with session(url) as connection:
        connection.execute(
            "SELECT pg_advisory_lock(%s, %s)", lock_numbers("scenes", REGION, key_of())
        )
        with pytest.raises(WarehouseUnavailableError, match="held the partition past") as caught:
            open_target(url, deadline_s=0.3).replace(NEW)
    assert "2024-06-01|7-66-45" in caught.value.where
    assert open_target(url).read(key_of()).equals(OLD.rows)


def test_a_row_that_the_table_swallows_fails_the_partition(url: str) -> None:
    """Rows written are the rows of the file, or nothing is."""
    warehouse = open_target(url)
    warehouse.replace(OLD)
    with session(url) as connection:
        connection.execute(DROP_A_ROW)
    with pytest.raises(TableMismatchError, match="holds 2 rows where the file has 3") as caught:
        warehouse.replace(NEW)
    assert "trigger" in caught.value.next_step
    assert warehouse.read(key_of()).equals(OLD.rows)
    other = make_partition(key_of(2), ["x"])
    outcomes = list(warehouse.replace_many([NEW, other]))
    assert isinstance(outcomes[0], tuple)
    assert isinstance(outcomes[0][1], TableMismatchError)
    assert isinstance(outcomes[1], Replaced)


def test_an_idle_writer_gives_its_place_back(url: str) -> None:
    warehouse = open_target(url)
    warehouse.replace(OLD)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'scene-pipeline'"
    with session(url) as watcher:
        wait_until(lambda: watcher.execute(sessions).fetchone() == (0,), deadline_s=20)
    assert warehouse.replace(NEW).deleted_rows == 2, "and takes a new one when it needs it"


def test_no_error_shows_a_password(url: str) -> None:
    port = pg.find_free_port()
    secret = "hunter2-secret"
    warehouse = open_target(f"postgresql://u:{secret}@127.0.0.1:{port}/db", deadline_s=0.2)
    with pytest.raises(WarehouseUnavailableError) as caught:
        warehouse.replace(NEW)
    told = [repr(warehouse), str(caught.value), repr(caught.value.__dict__)]
    told.append(str(caught.value.__cause__))
    assert all(secret not in text for text in told)
    assert "***" in told[0]
