"""Ticks of the sensor: what they launch, when they stop, and what a crash leaves to the next."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.storage.event_log.schema import SqlEventLogStorageTable
from dagster._core.storage.runs.schema import RunTagsTable

from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, choose_policy
from scene_pipeline.backfill.dagster_internals import BulkActionStatus, add_backfill_row
from scene_pipeline.backfill.key_states import asset_key_of
from scene_pipeline.backfill.launch import Place, new_launch_id, reserve_keys
from scene_pipeline.backfill.plan_store import Launcher, launcher_here, read_open_plans
from scene_pipeline.backfill.selection import Selection
from scene_pipeline.backfill.ticks import Cursor, Requested, Tick, evaluate_tick, parse_cursor
from scene_pipeline.errors import SceneRejectedError, StateUnavailableError
from scene_pipeline.ingest.raw import read_reopened
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.state.tables import metadata, plans, reopened
from scene_pipeline_tests.services.small_region import (
    REGION,
    START,
    SmallRegion,
    window,
)

TILES = ("c", "b", "a")


class Ticker:
    """The sensor daemon's part: remembers cursor and run keys, executes what is requested."""

    def __init__(self, region: SmallRegion, instance: dg.DagsterInstance) -> None:
        self.region = region
        self.instance = instance
        self.site = region.site(instance)
        self.cursor = Cursor()
        self.run_keys: set[str] = set()
        self.find_job = region.build_definitions().resolve_job_def

    def evaluate(self, *, after: timedelta = timedelta(), **bounds: int) -> Tick:
        return evaluate_tick(
            self.site,
            cursor=self.cursor,
            policies=self.region.policies,
            bounds=self.region.settings.sensor.model_copy(update=bounds),
            now=datetime.now(UTC) + after,
            place=Place(),
        )

    def tick(self, *, after: timedelta = timedelta(), **bounds: int) -> Tick:
        """Evaluate, then do what the daemon does: submit unknown run keys, keep the cursor."""
        tick = self.evaluate(after=after, **bounds)
        self.execute(tick.requested)
        self.cursor = parse_cursor(str(tick.cursor))
        return tick

    def execute(self, requested: Iterable[Requested]) -> None:
        for each in requested:
            if each.run_key not in self.run_keys:
                self.run_keys.add(each.run_key)
                self.find_job(each.job_name).execute_in_process(
                    instance=self.instance, tags=dict(each.tags), raise_on_error=False
                )

    def until_idle(self) -> int:
        """Tick until nothing is requested; returns how many ticks requested something."""
        for count in range(20):
            if not self.tick().requested:
                return count
        raise AssertionError("the sensor does not come to rest")


@pytest.fixture
def ticker(tmp_path: Path) -> Iterator[Ticker]:
    region = SmallRegion(tmp_path, batched=20, tiles=TILES)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Ticker(region, instance)
    region.engine.dispose()


def keys_of(tick: Tick) -> list[str]:
    """The ranges that a tick requested."""
    return [
        f"{each.job_name} {each.tags['dagster/asset_partition_range_start']}"
        f" {each.tags['dagster/asset_partition_range_end']}"
        for each in tick.requested
    ]


def test_without_a_frontier_nothing_is_launched_and_the_tick_says_so(ticker: Ticker) -> None:
    tick = ticker.tick()
    assert tick.requested == ()
    assert "no frontier is published for small" in tick.summary


def test_covered_days_are_built_wave_by_wave_and_then_the_cursor_moves(ticker: Ticker) -> None:
    keys = window(3, TILES)
    ticker.region.land(keys[:4])
    ticker.region.publish(START + timedelta(days=2), revision=8, epoch=2)
    first = ticker.tick()
    assert keys_of(first) == ["scenes_batched_job 2024-06-01|c 2024-06-03|a"]
    assert first.requested[0].tags["scene_pipeline/frontier"] == "2.8"
    assert first.cursor.done_through is None
    second = ticker.tick()
    assert keys_of(second) == ["footprint_table_job 2024-06-01|c 2024-06-03|a"]
    # The row of the footprints' plan was added in the tick after its runs were requested.
    (row,) = ticker.instance.get_backfills()
    assert (row.status, row.job_name) == (BulkActionStatus.REQUESTED, "scenes_batched_job")
    third = ticker.tick()
    assert third.requested == ()
    assert third.cursor.done_through == date(2024, 6, 3)
    assert "18 keys: 18 done, 0 in progress, 0 failed and given up" in third.summary
    assert "no newly covered day" in ticker.tick().summary
    assert len(ticker.instance.get_backfills()) == 2
    assert read_open_plans(ticker.region.engine, region=REGION) == []
    for asset in (FOOTPRINTS, TABLE):
        states = ticker.region.states(ticker.instance, asset, keys)
        assert list(states.values()) == ["materialized"] * 4 + ["empty"] * 5
    assert len(ticker.region.executed()) == 18


