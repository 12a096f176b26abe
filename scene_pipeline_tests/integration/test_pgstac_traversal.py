"""Full traversals of a real STAC server (stac-fastapi-pgstac), several hundred pages long."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scene_pipeline.errors import TokenExpiredError
from scene_pipeline_tests.services.http_region import (
    BEFORE_TODAY,
    ingest,
    make_settings,
    read_ids,
)
from scene_pipeline_tests.services.sources import iterate_pages, make_query, open_local

if TYPE_CHECKING:
    from scene_pipeline.ingest.ingester import IngestProgress
    from scene_pipeline_tests.services.pgstac import PgstacServer

pytestmark = [pytest.mark.stac, pytest.mark.postgres]


def make_items(count: int, prefix: str = "i") -> Iterator[dict[str, Any]]:
    """Items over June 2024 in no order of time, many at equal instants."""
    first = datetime(2024, 6, 1, tzinfo=UTC)
    for number in range(count):
        at = first + timedelta(minutes=number * 7919 % (30 * 1440) // 5 * 5)
        yield make_item(f"{prefix}{number:05d}", at.strftime("%Y-%m-%dT%H:%M:%SZ"))


def make_item(item_id: str, at: str | None, lon: float = 10.0, **properties: Any) -> dict[str, Any]:
    ring = [[lon, 1], [lon + 1, 1], [lon + 1, 2], [lon, 2], [lon, 1]]
    return {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": item_id,
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "bbox": [lon, 1, lon + 1, 2],
        "properties": {"datetime": at, **properties},
        "links": [],
        "assets": {},
    }


@pytest.mark.parametrize(("method", "count", "limit"), [("POST", 6_000, 20), ("GET", 600, 20)])
def test_every_item_comes_once_and_in_order(
    pgstac_server: PgstacServer, method: str, count: int, limit: int
) -> None:
    collection = f"bulk-{method.lower()}"
    pgstac_server.load(collection, make_items(count))
    source = open_local(pgstac_server.url, method=method)
    pages = list(iterate_pages(source, make_query(collection, limit=limit)))
    assert len(pages) >= count // limit
    keys = [(item["properties"]["datetime"], item["id"]) for page in pages for item in page.items]
    assert len(keys) == count == pgstac_server.count(collection)
    assert len(set(keys)) == count
    assert keys == sorted(keys), "the order was offered, so it was asked for"
    assert all(page.server_at is not None for page in pages)


def test_windows_cut_at_any_instant_lose_nothing(pgstac_server: PgstacServer) -> None:
    """Neighbouring windows overlap by at most a second, and their union is everything."""
    items = [
        make_item("before", "2024-06-09T23:59:59.999999Z"),
        make_item("midnight", "2024-06-10T00:00:00Z"),
        make_item("fraction", "2024-06-10T12:00:00.400000Z"),
        make_item("cut", "2024-06-10T12:00:00.500000Z"),
        make_item("after", "2024-06-10T12:00:01Z"),
        make_item("interval", None, start_datetime="2024-06-10T18:00:00Z",
                  end_datetime="2024-06-11T18:00:00Z"),
    ]  # fmt: skip
    pgstac_server.load("instants", items)
    source = open_local(pgstac_server.url)
    cut = datetime(2024, 6, 10, 12, 0, 0, 500_000, tzinfo=UTC)
    whole = make_query("instants", "2024-06-10", "2024-06-11")
    found = []
    for query in (replace(whole, end=cut), replace(whole, start=cut)):
        found.append({i["id"] for page in iterate_pages(source, query) for i in page.items})
    assert {"midnight", "fraction"} <= found[0]
    assert {"cut", "after", "interval"} <= found[1]
    assert "before" not in found[0] | found[1]


def test_area_across_the_antimeridian_finds_both_sides(pgstac_server: PgstacServer) -> None:
    """A bbox with west > east, which this server reads as the rest of the world, is not sent."""
    lons = {"west": 178.5, "east": -179.5, "far": 10.0, "near": 170.0}
    pgstac_server.load(
        "fiji", [make_item(name, "2024-06-02T00:00:00Z", lon) for name, lon in lons.items()]
    )
    query = replace(make_query("fiji"), area=(175.5, -21.0, -178.0, 5.0))
    for method in ("POST", "GET"):
        source = open_local(pgstac_server.url, method=method)
        pages = list(iterate_pages(source, query))
        assert {item["id"] for page in pages for item in page.items} == {"west", "east"}


def test_inserts_and_deletes_between_pages_lose_nothing(pgstac_server: PgstacServer) -> None:
    """Keyset paging: Items that were there all along come exactly once."""
    pgstac_server.load("moving", make_items(300))
    source = open_local(pgstac_server.url)
    query = make_query("moving", limit=20)
    seen: list[str] = []
    removed: set[str] = set()
    for number, page in enumerate(iterate_pages(source, query)):
        ids = [item["id"] for item in page.items]
        seen += ids
        if number < 5:
            # One row before the position, one in what is to come; never the position itself.
            pgstac_server.load(
                "moving",
                [make_item(f"early{number}", "2024-06-01T00:00:00Z"),
                 make_item(f"late{number}", "2024-06-29T23:59:00Z")],
            )  # fmt: skip
            pgstac_server.delete("moving", ids[0])
            removed.add(ids[0])
    assert len(seen) == len(set(seen))
    assert {item["id"] for item in make_items(300)} <= set(seen)
    assert {f"late{number}" for number in range(5)} <= set(seen)
    assert removed


def test_token_whose_item_is_gone_has_expired(pgstac_server: PgstacServer) -> None:
    """The server answers 500; the window starts again and is complete."""
    pgstac_server.load("gone", make_items(30))
    source = open_local(pgstac_server.url)
    query = make_query("gone", limit=10)
    page = source.fetch_page(query, None)
    last = page.items[-1]["id"]
    pgstac_server.delete("gone", last)
    with pytest.raises(TokenExpiredError):
        source.fetch_page(query, page.next_token)
    again = [item["id"] for page in iterate_pages(source, query) for item in page.items]
    assert len(again) == len(set(again)) == 29
    assert last not in again


def test_real_items_come_back_as_they_were_loaded(
    pgstac_server: PgstacServer, real_data: Path
) -> None:
    with gzip.open(real_data / "items" / "sentinel-2.ndjson.gz", "rt") as lines:
        items = [json.loads(line) for line in lines]
    usable = {
        item["id"]: item
        for item in items
        if item.get("collection") == "sentinel-2-l2a" and item.get("geometry")
        and item["properties"].get("datetime")
    }  # fmt: skip
    assert len(usable) > 150
    pgstac_server.load("real-s2", usable.values())
    source = open_local(pgstac_server.url)
    query = make_query("real-s2", "2015-01-01", "2026-01-01", limit=25)
    found = [item for page in iterate_pages(source, query) for item in page.items]
    assert len(found) == len(usable)
    for item in found:
        loaded = usable[item["id"]]
        assert item["properties"]["datetime"] == loaded["properties"]["datetime"]
        assert item["geometry"] == loaded["geometry"]


def test_count_is_given_where_the_server_is_told_to(pgstac_server: PgstacServer) -> None:
    pgstac_server.load("counted", make_items(25))
    source = open_local(pgstac_server.url, filter={"conf": {"context": "on"}})
    pages = list(iterate_pages(source, make_query("counted", limit=10)))
    assert [page.matched for page in pages] == [25, 25, 25]


def test_ingest_survives_the_loss_of_the_item_that_its_token_names(
    pgstac_server: PgstacServer, tmp_path: Path
) -> None:
    """Deleted between two runs: 500, an expired token, a fresh start, nothing lost."""
    pgstac_server.load("cut", make_items(100))
    settings = make_settings(pgstac_server.url, tmp_path, collection="cut", options={})

    def stop(_: IngestProgress) -> None:
        raise RuntimeError("stopped after its first page")

    stopped = ingest(settings, progress=stop)
    assert (stopped.pages, stopped.bound) == (1, None)
    by_time = sorted(make_items(100), key=lambda item: (item["properties"]["datetime"], item["id"]))
    pgstac_server.delete("cut", by_time[9]["id"])
    report = ingest(settings)
    assert report.error is None
    assert report.bound == BEFORE_TODAY
    assert report.items == 99, "from the start again, without the one that is gone"
    assert len(read_ids(settings)) == 100, "which had arrived before"
