"""Twelve writers at once, as processes that know nothing of each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa

from scene_pipeline.warehouse import Replaced, TableVersion
from scene_pipeline.warehouse.migrate import migrate_warehouse
from scene_pipeline.warehouse.roles import Roles
from scene_pipeline_tests.services.planted import GATE, WAIT_AT_COMMIT, migrate, session, wait_until
from scene_pipeline_tests.services.postgres import PostgresCluster
from scene_pipeline_tests.services.scene_rows import key_of, make_partition
from scene_pipeline_tests.services.writers import WriterJob, open_target, run_writers

pytestmark = pytest.mark.postgres
WRITERS = 12


@pytest.fixture
def url(postgis_url: str) -> str:
    return migrate(postgis_url)


@pytest.mark.parametrize("day", [1, 2], ids=["same key", "Item moved to another day"])
def test_the_second_writer_waits_for_the_firsts_commit(url: str, day: int) -> None:
    """Two open transactions that cannot see each other's rows: the case that locks are for."""
    first = make_partition(key_of(1), ["shared", "first"])
    second = make_partition(key_of(day), ["second", "shared", "third"])
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(url, autocommit=True) as holder, ThreadPoolExecutor(2) as pool:
        holder.execute(WAIT_AT_COMMIT)
        holder.execute(f"SELECT pg_advisory_lock({GATE})")
        one = pool.submit(open_target(url).replace, first)
        wait_until(lambda: holder.execute(waiting).fetchone() == (1,))
        two = pool.submit(open_target(url).replace, second)
        wait_until(lambda: two.done() or holder.execute(waiting).fetchone() == (2,))
        assert not one.done()
        holder.execute(f"SELECT pg_advisory_unlock({GATE})")
        one.result(timeout=60)
        two.result(timeout=60)
    warehouse = open_target(url)
    assert warehouse.read(key_of(day)).equals(second.rows)
    assert warehouse.count_rows([key_of(1)]) == {key_of(1): 3 if day == 1 else 1}


def test_same_and_neighbouring_keys_are_never_mixed_and_never_doubled(url: str) -> None:
    keys = (key_of(1), key_of(1, "7-66-46"))
    jobs = [
        WriterJob(url, number, keys, ("seam", *(f"i-{n}" for n in range(10 + number))))
        for number in range(WRITERS)
    ]
    seen = 0
    with run_writers(jobs) as futures, session(url) as reader:
        while not all(future.done() for future in futures):
            found = reader.execute(
                "SELECT count(*), min(processing_baseline), max(processing_baseline)"
                " FROM scenes.scene_footprints GROUP BY acq_date, tile"
            ).fetchall()
            seen += len(found)
            for rows, low, high in found:
                assert low == high, "rows of two writers in one partition"
                assert rows == 11 + int(low), "rows lost or doubled"
        outcomes = [outcome for future in futures for outcome in future.result()]
    assert seen, "nobody looked while they wrote"
    assert len(outcomes) == WRITERS * len(keys) * jobs[0].rounds
    assert all(isinstance(outcome, Replaced) for outcome in outcomes), outcomes
    warehouse = open_target(url)
    for key in keys:
        stored = warehouse.read(key)
        (writer,) = set(stored["processing_baseline"].to_pylist())
        assert stored["item_id"].to_pylist() == sorted(jobs[int(writer)].items)
        assert warehouse.read_versions([key]) == {key: TableVersion(1, stored.num_rows)}


def test_an_item_that_twelve_days_claim_is_in_one_day_at_every_moment(url: str) -> None:
    keys = [key_of(day) for day in range(1, WRITERS + 1)]
    jobs = [
        WriterJob(url, n, (key,), ("wanderer", f"own-{n}"), rounds=3) for n, key in enumerate(keys)
    ]
    seen = 0
    with run_writers(jobs) as futures, session(url) as reader:
        while not all(future.done() for future in futures):
            (days,) = reader.execute(
                "SELECT count(*) FROM scenes.scene_footprints WHERE item_id = 'wanderer'"
            ).fetchone() or (0,)
            assert days <= 1
            seen += days
        outcomes = [outcome for future in futures for outcome in future.result()]
    assert seen, "nobody looked while they wrote"
    assert all(isinstance(outcome, Replaced) for outcome in outcomes), outcomes
    warehouse = open_target(url)
    counts = warehouse.count_rows(keys)
    assert sorted(counts.values()) == [1] * (WRITERS - 1) + [2]
    assert {key: version.rows for key, version in warehouse.read_versions(keys).items()} == counts


def test_the_highest_raw_version_stays_whoever_comes_last(url: str) -> None:
    keys = (key_of(1), key_of(2))
    jobs = [
        WriterJob(url, n, keys[:: 1 if n % 2 else -1], (f"v-{n}",), rounds=3, raw_seq=n + 1)
        for n in range(WRITERS)
    ]
    with run_writers(jobs) as futures:
        outcomes = [outcome for future in futures for outcome in future.result()]
    refused = {outcome.split(":")[0] for outcome in outcomes if isinstance(outcome, str)}
    assert refused <= {"StaleVersionError"}
    warehouse = open_target(url)
    # An Item of two days stays in the one that was written last.
    assert {v.raw_seq for v in warehouse.read_versions(keys).values()} == {WRITERS}
    assert sum(warehouse.count_rows(keys).values()) == 1


def test_the_server_never_sees_more_writers_than_the_limit(
    postgres: PostgresCluster, url: str
) -> None:
    """Processes that bypass Dagster's pool: the role's limit is the wall, waiting gets all in."""
    name = url.rsplit("/", 1)[1]
    roles = Roles(f"owner_{name}", f"writer_{name}", f"reader_{name}", writer_limit=4)
    engine_url = sa.make_url(url).set(drivername="postgresql+psycopg")
    migrate_warehouse(engine_url, schema="scenes", roles=roles, with_roles=True)
    target = postgres.url(name, user=roles.writer)
    jobs = [
        WriterJob(target, n, (key_of(n + 1),), tuple(f"{n}-{i}" for i in range(50)), rounds=4)
        for n in range(WRITERS)
    ]
    counted: list[int] = []
    with run_writers(jobs) as futures, session(url) as watcher:
        while not all(future.done() for future in futures):
            row = watcher.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE usename = %s AND backend_type = 'client backend'",
                [roles.writer],
            ).fetchone()
            counted.append(row[0] if row else 0)
        outcomes = [outcome for future in futures for outcome in future.result()]
    assert all(isinstance(outcome, Replaced) for outcome in outcomes), outcomes
    assert 2 <= max(counted) <= 4
    waited = [o.waited_s for o in outcomes if isinstance(o, Replaced)]
    assert max(waited) > 0, "twelve writers and four places: some must have waited"
    keys = [key_of(n + 1) for n in range(WRITERS)]
    assert open_target(url).count_rows(keys) == dict.fromkeys(keys, 50)


def test_threads_of_one_process_take_turns_at_one_connection(url: str) -> None:
    warehouse = open_target(url)
    keys = [key_of(day) for day in range(1, 9)]
    application = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'scene-pipeline'"
    with ThreadPoolExecutor(4) as pool, session(url) as watcher:
        list(pool.map(lambda key: warehouse.replace(make_partition(key, 30)), keys))
        assert watcher.execute(application).fetchone() == (1,)
    assert warehouse.count_rows(keys) == dict.fromkeys(keys, 30)