def test_a_tick_that_crashed_after_planning_is_made_good_without_doubling(ticker: Ticker) -> None:
    """The daemon dies between the evaluation and the runs, twice, and once half-way."""
    ticker.region.publish(START + timedelta(days=1))
    lost = ticker.evaluate()
    again = ticker.evaluate()
    assert [r.run_key for r in again.requested] == [r.run_key for r in lost.requested] != []
    ticker.execute(again.requested[:1])
    ticker.until_idle()
    assert len(ticker.region.executed()) == len(set(ticker.region.executed())) == 12


def test_a_run_that_a_killed_daemon_left_half_planned_keeps_all_its_keys(ticker: Ticker) -> None:
    """On PostgreSQL each planned event is committed by itself; a key without one looks missing."""
    keys = window(2, TILES)
    ticker.region.publish(START + timedelta(days=1))
    (requested,) = ticker.evaluate().requested
    job = ticker.find_job(requested.job_name)
    ticker.instance.create_run_for_job(job, tags=dict(requested.tags), asset_selection=None)
    events = SqlEventLogStorageTable
    with ticker.instance.event_log_storage.index_connection() as connection:  # type: ignore[attr-defined]
        half = sa.delete(events).where(events.c.partition.in_([str(key) for key in keys[3:]]))
        assert connection.execute(half).rowcount == 3
        connection.commit()
    assert ticker.tick().requested == ()
    states = ticker.region.states(ticker.instance, FOOTPRINTS, keys)
    assert set(states.values()) == {"in progress"}
    assert ticker.tick().requested == ()
    assert len(ticker.instance.get_backfills()) == 1


def test_a_run_that_a_killed_daemon_left_without_tags_is_not_made_again(ticker: Ticker) -> None:
    """On PostgreSQL a run is committed before its tags, and Dagster finds runs by those alone."""
    ticker.region.publish(START + timedelta(days=1))
    (requested,) = ticker.evaluate().requested
    job = ticker.find_job(requested.job_name)
    run = ticker.instance.create_run_for_job(job, tags=dict(requested.tags), asset_selection=None)
    with ticker.instance.run_storage.connect() as connection:  # type: ignore[attr-defined]
        connection.execute(sa.delete(RunTagsTable).where(RunTagsTable.c.run_id == run.run_id))
    assert ticker.tick().requested == ()
    (row,) = ticker.instance.get_backfills()
    (found,) = ticker.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": row.backfill_id}))
    assert found.run_id == run.run_id


def test_work_is_bounded_and_resumes_where_it_was(ticker: Ticker) -> None:
    """A15: a window of many keys, a few a tick, oldest first, none twice."""
    last = START + timedelta(days=4)
    ticker.region.publish(last)
    launched: list[int] = []
    for _ in range(20):
        tick = ticker.tick(max_keys_per_tick=7)
        launched.append(
            sum(int(each.tags["scene_pipeline/keys"].split(":")[0]) for each in tick.requested)
        )
        if not tick.requested and ticker.cursor.done_through == last:
            break
    assert max(launched) <= 7
    executed = ticker.region.executed()
    assert len(executed) == len(set(executed)) == 30
    footprints = [key for asset, key in executed if asset == FOOTPRINTS.name]
    assert [key[:10] for key in footprints] == sorted(key[:10] for key in footprints)


