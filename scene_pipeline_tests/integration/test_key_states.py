"""Key states of a window read from a real Dagster instance, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from scene_pipeline.backfill import dagster_internals as internals
from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, TrackedAsset
from scene_pipeline.backfill.claims import Claims
from scene_pipeline.backfill.key_states import read_key_states
from scene_pipeline.backfill.states import KeyState, StateName
from scene_pipeline.backfill.versions import DataVersion
from scene_pipeline.errors import UsageError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline_tests.services.small_region import (
    REGION,
    START,
    SmallRegion,
    make_instance,
    window,
)

NOW = datetime(2024, 7, 1, 12, tzinfo=UTC)


class World:
    """One region in one instance, with shortcuts for what happens to a key."""

    def __init__(self, region: SmallRegion, instance: dg.DagsterInstance) -> None:
        self.region = region
        self.instance = instance
        self.jobs = region.build_definitions()

    def make(
        self, key: PartitionKey, version: str | None = "1.3.1", asset: TrackedAsset = FOOTPRINTS
    ) -> None:
        tags = {"dagster/data_version": version} if version else {}
        event = dg.AssetMaterialization([REGION, asset.name], partition=str(key), tags=tags)
        self.instance.report_runless_asset_event(event)

    def plan_run(self, key: PartitionKey, *, attempt: int = 1) -> dg.DagsterRun:
        """A run that has the key planned and is still live."""
        job = self.jobs.resolve_job_def("scenes_batched_job")
        tags = {
            "dagster/asset_partition_range_start": str(key),
            "dagster/asset_partition_range_end": str(key),
            "scene_pipeline/attempt": str(attempt),
        }
        return self.instance.create_run_for_job(job, tags=tags, asset_selection=None)

    def end(self, run: dg.DagsterRun) -> None:
        self.instance.report_run_failed(run)

    def read(
        self,
        keys: list[PartitionKey],
        asset: TrackedAsset = FOOTPRINTS,
        instance: Any = None,
    ) -> dict[PartitionKey, KeyState]:
        site = self.region.site(instance or self.instance)
        return read_key_states(site, asset, keys=keys, now=NOW)

    def state(self, key: PartitionKey, asset: TrackedAsset = FOOTPRINTS) -> StateName:
        return self.read([key], asset)[key].state


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, make_url: Callable[[], str]
) -> Iterator[World]:
    urls = [make_url(), make_url()] if request.param == "postgres" else ["", ""]
    region = SmallRegion(tmp_path, state_url=urls[0])
    with make_instance(tmp_path, postgres_url=urls[1]) as instance:
        region.publish(START + timedelta(days=9))
        yield World(region, instance)
    region.engine.dispose()


@pytest.fixture
def make_url(request: pytest.FixtureRequest) -> Callable[[], str]:
    def fresh() -> str:
        cluster = request.getfixturevalue("postgres")
        url: str = cluster.url(cluster.new_database())
        return url

    return fresh


def test_each_of_the_nine_states(world: World) -> None:
    missing, live, failed, changed, outdated, empty, done = window(1, first=1) + window(1)[:1]
    uncovered = PartitionKey(START + timedelta(days=10), "a")
    before = PartitionKey(START - timedelta(days=1), "a")
    foreign = PartitionKey(START, "z")
    world.region.land([changed], raw_seq=2)
    world.region.land([outdated, done])
    world.plan_run(live)
    world.end(world.plan_run(failed))
    world.make(changed, "1.3.1")
    world.make(outdated, "1.3.0")
    world.make(empty, "0.0.1")
    world.make(done, "1.3.1")
    keys = [missing, live, failed, changed, outdated, empty, done, uncovered, before, foreign]
    assert [state.state for state in world.read(keys).values()] == [
        "missing",
        "in progress",
        "failed",
        "changed",
        "outdated",
        "empty",
        "materialized",
        "not covered",
        "invalid",
        "invalid",
    ]
    assert list(world.read(keys)) == keys
    faults = [world.read(keys)[key].evidence.fault for key in (before, foreign)]
    assert faults == ["before start", "unknown tile"]


def test_evidence_names_run_attempt_rows_and_versions(world: World) -> None:
    key, other = window(1)[:2]
    world.region.land([key], raw_seq=7)
    world.make(key, "6.40.1")
    run = world.plan_run(other, attempt=3)
    world.end(run)
    states = world.read([key, other])
    assert states[key].evidence.version == DataVersion(6, 40, "1")
    assert (states[key].raw_seq, states[key].rows, states[key].state) == (7, 40, "changed")
    evidence = states[other].evidence
    assert (evidence.planned_run, evidence.run_attempt, evidence.run_live) == (run.run_id, 3, False)
    assert states[other].state == "failed"


def test_a_key_made_after_a_failed_run_is_materialized(world: World) -> None:
    key = window(1)[0]
    world.end(world.plan_run(key))
    world.make(key, "0.0.1")
    assert world.state(key) == "empty"
    world.plan_run(key)
    assert world.state(key) == "in progress"


def test_a_claim_counts_until_it_expires_or_its_run_has_ended(world: World) -> None:
    key, other = window(1)[:2]
    clock = lambda: NOW  # noqa: E731
    place = {"region": REGION, "asset": FOOTPRINTS.name, "clock": clock}
    Claims(world.region.engine, run_id="elsewhere", lease_s=60, **place).take([key])  # type: ignore[arg-type]
    run = world.plan_run(other)
    Claims(world.region.engine, run_id=run.run_id, lease_s=60, **place).take([other])  # type: ignore[arg-type]
    assert world.state(key) == world.state(other) == "in progress"
    assert world.read([key])[key].evidence.claimed_by == "elsewhere"
    world.end(run)
    assert world.state(other) == "failed"
    site = world.region.site(world.instance)
    later = read_key_states(site, FOOTPRINTS, keys=[key], now=NOW + timedelta(seconds=61))
    assert later[key].state == "missing"


def test_the_table_compares_with_the_lakes_versions(world: World) -> None:
    absent, ahead, moved, done = window(1)[:4]
    world.region.land([ahead, moved, done])
    assert world.read([absent], TABLE)[absent].ready is False
    for key in (ahead, moved, done):
        world.make(key, "1.3.1")
        world.make(key, "1.3.1", TABLE)
    world.make(ahead, "2.4.1")
    world.make(moved, "1.3.1")  # the file was written again, at the same raw version
    states = world.read([absent, ahead, moved, done], TABLE)
    assert [state.state for state in states.values()] == [
        "missing",
        "changed",
        "changed",
        "materialized",
    ]
    assert states[ahead].ready


def test_without_a_published_frontier_nothing_is_covered(world: World) -> None:
    from scene_pipeline.state.tables import frontiers, routings

    key = window(1)[0]
    with world.region.engine.begin() as connection:
        connection.execute(routings.update().values(tiles="a b"))
    assert [world.state(PartitionKey(START, tile)) for tile in "af"] == ["missing", "not covered"]
    with world.region.engine.begin() as connection:
        connection.execute(frontiers.delete())
    assert world.state(key) == "not covered"


def test_a_key_that_finishes_between_two_reads_is_not_asked_for_again(world: World) -> None:
    """In progress is read before materialized: the other order sees it as failed or missing."""
    key = window(1)[0]
    run = world.plan_run(key)

    class FinishesMeanwhile:
        """The instance, in which the run ends just before its status is read."""

        def __getattr__(self, name: str) -> Any:
            if name == "get_run_records":
                world.make(key, "0.0.1")
                world.instance.report_run_failed(run)
            return getattr(world.instance, name)

    assert world.read([key], instance=FinishesMeanwhile())[key].state == "empty"


def test_a_window_is_read_in_parts_and_an_empty_one_not_at_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster takes an empty window for the whole archive."""
    keys = window(2)
    for key in keys:
        world.make(key, "0.0.1")
    asset_key = dg.AssetKey([REGION, FOOTPRINTS.name])
    assert internals.read_latest_positions(world.instance, asset_key, "materialized", []) == {}
    assert internals.read_latest_versions(world.instance, asset_key, []) == {}
    assert internals.read_event_facts(world.instance, []) == {}
    assert world.read([]) == {}
    whole = world.read(keys)
    statements: list[str] = []
    monkeypatch.setattr(internals, "_WINDOW", 5)
    monkeypatch.setattr(internals, "_parts", _count_parts(internals._parts, statements))
    assert world.read(keys) == whole
    assert len(statements) == 3 * 3  # planned, made, versions: 12 keys in parts of 5
    assert {state.state for state in whole.values()} == {"empty"}


