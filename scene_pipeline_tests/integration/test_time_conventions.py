"""Servers read `datetime` in their own ways; each Item still lands on exactly its own day."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy as sa

from scene_pipeline.settings import Settings
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import open_state
from scene_pipeline_tests.services.http_region import (
    BEFORE_TODAY,
    ingest,
    make_item,
    make_settings,
    read_ids,
)
from scene_pipeline_tests.services.http_server import serve
from scene_pipeline_tests.services.memory_stac import MemoryStac

# (id, properties, the UTC day that it belongs to)
INSTANTS: list[tuple[str, dict[str, Any], date]] = [
    ("midnight", {"datetime": "2024-06-10T00:00:00Z"}, date(2024, 6, 10)),
    ("before", {"datetime": "2024-06-09T23:59:59.999999Z"}, date(2024, 6, 9)),
    # Nanoseconds are floored: rounding would move it into the next day.
    ("nano", {"datetime": "2024-06-09T23:59:59.999999999Z"}, date(2024, 6, 9)),
    ("fraction", {"datetime": "2024-06-10T00:00:00.400Z"}, date(2024, 6, 10)),
    ("offset", {"datetime": "2024-06-10T01:30:00+02:00"}, date(2024, 6, 9)),
    ("last", {"datetime": "2024-06-12T23:59:59Z"}, date(2024, 6, 12)),
    ("end", {"datetime": "2024-06-13T00:00:00Z"}, date(2024, 6, 13)),
]
INTERVALS: list[tuple[str, dict[str, Any], date]] = [
    ("spanning", {"datetime": None, "start_datetime": "2024-06-10T23:59:00Z",
                  "end_datetime": "2024-06-11T00:01:00Z"}, date(2024, 6, 10)),
    ("long", {"datetime": None, "start_datetime": "2024-06-11T12:00:00Z",
              "end_datetime": "2024-06-20T00:00:00Z"}, date(2024, 6, 11)),
    # As 34 of the real Items: the instant and the start are on different days.
    ("both", {"datetime": "2024-06-12T00:00:10Z", "start_datetime": "2024-06-11T23:59:50Z",
              "end_datetime": "2024-06-12T00:00:30Z"}, date(2024, 6, 12)),
]  # fmt: skip


def make_items(rows: list[tuple[str, dict[str, Any], date]]) -> list[dict[str, Any]]:
    items = []
    for item_id, properties, _ in rows:
        item = make_item(item_id, "")
        item["properties"] = properties
        items.append(item)
    return items


def read_days(settings: Settings) -> dict[str, list[date]]:
    """The days on which each Item is placed."""
    engine = open_state(settings.state_engine_url)
    try:
        with engine.connect() as connection:
            rows = connection.execute(sa.select(t.placements.c.item_id, t.placements.c.day))
            days: dict[str, list[date]] = {}
            for item_id, day in rows:
                days.setdefault(item_id, []).append(day)
            return days
    finally:
        engine.dispose()


@pytest.fixture
def server() -> Iterator[MemoryStac]:
    memory = MemoryStac()
    with serve(memory.respond) as local:
        memory.url = local.url
        yield memory


@pytest.mark.parametrize("window_days", [1, 3, 60])
@pytest.mark.parametrize("interval", ["overlap", "datetime"])
def test_each_item_lands_on_its_own_day_whatever_the_windows(
    server: MemoryStac,
    tmp_path: Path,
    window_days: int,
    interval: Literal["overlap", "datetime"],
) -> None:
    # Under the datetime convention an Item without one matches nothing at all.
    matched = [row for row in INTERVALS if interval == "overlap" or row[1]["datetime"]]
    rows = INSTANTS + matched
    server.items, server.interval = make_items(INSTANTS + INTERVALS), interval
    settings = make_settings(server.url, tmp_path, window_days=window_days)
    report = ingest(settings)
    assert report.error is None
    assert report.bound == BEFORE_TODAY
    assert read_days(settings) == {item_id: [day] for item_id, _, day in rows}
    assert report.landed == len(rows), "what two windows both serve is counted once"


def test_traversal_that_begins_within_a_second_loses_nothing(
    server: MemoryStac, tmp_path: Path
) -> None:
    """The bound may hold any fraction; the next window asks from the whole second before it."""
    settings = make_settings(server.url, tmp_path)
    now = datetime(2024, 6, 11, 0, 0, 0, 700_000, tzinfo=UTC)
    # With a lag of a day, the bound is 2024-06-10T00:00:00.7.
    server.items = make_items([INSTANTS[0]])
    assert ingest(settings, now).bound is not None
    server.items = make_items(INSTANTS)
    ingest(settings, now + timedelta(days=5))
    assert {"fraction", "last", "end", "midnight"} <= read_ids(settings)