def test_a_failed_key_is_relaunched_with_a_growing_pause_then_left_visible(ticker: Ticker) -> None:
    keys = window(2, TILES)
    bad = keys[1]
    ticker.region.break_keys({bad: SceneRejectedError})
    ticker.region.publish(START + timedelta(days=1))
    ticker.until_idle()
    minute = timedelta(minutes=1)

    def attempts() -> int:
        return ticker.region.executed().count((FOOTPRINTS.name, str(bad)))

    assert attempts() == 1
    assert ticker.tick(after=9 * minute).requested == ()
    (relaunched,) = ticker.tick(after=11 * minute).requested
    assert relaunched.tags["scene_pipeline/attempt"] == "2"
    assert attempts() == 2
    # Twice the pause after the second attempt.
    assert ticker.tick(after=19 * minute).requested == ()
    ticker.tick(after=21 * minute)
    assert attempts() == 3
    assert ticker.cursor.done_through is None
    given_up = ticker.tick(after=1000 * minute)
    assert given_up.requested == ()
    assert "1 failed and given up" in given_up.summary
    assert attempts() == 3
    # It holds nothing back, and stays what it is.
    assert ticker.cursor.done_through == START + timedelta(days=1)
    assert ticker.region.states(ticker.instance, FOOTPRINTS, keys)[bad] == "failed"
    assert ticker.region.states(ticker.instance, TABLE, keys)[bad] == "missing"


def test_a_reopened_key_behind_the_cursor_is_built_alone_and_then_cleared(ticker: Ticker) -> None:
    keys = window(2, TILES)
    ticker.region.publish(START + timedelta(days=1))
    ticker.until_idle()
    before = len(ticker.region.executed())
    ticker.region.land(keys[3:4], raw_seq=2, reopen=True)
    tick = ticker.tick()
    assert keys_of(tick) == [f"scenes_batched_job {keys[3]} {keys[3]}"]
    assert [version.key for version in read_reopened(ticker.region.engine, REGION, 10)] == keys[3:4]
    ticker.until_idle()
    assert ticker.region.executed()[before:] == [
        (FOOTPRINTS.name, str(keys[3])),
        (TABLE.name, str(keys[3])),
    ]
    assert read_reopened(ticker.region.engine, REGION, 10) == []
    assert ticker.cursor.done_through == START + timedelta(days=1)


def test_a_reopened_key_that_fails_for_good_does_not_block_the_dirty_set(ticker: Ticker) -> None:
    keys = window(1, TILES)
    ticker.region.publish(START)
    ticker.until_idle()
    ticker.region.break_keys({keys[0]: SceneRejectedError})
    ticker.region.land(keys[:1], raw_seq=2, reopen=True)
    for hours in (0, 1, 2, 3):
        ticker.tick(after=timedelta(hours=hours))
    assert read_reopened(ticker.region.engine, REGION, 10) == []
    assert ticker.region.states(ticker.instance, FOOTPRINTS, keys)[keys[0]] == "failed"


def test_a_removed_tile_in_the_dirty_set_is_forgotten(ticker: Ticker) -> None:
    ticker.region.publish(START)
    ticker.region.land([PartitionKey(START, "gone")], reopen=True)
    ticker.until_idle()
    assert read_reopened(ticker.region.engine, REGION, 10) == []


def test_a_read_that_fails_fails_the_tick(ticker: Ticker) -> None:
    """Not an idle one: a broken source must not look like no work."""
    ticker.region.publish(START)
    ticker.region.engine.dispose()
    metadata.drop_all(ticker.region.engine, tables=[reopened])
    with pytest.raises(StateUnavailableError):
        ticker.evaluate()


def test_what_a_command_line_has_reserved_is_left_to_it(ticker: Ticker) -> None:
    """A CLI launch beside the sensor: the tick takes the other keys alone."""
    keys = window(2, TILES)
    ticker.region.publish(START + timedelta(days=1))
    stored, _ = reserve_keys(
        ticker.site, FOOTPRINTS, choose_policy(FOOTPRINTS, ticker.region.policies), keys=keys[:3],
        selection=Selection(), launcher=launcher_here("cli"), launch_id=new_launch_id(),
        now=datetime.now(UTC),
    )  # fmt: skip
    assert stored is not None
    assert keys_of(ticker.tick()) == [f"scenes_batched_job {keys[3]} {keys[5]}"]
    executed = [key for asset, key in ticker.region.executed() if asset == FOOTPRINTS.name]
    assert executed == [str(key) for key in keys[3:]]


