"""The table that people of this trade keep: each of its complaints, and what happens here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, choose_policy
from scene_pipeline.backfill.dagster_internals import BulkActionStatus, add_backfill_row
from scene_pipeline.backfill.diagnose import diagnose_backfill
from scene_pipeline.backfill.key_states import asset_key_of
from scene_pipeline.backfill.selection import Selection, list_keys
from scene_pipeline.backfill.waves import LocalExecutor, Wave, retry_undone
from scene_pipeline.errors import InvalidKeyError, SourceUnavailableError
from scene_pipeline.ingest.frontier import read_frontier
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.state.database import open_state
from scene_pipeline.warehouse.migrate import migrate_warehouse
from scene_pipeline.warehouse.roles import Roles
from scene_pipeline_tests.services.archive_region import START, ArchiveRegion
from scene_pipeline_tests.services.dagster import wait_until
from scene_pipeline_tests.services.http_region import ingest, make_item, make_settings, read_ids
from scene_pipeline_tests.services.http_server import Answer, Incoming, answer_json, serve
from scene_pipeline_tests.services.memory_stac import MemoryStac
from scene_pipeline_tests.services.postgres import PostgresCluster


@pytest.fixture
def region(tmp_path: Path) -> Iterator[ArchiveRegion]:
    made = ArchiveRegion(tmp_path, maps=False)
    yield made
    made.close()


def retry(region: ArchiveRegion, wave: Wave) -> list[Wave]:
    """`backfill retry ID --local`."""
    assert wave.stored is not None
    return retry_undone(
        region.site,
        LocalExecutor(region.definitions.resolve_job_def),
        backfill_id=wave.stored.plan.plan_id,
        policies={
            asset: choose_policy(asset, region.settings.policies) for asset in (FOOTPRINTS, TABLE)
        },
        advance=lambda *_: None,
    )


def test_recomputes_what_succeeded(region: ArchiveRegion) -> None:
    """ "The backfill failed at 75 %, and the retry began again at 0 %." It takes what is undone."""
    keys = region.window(2)
    region.ingest(region.one_scene_a_key(keys))
    for key in keys[3:6]:
        region.corrupt_scene(key)
    first, _ = region.launch(keys, FOOTPRINTS, TABLE)
    assert first.stored is not None
    before = first.account
    assert before is not None
    assert (len(before.by_outcome["done"]), before.undone) == (9, tuple(keys[3:6]))
    retried = retry(region, first)
    assert retried[0].stored is not None
    assert [planned.key for planned in retried[0].stored.plan.keys] == keys[3:6]
    (after,) = diagnose_backfill(region.site, first.stored.plan.plan_id, now=datetime.now(UTC))
    assert before.count_rebuilt(after) == 0


def test_a_retry_that_fails_again_rebuilds_nothing_below(region: ArchiveRegion) -> None:
    """Newer raw data spoilt a key: what the table has of it is old, but nothing newer is there."""
    key = region.key(0, 0)
    region.ingest(region.one_scene_a_key([key]))
    region.launch([key], FOOTPRINTS, TABLE)
    region.corrupt_scene(key)
    rebuild = Selection(states=frozenset({"materialized"}))
    first, _ = region.launch([key], FOOTPRINTS, TABLE, selection=rebuild)
    assert first.account is not None
    assert first.account.undone == (key,)
    again, below = retry(region, first)
    assert again.account is not None
    assert again.account.undone == (key,)
    assert below.stored is None


def test_a_storm_of_429(tmp_path: Path) -> None:
    """ "We asked again at once, and were locked out." One request, then silence until told so."""
    memory = MemoryStac(
        [make_item(f"i{n:03d}", f"2024-06-{1 + n % 30:02d}T12:00:00Z") for n in range(30)]
    )
    storm = [True]

    def respond(incoming: Incoming) -> Answer:
        if storm[0]:
            return answer_json({"description": "slow down"}, 429, retry_after="2")
        return memory.respond(incoming)

    with serve(respond) as server:
        memory.url = server.url
        # A deadline below the pause that is asked for: the round ends, it does not sit and wait.
        settings = make_settings(server.url, tmp_path, deadline_s=1)
        refused = ingest(settings)
        assert isinstance(refused.error, SourceUnavailableError)
        assert refused.state == "blocked", "throttled is not idle"
        assert len(server.requests) == 1
        ingest(settings)
        assert len(server.requests) == 1, "the pause is known to every later round"
        engine = open_state(settings.state_engine_url)
        frontier = read_frontier(engine, settings.region)
        engine.dispose()
        assert frontier is None or frontier.bound is None
        storm[0] = False
        wait_until(lambda: ingest(settings).error is None, "the pause to be over")
        assert len(read_ids(settings)) == 30, "nothing was lost"


def test_one_failed_date_sinks_all(region: ArchiveRegion) -> None:
    """ "One bad day, and the whole range is red and empty." The other days are there, and below."""
    keys = region.window(4)
    region.ingest(region.one_scene_a_key(keys))
    bad = [key for key in keys if key.day == START + timedelta(days=1)]
    for key in bad:
        region.corrupt_scene(key)
    footprints, table = region.launch(keys, FOOTPRINTS, TABLE, policy="single_run")
    assert footprints.stored is not None
    assert len(footprints.stored.plan.runs) == 1
    for wave in (footprints, table):
        assert wave.account is not None
        assert len(wave.account.by_outcome["done"]) == 18
    counted = region.pipeline.warehouse.count_rows(keys)
    assert counted == {key: int(key not in bad) for key in keys}
    result = region.run_coverage(START, region.end - timedelta(days=1))
    assert region.made_keys(result) == ["2024-06-01", "2024-06-03", "2024-06-04"]


@pytest.mark.postgres
def test_connections_are_exhausted(tmp_path: Path, postgres: PostgresCluster) -> None:
    """ "The database ran out of connections, and we redid everything." Only its writes are due."""
    name = postgres.new_database()
    roles = Roles(f"o_{name}", f"w_{name}", f"r_{name}", writer_limit=1)
    owner_url = sa.make_url(postgres.url(name)).set(drivername="postgresql+psycopg")
    migrate_warehouse(owner_url, schema="scenes", roles=roles, with_roles=True)
    as_writer = postgres.url(name, user=roles.writer)
    region = ArchiveRegion(
        tmp_path,
        maps=False,
        warehouse_url=as_writer,
        warehouse_reader_url=postgres.url(name),
        warehouse_schema="scenes",
        caps={"db_deadline_s": 0.3},
        retries={"max_retries": 0},
    )
    keys = region.window(1, 3)
    region.ingest(region.one_scene_a_key(keys))
    with psycopg.connect(as_writer):
        footprints, table = region.launch(keys, FOOTPRINTS, TABLE)
    assert footprints.account is not None
    assert footprints.account.clean
    assert table.stored is not None
    assert table.account is not None
    assert table.account.by_cause == {"database": 3}
    assert "too many connections" in table.account.findings[0].failure.text
    (retried,) = retry(region, table)
    assert retried.asset == TABLE, "the files are there"
    assert region.pipeline.warehouse.count_rows(keys) == dict.fromkeys(keys, 1)
    made = region.instance.fetch_materializations(
        asset_key_of(region.pipeline.definition, FOOTPRINTS.name), limit=10
    ).records
    assert Counter(each.partition_key for each in made) == Counter(map(str, keys))
    region.close()


def test_off_by_one_at_the_end_of_the_range(region: ArchiveRegion) -> None:
    """ "The last day is missing", or "a day too many fails for ever". Both ends are included."""
    first, last, today = START, START + timedelta(days=1), datetime.now(UTC).date()

    def list_range(end: object) -> list[PartitionKey]:
        selection = Selection(first=first, last=end)  # type: ignore[arg-type]
        return list_keys(selection, region.pipeline.definition, today=today, covered=region.end)

    assert {key.day for key in list_range(last)} == {first, last}
    with pytest.raises(InvalidKeyError, match="after end") as refused:
        list_range(region.end)
    assert str(region.end) in str(refused.value)

    # A backfill from before the end was moved: what no run can make is no failure.
    region.ingest(region.one_scene_a_key(region.window(4)))
    region.launch(region.window(4), FOOTPRINTS)
    asked = [*region.window(4), PartitionKey(region.end, region.tiles[0])]
    add_backfill_row(
        region.instance,
        backfill_id="older",
        status=BulkActionStatus.COMPLETED_FAILED,
        title="",
        tags={},
        job_name="scenes_batched_job",
        location_name="scene_pipeline",
        repository_name="__repository__",
        asset_key=asset_key_of(region.pipeline.definition, FOOTPRINTS.name),
        keys=[str(key) for key in asked],
        started_at=datetime(2024, 6, 1, tzinfo=UTC),
    )
    (account,) = diagnose_backfill(region.site, "older", now=datetime.now(UTC))
    assert account.rejected == {str(asked[-1]): "after end"}
    assert len(account.by_outcome["done"]) == 24
    assert account.undone == ()
