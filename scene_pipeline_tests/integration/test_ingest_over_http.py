"""Ingest over HTTP from servers that stop, misbehave or change: the bound never lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy as sa

from scene_pipeline.errors import SourceFaultError, SourceUnavailableError
from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.ingester import LaneReport
from scene_pipeline.ingest.runner import run_ingest
from scene_pipeline.settings import Caps, FinalitySettings, Settings, StreamSettings
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import open_state
from scene_pipeline_tests.conftest import REAL_DATA
from scene_pipeline_tests.services.http_server import answer_json, serve
from scene_pipeline_tests.services.memory_stac import Fault, MemoryStac
from scene_pipeline_tests.services.replay import Exchange, Replay, read_exchanges

DIRECT = {"method": "POST", "sortby": "no"}
NOW = datetime(2024, 7, 10, 12, tzinfo=UTC)


def make_settings(url: str, folder: Path, *, deadline_s: float = 60, **stream: Any) -> Settings:
    """A region of the whole world at zoom 0, one stream, no waiting."""
    fields = {
        "url": url,
        "collection": "c",
        "name": "s",
        "finality": FinalitySettings(rule="lag", hours=24),
        "requests_per_s": 100_000,
        "page_limit": 10,
        "window_days": 60,
        "options": DIRECT,
        **stream,
    }
    return Settings(
        region="world",
        area=(-180.0, -90.0, 180.0, 90.0),
        zoom=0,
        start_date=date(2024, 6, 1),
        end_date=date(2024, 7, 10),
        state_url=f"sqlite:///{folder}/state.db",  # type: ignore[arg-type]
        lake=str(folder / "lake"),
        streams=(StreamSettings(**fields),),
        caps=Caps(stac_requests_per_s=100_000, http_deadline_s=deadline_s),
    )


def ingest(settings: Settings, now: datetime = NOW) -> LaneReport:
    (report,) = run_ingest(settings, clock=lambda: now).streams
    return report


def read_ids(settings: Settings) -> set[str]:
    """Ids with any outcome, from the receipts."""
    engine = open_state(settings.state_engine_url)
    try:
        with engine.connect() as connection:
            return set(connection.execute(sa.select(t.receipts.c.item_id)).scalars())
    finally:
        engine.dispose()


# -- recorded sequences -----------------------------------------------------------------------


def read_searches(path: Path) -> list[Exchange]:
    return [e for e in read_exchanges(path) if e.is_page and e.url.endswith("/search")]


RECORDS = [path for path in sorted((REAL_DATA / "paging").glob("*.gz")) if read_searches(path)]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name.split(".ndjson")[0])
def test_recorded_sequence_is_as_finished_as_its_record(path: Path, tmp_path: Path) -> None:
    """A record that ends on a page with `next` is unfinished: no bound, ever."""
    searches = read_searches(path)
    replay = Replay(read_exchanges(path), any_search=True)
    with serve(replay.respond) as server:
        replay.url = server.url
        root = searches[0].url.removesuffix("/search").replace(replay.origin, server.url)
        collection = searches[0].document["features"][0]["collection"]
        settings = make_settings(root, tmp_path, collection=collection)
        report = ingest(settings)
    recorded = {item_id for page in searches for item_id in page.ids}
    assert report.items > 0
    assert read_ids(settings) <= recorded
    assert set(searches[0].ids) <= read_ids(settings)
    if searches[0].next_link is not None:
        assert report.bound is None
        assert isinstance(report.error, SourceUnavailableError)
        assert report.state == "blocked"


def test_some_records_finish_and_most_do_not() -> None:
    finished = [path for path in RECORDS if read_searches(path)[0].next_link is None]
    assert len(finished) >= 5
    assert len(RECORDS) - len(finished) >= 10


# -- a server that changes and misbehaves -----------------------------------------------------


def make_item(item_id: str, at: str) -> dict[str, Any]:
    ring = [[10, 1], [11, 1], [11, 2], [10, 2], [10, 1]]
    return {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": item_id,
        "collection": "c",
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "bbox": [10, 1, 11, 2],
        "properties": {"datetime": at},
        "links": [],
        "assets": {},
    }


def make_month(count: int = 55) -> list[dict[str, Any]]:
    return [make_item(f"i{n:03d}", f"2024-06-{1 + n % 30:02d}T12:00:00Z") for n in range(count)]


@dataclass(slots=True)
class World:
    """A server in memory, and a region that ingests from it."""

    server: MemoryStac
    folder: Path
    stream: dict[str, Any] = field(default_factory=dict)
    deadline_s: float = 60

    @property
    def settings(self) -> Settings:
        return make_settings(
            self.server.url, self.folder, deadline_s=self.deadline_s, **self.stream
        )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    memory = MemoryStac(make_month())
    with serve(memory.respond) as local:
        memory.url = local.url
        yield World(memory, tmp_path)


@pytest.fixture
def exact(world: World) -> None:
    """The server's count is declared exact."""
    world.stream["options"] = {**DIRECT, "matched": "exact"}


BEFORE_TODAY = Bound(datetime(2024, 7, 9, 12, tzinfo=UTC))


def test_whole_traversal_is_certified_for_the_time_it_began(world: World) -> None:
    report = ingest(world.settings)
    assert report.error is None
    assert report.landed == 55
    assert report.bound == BEFORE_TODAY


@pytest.mark.parametrize("page", [2, 3, 5])
@pytest.mark.parametrize("fault", ["repeat", "loop"])
def test_repeated_page_is_a_fault_and_the_bound_stays(
    world: World, fault: Fault, page: int
) -> None:
    world.server.faults = {page: fault}
    report = ingest(world.settings)
    assert isinstance(report.error, SourceFaultError)
    assert "stream s" in str(report.error)
    assert (report.bound, report.state) == (None, "faulted")
    world.server.faults = {}
    again = ingest(world.settings)
    assert again.error is None
    assert again.bound == BEFORE_TODAY
    assert len(read_ids(world.settings)) == 55