@pytest.mark.parametrize("kind", ["cli", "local"])
def test_a_launch_whose_process_died_is_finished(ticker: Ticker, kind: str) -> None:
    """Killed after the plan was stored, before a run existed."""
    keys = window(1, TILES)
    ticker.region.publish(START)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    stored, _ = reserve_keys(
        ticker.site, FOOTPRINTS, choose_policy(FOOTPRINTS, ticker.region.policies), keys=keys,
        selection=Selection(), launcher=replace(launcher_here("cli"), kind=kind, pid=dead.pid),
        launch_id=new_launch_id(), now=datetime.now(UTC),
    )  # fmt: skip
    assert stored is not None
    ticker.until_idle()
    executed = [key for asset, key in ticker.region.executed() if asset == FOOTPRINTS.name]
    assert executed == [str(key) for key in keys]
    assert stored.plan.plan_id in {row.backfill_id for row in ticker.instance.get_backfills()}
    assert read_open_plans(ticker.region.engine, region=REGION) == []


def test_two_healers_do_not_both_finish_a_dead_launch(ticker: Ticker) -> None:
    from scene_pipeline.backfill.plan_store import take_over

    ticker.region.publish(START)
    reserve_keys(
        ticker.site, FOOTPRINTS, choose_policy(FOOTPRINTS, ticker.region.policies),
        keys=window(1, TILES), selection=Selection(), launcher=Launcher("cli", "gone", 1),
        launch_id=new_launch_id(), now=datetime.now(UTC),
    )  # fmt: skip
    (seen,) = read_open_plans(ticker.region.engine, region=REGION)
    engine = ticker.region.engine
    assert take_over(engine, seen, launcher=Launcher("sensor"))
    assert not take_over(engine, seen, launcher=launcher_here("cli"))
    with engine.connect() as connection:
        assert connection.execute(plans.select()).one().launched_by == "sensor"


def test_keys_that_a_finished_backfill_lost_are_named_and_launched(ticker: Ticker) -> None:
    """The 50-range fault: asked for, never planned, and the backfill says success."""
    keys = window(2, TILES)
    ticker.region.publish(START)
    ticker.until_idle()  # the first day is done, and not asked for by the frontier any more
    begun = datetime.now(UTC)

    def add_row(backfill_id: str, status: BulkActionStatus) -> None:
        add_backfill_row(
            ticker.instance, backfill_id=backfill_id, status=status, title="from a job's page",
            tags={}, job_name="scenes_batched_job", location_name="scene_pipeline",
            repository_name="__repository__",
            asset_key=asset_key_of(ticker.region.definition, FOOTPRINTS.name),
            keys=[str(key) for key in keys[:3]], started_at=begun,
        )  # fmt: skip

    ticker.execute(
        [
            Requested(
                "scenes_batched_job",
                "from the page",
                {
                    "dagster/backfill": "lossy",
                    "dagster/asset_partition_range_start": str(keys[0]),
                    "dagster/asset_partition_range_end": str(keys[1]),
                },
            )
        ]
    )
    add_row("stopped", BulkActionStatus.CANCELED)
    assert ticker.tick().warnings == ()
    add_row("lossy", BulkActionStatus.COMPLETED_SUCCESS)
    tick = ticker.tick()
    assert tick.warnings == (
        f"backfill lossy lost 1 keys of scene_footprints, launched now: {keys[2]}",
    )
    assert keys_of(tick)[0] == f"scenes_batched_job {keys[2]} {keys[2]}"
    assert ticker.tick().warnings == ()
    assert ticker.region.executed().count((FOOTPRINTS.name, str(keys[2]))) == 2


def test_a_cursor_survives_the_daemon_and_a_foreign_one_fails_the_tick() -> None:
    cursor = Cursor(date(2024, 6, 3), datetime(2024, 6, 4, tzinfo=UTC))
    assert parse_cursor(str(cursor)) == cursor
    assert parse_cursor(None) == parse_cursor("") == Cursor()
    for text in ("yesterday", '{"done_through": "x", "audited_through": null}'):
        with pytest.raises(ValueError, match=r"."):
            parse_cursor(text)
