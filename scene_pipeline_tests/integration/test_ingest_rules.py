"""Each rule of ingest in its smallest scenario, over a real SQLite and a real lake."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from scene_pipeline.errors import DataError
from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.ingester import IngestProgress, OpenStream, StreamIngester
from scene_pipeline.ingest.pages import prepare_page
from scene_pipeline.ingest.quarantine import (
    count_quarantine,
    release_quarantine,
    retry_quarantine,
)
from scene_pipeline.ingest.raw import clear_reopened, read_raw_scenes, read_reopened
from scene_pipeline.ingest.retention import expire_raw
from scene_pipeline.ingest.sources.base import Declaration
from scene_pipeline.ingest.streams import list_streams
from scene_pipeline.lake.store import LocalStore
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import open_state
from scene_pipeline_tests.property.ingest_provider import COLLECTION, LAG, START, Provider, Version
from scene_pipeline_tests.property.ingest_world import World
from scene_pipeline_tests.services.items import make_item

HOUR, DAY = 3600, 86_400
WEST, EAST = "7-66-45", "7-67-45"
FIRST_DAY = date(2024, 6, 1)


@pytest.fixture
def lone_world(tmp_path: Path) -> Iterator[World]:
    """A world whose oracle is not told what is done to it."""
    engine = open_state(f"sqlite:///{tmp_path}/state.db")
    world = World(engine, LocalStore(tmp_path / "lake"), "rules")
    yield world
    world.close()
    engine.dispose()


@pytest.fixture
def world(lone_world: World) -> Iterator[World]:
    """A world that its oracle agrees with at the end."""
    yield lone_world
    lone_world.check()


def add(world: World, name: str = "a", **declared: Any) -> Provider:
    provider = Provider(name, lambda: world.now_s, **declared)
    world.add(provider)
    world.settle_settings()
    return provider


def publish(provider: Provider, item_id: str, at_s: int, **changes: Any) -> None:
    version = Version(item_id, len(provider.versions), at_s, "west", provider.now_s())
    version = replace(version, **changes)
    late = version.published_s > version.at_s + LAG.total_seconds()
    provider.publish(replace(version, unfinished=late))


def sweep(world: World, name: str, lane: Any = "forward") -> str:
    """Page by page, window by window, until the lane has nothing more to do."""
    while world.fetch(name, lane):
        outcome = world.commit(name, lane)
        stored = world.ingester(name, lane).read()
        if outcome not in {"ok", "done"} or stored.state != "active":
            return outcome
        if stored.reached and stored.sweep_end and stored.reached >= stored.sweep_end:
            return outcome
    return "nothing"


def bound_of(world: World) -> Bound | None:
    published = world.publish()
    assert published is not None
    return published.bound


def rows(world: World, table: sa.Table, *names: str) -> list[Any]:
    with world.engine.connect() as connection:
        query = sa.select(*(table.c[name] for name in names)).where(table.c.region == "rules")
        return list(connection.execute(query))


def covered_world(world: World) -> Provider:
    """One Item on the first day, which is published as covered."""
    provider = add(world)
    publish(provider, "old", HOUR)
    world.now_s = DAY + 6 * HOUR
    assert sweep(world, "a") == "done"
    bound = world.ingester("a", "forward").read().bound
    assert bound is not None
    assert bound.covers_day(FIRST_DAY)
    world.publish()
    return provider


def test_a_stale_retry_changes_nothing_and_is_told(world: World) -> None:
    provider = add(world)
    for number in range(3):
        publish(provider, f"i{number}", number)
    world.now_s = HOUR
    assert world.fetch("a", who=0)
    assert world.fetch("a", who=1)
    assert world.commit("a", who=0) == "ok"
    publish(provider, "new", 0)
    assert world.commit("a", who=1) == "lost"  # asserts that no file was written
    assert sweep(world, "a") == "done"


def test_a_lost_reply_counts_once(world: World) -> None:
    publish(add(world), "i", 0)
    world.now_s = HOUR
    assert world.fetch("a")
    assert world.commit("a", lose_reply=True) == "done"
    assert world.commit("a") == "lost"
    assert rows(world, t.streams, "pages") == [(1,)]


def test_another_scope_never_resumes_a_token_and_joins_anew(world: World) -> None:
    provider = add(world)
    for number in range(3):
        publish(provider, f"i{number}", number, broad=number == 0)
    world.now_s = 6 * HOUR
    assert sweep(world, "a") == "done"
    proven = bound_of(world)
    assert world.fetch("a")
    world.commit("a")
    provider.broad = True
    world.settle_settings()
    fresh = world.ingester("a", "forward").read()
    assert (fresh.token, fresh.bound) == (None, None)
    world.now_s += HOUR
    assert bound_of(world) == proven  # the old scope is frozen, the new one not proven
    assert sweep(world, "a") == "done"
    assert bound_of(world) == Bound(world.now - LAG)


def test_an_item_behind_the_frontier_reopens_its_own_keys_alone(world: World) -> None:
    provider = covered_world(world)
    bound = bound_of(world)
    publish(provider, "late", 2 * HOUR, place="both")
    assert sweep(world, "a", "rescan") == "done"
    reopened = read_reopened(world.engine, "rules", 10)
    assert {(each.key, each.raw_seq) for each in reopened} == {
        (PartitionKey(FIRST_DAY, WEST), 2),
        (PartitionKey(FIRST_DAY, EAST), 1),
    }
    assert bound_of(world) == bound
    assert rows(world, t.violations, "item_id", "kind") == [("late", "late")]
    clear_reopened(world.engine, "rules", reopened)
    world.oracle.reopened.clear()
    assert not read_reopened(world.engine, "rules", 10)


def test_an_item_that_moves_touches_its_old_and_its_new_place(world: World) -> None:
    provider = covered_world(world)
    publish(provider, "old", DAY + HOUR, place="east")
    assert sweep(world, "a", "rescan") == "done"
    assert {(row.day, row.tile) for row in rows(world, t.raw_versions, "day", "tile")} == {
        (FIRST_DAY, WEST),
        (date(2024, 6, 2), EAST),
    }
    assert [row.tile for row in rows(world, t.placements, "tile")] == [EAST]


def test_a_version_that_comes_again_changes_nothing(world: World) -> None:
    provider = covered_world(world)
    (first,) = provider.versions
    publish(provider, "old", HOUR, place="east")
    assert sweep(world, "a", "rescan") == "done"

    def stored() -> list[Any]:
        names = ("day", "tile", "raw_seq")
        return [rows(world, t.raw_versions, *names), rows(world, t.segments, "digest"),
                rows(world, t.items, "item_id", "digest")]  # fmt: skip

    before = stored()
    assert len(before[1]) == 2
    provider.versions = [replace(first, withdrawn_s=None)]  # a cache that is behind
    assert sweep(world, "a", "rescan") == "done"
    assert stored() == before


def test_gone_after_two_exact_rescans_and_back_when_seen_again(world: World) -> None:
    provider = covered_world(world)
    provider.withdraw("old", world.now_s)
    assert sweep(world, "a", "rescan") == "done"
    assert len(rows(world, t.placements, "tile")) == 1
    assert sweep(world, "a", "rescan") == "done"
    assert rows(world, t.placements, "tile") == []
    publish(provider, "old", HOUR, number=0)
    assert sweep(world, "a", "rescan") == "done"
    assert rows(world, t.raw_versions, "raw_seq") == [(3,)]
    world.check_scenes()


def test_a_source_that_does_not_count_buries_nothing(world: World) -> None:
    provider = covered_world(world)
    provider.matched = "none"
    provider.withdraw("old", world.now_s)
    for _ in range(3):
        assert sweep(world, "a", "rescan") == "done"
    assert len(rows(world, t.placements, "tile")) == 1


def test_a_stream_joins_once_it_is_complete_through_the_frontier(world: World) -> None:
    covered_world(world)
    bound = bound_of(world)
    publish(add(world, "b"), "b", HOUR)
    published = world.publish()
    assert published is not None
    assert (published.bound, published.epoch, len(published.vector)) == (bound, 1, 1)
    assert sweep(world, "b") == "done"
    published = world.publish()
    assert published is not None
    assert (published.epoch, len(published.vector)) == (2, 2)


def test_a_stream_leaves_when_it_is_sealed(world: World) -> None:
    covered_world(world)
    add(world, "b", finality="none")  # pending for ever
    assert world.leave("b", world.now)
    add(world, "c")
    world.now_s += HOUR
    for name in ("a", "c"):
        sweep(world, name)
    bound_of(world)
    through = world.now
    assert world.leave("c", through)
    published = world.publish()
    assert published is not None
    assert "c" in {part.stream for part in published.vector}
    world.now_s += 3 * HOUR
    sweep(world, "c")
    published = world.publish()
    assert published is not None
    assert [part.stream for part in published.vector] == ["a"]


def test_a_retired_provider_leaves_a_gap_that_readers_see(world: World) -> None:
    add(world, "dead")
    add(world, "a")
    covered_world(world)
    assert bound_of(world) is None
    assert world.retire("dead")
    published = world.publish()
    assert published is not None
    assert published.bound is not None
    assert [(gap.stream, gap.reason) for gap in published.gaps] == [("dead", "it died")]
    assert not world.retire("a"), "the last member cannot go"


def test_certificates_of_two_scopes_never_meet(world: World) -> None:
    """Item 80 moves from B to A after A was certified: neither of the old proofs holds it."""
    a, b = add(world, "a"), add(world, "b")
    publish(a, "80", 80, broad=True)
    publish(b, "80-of-b", 80)
    world.now_s = 6 * HOUR
    assert sweep(world, "a") == "done"  # certified without 80
    a.broad = True
    b.versions.clear()
    b.broad = True
    world.settle_settings()
    assert sweep(world, "b") == "done"  # certified without 80 as well
    assert bound_of(world) is None
    assert sweep(world, "a") == "done"
    assert bound_of(world) == Bound(world.now - LAG)


def test_no_frontier_for_a_grid_before_the_lake_is_assigned_to_it(world: World) -> None:
    provider = covered_world(world)
    publish(provider, "late", 2 * HOUR)
    assert world.fetch("a", "rescan")
    world.change_grid(6)
    assert world.commit("a", "rescan") == "lost", "placed by the old grid"
    published = world.publish()
    assert published is not None
    assert published.routing == 1
    while world.reassign():
        pass
    published = world.publish()
    assert published is not None
    assert (published.routing, published.epoch) == (2, 2)
    world.check_scenes()


def test_a_stale_aggregator_recomputes(world: World) -> None:
    add(world)
    world.read_evidence(0)
    world.now_s = 6 * HOUR
    sweep(world, "a")
    bound = bound_of(world)
    assert not world.swap(0)
    assert bound_of(world) == bound


def test_a_page_fetched_ahead_is_dropped_when_its_token_is(lone_world: World) -> None:
    """Tokens that live for no time restart the window: no page may count for a later one."""
    world = lone_world
    provider = add(world, matched="none")
    for number in range(6):
        publish(provider, f"i{number}", number)
    world.now_s = 6 * HOUR
    ticks = iter(range(10_000))
    region = replace(world.region, clock=lambda: world.now + timedelta(seconds=next(ticks)))
    impatient = Redeclared(provider, replace(provider.declaration, token_lifetime_s=0.0))
    stream = OpenStream(
        name="a", collection=COLLECTION, source=impatient, scope=world.scope("a"), page_limit=2
    )
    pages = 0

    def stop_after_three(progress: IngestProgress) -> None:
        nonlocal pages
        pages += 1
        if pages == 3:
            raise RuntimeError("enough")

    ingester = StreamIngester(region, stream)
    report = ingester.run(world.now, stop_after_three)
    assert str(report.error) == "enough"
    stored = ingester.read()
    assert (stored.pages, stored.ids, stored.bound) == (1, 2, None)


@dataclass(frozen=True)
class Redeclared:
    """A provider under another declaration."""

    provider: Provider
    declaration: Declaration

    def __getattr__(self, name: str) -> Any:
        return getattr(self.provider, name)


def _land(world: World, *items: dict[str, Any]) -> None:
    """Deliver Items through a provider whose next page they are."""
    current = world.ingester("a", "forward")
    stored = current.read()
    plan = current.plan(stored, world.now)
    assert plan is not None
    fetched = current.fetch(plan)
    page = replace(fetched.page, items=list(items), next_token=None, matched=len(items))
    fetched = replace(fetched, page=page)
    current.commit(stored, fetched, current.prepare(fetched))


def test_reprocessed_twins_leave_one_scene(lone_world: World) -> None:  # A46
    world = lone_world
    add(world)
    world.now_s = 12 * HOUR
    twin = {"grid:code": "MGRS-32TLS", "platform": "sentinel-2a"}
    old = make_item("old", **twin, **{"s2:processing_baseline": "02.14"})
    new = make_item("new", **twin, **{"s2:processing_baseline": "05.00"})
    naip = [make_item(name, platform="naip") for name in ("n1", "n2")]
    _land(world, new, old, *naip)
    assert {row.item_id for row in rows(world, t.placements, "item_id")} == {"new", "n1", "n2"}
    assert dict(rows(world, t.items, "item_id", "superseded"))["old"] is True
    world.now_s += HOUR
    _land(world, make_item("new", grid_code=None, platform="other", updated="2025-01-01"))
    assert {row.item_id for row in rows(world, t.placements, "item_id")} >= {"new", "old"}


def test_what_cannot_be_kept_is_quarantined_by_name(world: World) -> None:
    now = START + timedelta(hours=1)
    items = [
        make_item("future", datetime="2024-06-05T00:00:00Z"),
        make_item("far", datetime="9999-12-31T23:59:59Z"),
        make_item("tab\tin it"),
        make_item("x" * 10_000),
        make_item("../../etc/passwd", datetime="2024-06-01T00:00:00Z"),
        make_item("nul\0", datetime="2024-06-01T00:00:00Z"),
    ]
    prepared = prepare_page(
        items, foreign=["42"], definition=world.region.definition, grid=world.region.grid,
        routing=1, collection="c", now=now,
    )  # fmt: skip
    assert [landing.item[1] for landing in prepared.landings] == ["../../etc/passwd"]
    assert sorted(each.reason for each in prepared.unusable) == [
        "id not storable", "id not storable", "in the future", "in the future", "not an Item",
        "text not storable",
    ]  # fmt: skip
    assert all(each.text.isascii() and "\0" not in each.text for each in prepared.unusable)
    assert all(len(each.item[1]) <= 400 for each in prepared.unusable)


def test_a_held_item_holds_until_an_operator_decides(lone_world: World) -> None:
    world = lone_world
    provider = add(world)
    publish(provider, "bad", HOUR, place="unusable")
    world.now_s = 6 * HOUR
    stream = OpenStream(
        name="a", collection=COLLECTION, source=provider, scope=world.scope("a"), hold=True
    )
    report = StreamIngester(world.region, stream).run(world.now)
    assert (report.state, report.bound) == ("blocked", None)
    assert report.quarantined == (("geometry null", 1),)
    assert count_quarantine(world.engine, "rules") == {("a", "geometry null"): 1}
    assert retry_quarantine(world.region) == (0, 1)
    assert release_quarantine(world.engine, "rules", note="known", now=world.now) == 1
    report = StreamIngester(world.region, stream).run(world.now)
    assert (report.state, report.bound) == ("active", Bound(world.now - LAG))


def test_the_bound_of_footprints_is_the_streams_own(lone_world: World) -> None:
    world = lone_world
    provider = add(world)
    publish(provider, "wide", HOUR, place="west")  # about 1,370 km²
    world.now_s = 6 * HOUR
    stream = OpenStream(
        name="a", collection=COLLECTION, source=provider, scope=world.scope("a"),
        max_area_km2=1000,
    )  # fmt: skip
    report = StreamIngester(world.region, stream).run(world.now)
    assert report.quarantined == (("area over bound", 1),)
    assert retry_quarantine(world.region, max_area_km2={"a": 1000}) == (0, 1)
    assert retry_quarantine(world.region, max_area_km2={"a": 2000}) == (1, 0)


def test_removed_raw_is_refused_by_name(world: World) -> None:
    provider = covered_world(world)
    publish(provider, "kept", DAY + HOUR)
    kept = PartitionKey(date(2024, 6, 2), WEST)
    gone = expire_raw(world.engine, world.store, "rules", before=kept.day, now=world.now)
    assert gone == 1
    with pytest.raises(DataError, match=r"2024-06-01\|7-66-45 were removed"):
        list(read_raw_scenes(world.engine, world.store, "rules", [PartitionKey(FIRST_DAY, WEST)]))
    assert [n for _, n, _ in read_raw_scenes(world.engine, world.store, "rules", [kept])] == [0]


def test_silence_past_the_cadence_is_seen(world: World) -> None:  # A56
    covered_world(world)
    with world.engine.begin() as connection:
        connection.execute(t.streams.update().values(cadence_hours=24.0))
    fresh, later = world.now, world.now + timedelta(days=9)
    names = {"configured": ["a"]}
    assert list_streams(world.engine, "rules", now=fresh, **names)[0].stalled_for is None
    stalled = list_streams(world.engine, "rules", now=later, **names)[0].stalled_for
    assert stalled is not None
    assert stalled >= timedelta(days=9)


def test_a_stream_that_never_brings_an_item_is_seen(lone_world: World) -> None:
    """A misspelt Collection is served as an empty page, and an empty archive is soon complete."""
    world = lone_world
    provider = add(world)
    names = {"configured": ["a"], "now": world.now}
    assert not list_streams(world.engine, "rules", **names)[0].is_barren  # not read yet
    world.now_s = 6 * HOUR
    assert sweep(world, "a") == "done"
    assert list_streams(world.engine, "rules", **names)[0].is_barren
    publish(provider, "first", 5 * HOUR)
    world.now_s = 12 * HOUR
    assert sweep(world, "a") == "done"
    assert not list_streams(world.engine, "rules", **names)[0].is_barren
