"""Paging that repeats, cuts, expires or changes under a traversal: the bound never lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from scene_pipeline.errors import SourceFaultError, SourceUnavailableError
from scene_pipeline.settings import Settings
from scene_pipeline_tests.services.http_region import (
    BEFORE_TODAY,
    DIRECT,
    ingest,
    make_item,
    make_settings,
    read_ids,
)
from scene_pipeline_tests.services.http_server import answer_json, serve
from scene_pipeline_tests.services.memory_stac import Fault, MemoryStac


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


def test_region_without_an_end_is_read_up_to_now(world: World) -> None:
    settings = world.settings.model_copy(update={"end_date": None})
    report = ingest(settings)
    assert (report.error, report.bound) == (None, BEFORE_TODAY)


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