@pytest.mark.parametrize("fault", ["cut", "no next"])
@pytest.mark.parametrize("page", [1, 3, 5])
def test_shortfall_against_an_exact_count_is_enumerated_once_more(
    world: World, exact: None, fault: Fault, page: int
) -> None:
    world.server.faults = {page: fault}
    report = ingest(world.settings)
    assert report.error is None
    assert report.bound == BEFORE_TODAY
    assert len(read_ids(world.settings)) == 55
    assert world.server.pages > 6


@pytest.mark.parametrize("fault", ["cut", "no next"])
def test_shortfall_that_stays_holds_the_bound_and_says_so(
    world: World, exact: None, fault: Fault
) -> None:
    world.server.faults = dict.fromkeys(range(1, 100, 3), fault)
    report = ingest(world.settings)
    assert (report.bound, report.state) == (None, "blocked")
    assert "of 55 Items" in report.reason


@pytest.mark.parametrize("paging", ["keyset", "offset"])
@pytest.mark.parametrize("count", [1, 19])
def test_empty_pages_with_next_are_followed(
    world: World, paging: Literal["keyset", "offset"], count: int
) -> None:
    world.server.paging = paging
    world.server.faults = dict.fromkeys(range(3, 3 + count), "empty")
    report = ingest(world.settings)
    assert report.error is None
    assert report.bound == BEFORE_TODAY
    assert len(read_ids(world.settings)) == 55


def test_twenty_empty_pages_in_a_row_are_a_fault(world: World) -> None:
    world.server.faults = dict.fromkeys(range(3, 1000), "empty")
    report = ingest(world.settings)
    assert isinstance(report.error, SourceFaultError)
    assert "empty pages" in str(report.error)
    assert report.bound is None
    assert world.server.pages < 30


@pytest.mark.parametrize("page", [2, 4, 6])
def test_expired_token_restarts_the_window(world: World, page: int) -> None:
    world.server.faults = {page: "expire"}
    report = ingest(world.settings)
    assert report.error is None
    assert report.bound == BEFORE_TODAY
    assert len(read_ids(world.settings)) == 55
    assert report.landed == 55, "what came twice is counted once"


def test_tokens_that_always_expire_end_in_a_fault(world: World) -> None:
    world.server.faults = dict.fromkeys(range(2, 100), "expire")
    report = ingest(world.settings)
    assert isinstance(report.error, SourceFaultError)
    assert report.bound is None
    assert world.server.pages < 20


@pytest.mark.parametrize("page", [1, 3, 6])
def test_reordered_page_changes_nothing(world: World, page: int) -> None:
    world.server.faults = {page: "reorder"}
    report = ingest(world.settings)
    assert report.bound == BEFORE_TODAY
    assert len(read_ids(world.settings)) == 55


def change_between_pages(world: World, change: Callable[[list[dict[str, Any]], int], None]) -> None:
    def before_page(number: int) -> None:
        if number > 1:
            change(world.server.items, number)

    world.server.before_page = before_page


def test_inserts_between_pages_lose_nothing(world: World) -> None:
    change_between_pages(
        world,
        lambda items, number: items.append(make_item(f"late{number}", "2024-06-30T23:00:00Z")),
    )
    report = ingest(world.settings)
    assert report.bound == BEFORE_TODAY
    ids = read_ids(world.settings)
    assert {item["id"] for item in make_month()} <= ids
    assert {item["id"] for item in world.server.items} == ids


def test_deletes_between_pages_lose_nothing(world: World) -> None:
    """Keyset paging goes on after the last row, whether it is there or not."""
    change_between_pages(world, lambda items, number: items.pop(0))
    report = ingest(world.settings)
    assert report.bound == BEFORE_TODAY
    assert {item["id"] for item in world.server.items} <= read_ids(world.settings)


def test_offset_paging_that_skips_a_row_is_not_believed_at_once(world: World) -> None:
    """A delete before the position shifts the rest: one Item is skipped, and found again."""
    world.server.paging = "offset"
    world.stream["options"] = {**DIRECT, "paging": "offset"}

    def before_page(number: int) -> None:
        if number == 3:
            world.server.items.pop(0)

    world.server.before_page = before_page
    report = ingest(world.settings)
    assert report.error is None
    assert report.bound == BEFORE_TODAY
    assert {item["id"] for item in world.server.items} <= read_ids(world.settings)


def test_offset_paging_under_constant_change_is_held(world: World) -> None:
    world.server.paging = "offset"
    world.stream["options"] = {**DIRECT, "paging": "offset"}
    change_between_pages(world, lambda items, number: items.pop(0) and None)
    report = ingest(world.settings)
    assert (report.bound, report.state) == (None, "blocked")
    assert "offset paging" in report.reason


def test_server_that_stops_in_the_middle_goes_on_from_its_token(world: World) -> None:
    stop = {"page": 4}
    world.deadline_s = 2
    answer = world.server.respond

    with serve(
        lambda incoming: (
            answer(incoming) if world.server.pages < stop["page"] else answer_json({}, 503)
        )
    ) as local:
        world.server.url = local.url
        first = ingest(world.settings)
        assert isinstance(first.error, SourceUnavailableError)
        assert first.bound is None
        assert len(read_ids(world.settings)) == 40
        stop["page"] = 1000
        pages_before = world.server.pages
        second = ingest(world.settings)
    assert second.bound is not None
    assert second.error is None
    assert world.server.pages - pages_before == 2, "no page was asked for again"
    assert len(read_ids(world.settings)) == 55