def _count_parts(parts: Callable[[Any], Iterator[Any]], seen: list[str]) -> Callable[[Any], Any]:
    def counted(items: Any) -> Iterator[Any]:
        for part in parts(items):
            seen.append("part")
            yield part

    return counted


def test_the_cost_of_a_window_is_a_fixed_number_of_statements(world: World) -> None:
    """However many keys: no read of Dagster's events a key."""
    keys = window(9)

    def count(at: list[PartitionKey]) -> int:
        seen: list[str] = []

        def note(_: Any, __: Any, statement: str, *___: Any) -> None:
            seen.append(statement)

        sa.event.listen(sa.Engine, "before_cursor_execute", note)
        try:
            world.read(at)
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", note)
        return sum("event_logs" in statement for statement in seen)

    for key in keys:
        world.make(key, "0.0.1")
    count(keys[:1])  # Dagster looks up its schema once
    assert count(keys) == count(keys[:2]) > 0


def test_other_storages_than_sql_are_refused_by_name() -> None:
    class Elsewhere:
        event_log_storage = object()

    with pytest.raises(UsageError, match="cannot be read from object"):
        internals.read_latest_positions(
            Elsewhere(),  # type: ignore[arg-type]
            dg.AssetKey("a"),
            "planned",
            ["2024-06-01|a"],
        )


def test_code_version_of_the_asset_makes_older_keys_outdated(world: World) -> None:
    key = window(1)[0]
    world.make(key, "0.0.1")
    assert world.state(key) == "empty"
    assert world.state(key, replace(FOOTPRINTS, code_version="2")) == "outdated"
    world.make(key, None)
    assert world.state(key) == "outdated"


def test_the_day_before_today_is_the_last_one(world: World) -> None:
    world.region.publish(date(2024, 8, 1))
    today, yesterday = NOW.date(), NOW.date() - timedelta(days=1)
    assert world.state(PartitionKey(yesterday, "a")) == "missing"
    assert world.state(PartitionKey(today, "a")) == "invalid"
