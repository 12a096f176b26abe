"""Every recorded sequence of real servers, replayed over HTTP through the STAC source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scene_pipeline.errors import SourceUnavailableError
from scene_pipeline.ingest.http import Request
from scene_pipeline.ingest.sources.stac_api import StacApi, format_token
from scene_pipeline_tests.conftest import REAL_DATA
from scene_pipeline_tests.services.http_server import LocalServer, serve
from scene_pipeline_tests.services.replay import Exchange, Replay, find_chain, read_exchanges
from scene_pipeline_tests.services.sources import make_query, open_local

RECORDS = sorted((REAL_DATA / "paging").glob("*.ndjson.gz"))
QUERY = make_query(limit=10)


def name_of(path: Path) -> str:
    return path.name.split(".ndjson")[0].removeprefix("pystac-client__")


def find_searches(path: Path) -> list[Exchange]:
    """Pages that were asked for by a search, in order."""
    return [e for e in read_exchanges(path) if e.is_page and e.url.endswith("/search")]


def find_landing(path: Path) -> Exchange | None:
    """The recorded landing page that says what the API conforms to."""
    documents = [e for e in read_exchanges(path) if isinstance(e.document, dict)]
    return next((e for e in documents if "conformsTo" in e.document), None)


@contextmanager
def replaying(path: Path, **how: bool) -> Iterator[tuple[Replay, LocalServer, StacApi]]:
    replay = Replay(read_exchanges(path), **how)
    with serve(replay.respond) as server:
        replay.url = server.url
        yield replay, server, open_local(f"{server.url}/", deadline_s=5)


def distinct_starts(exchanges: list[Exchange]) -> list[Exchange]:
    """Pages that no other page's next link leads to."""
    pages = [exchange for exchange in exchanges if exchange.is_page]
    followed = [page for first in pages for page in find_chain(exchanges, first)[1:]]
    starts: list[Exchange] = []
    for page in pages:
        known = any((s.method, s.url, s.body) == (page.method, page.url, page.body) for s in starts)
        if page not in followed and not known:
            starts.append(page)
    return starts


def test_records_are_there(real_data: Path) -> None:
    assert real_data == REAL_DATA
    assert len(RECORDS) == 30
    assert len(SEARCHED) >= 20
    assert len(LANDED) >= 8
    starts = [(path, len(distinct_starts(read_exchanges(path)))) for path in RECORDS]
    assert sum(count for _, count in starts) >= 28
    assert [path.name for path, count in starts if count == 0] == [
        "pystac-client__test_get_collection_returns_none_if_not_found.ndjson.gz"
    ]


@pytest.mark.parametrize("path", RECORDS, ids=name_of)
def test_record_replays_with_the_requests_of_the_real_client(path: Path) -> None:
    exchanges = read_exchanges(path)
    for start in distinct_starts(exchanges):
        chain = find_chain(exchanges, start)
        with replaying(path) as (replay, server, source):
            origin = replay.origin
            url = start.url.replace(origin, server.url)
            token: str | None = format_token(Request(start.method, url, start.body))  # type: ignore[arg-type]
            for number, recorded in enumerate(chain):
                page = source.fetch_page(QUERY, token)
                token = page.next_token
                assert [item["id"] for item in page.items] == recorded.ids
                assert not page.foreign
                assert page.server_at is not None
                ended = recorded.next_link is None
                assert (token is None) == ended, "only the absence of next ends a traversal"
                counted = recorded.document.get("numberMatched")
                assert page.matched == counted
                sent = server.requests[number]
                assert sent.method == recorded.method
                assert server.url + sent.path == recorded.url.replace(origin, server.url)
                assert sent.document == recorded.body
            assert len(server.requests) == len(chain)
            if token is None:
                continue
            # The record ends on a page that still has `next`: unfinished, never an end.
            with pytest.raises(SourceUnavailableError, match="not in the record"):
                source.fetch_page(QUERY, token)


SEARCHED = [path for path in RECORDS if find_searches(path)]


@pytest.mark.parametrize("path", SEARCHED, ids=name_of)
def test_our_own_first_search_leads_into_the_record(path: Path) -> None:
    """The first page asked for in our words, every further one in the server's."""
    searches = find_searches(path)
    with replaying(path, any_search=True) as (replay, server, _):
        root = searches[0].url.removesuffix("/search").replace(replay.origin, server.url)
        source = open_local(root, method="POST", sortby="no")
        page = source.fetch_page(QUERY, None)
    assert [item["id"] for item in page.items] == searches[0].ids
    assert [request.document for request in server.requests] == [
        {"limit": 10, "collections": ["c"],
         "datetime": "2024-06-01T00:00:00Z/2024-07-01T00:00:00Z"}
    ]  # fmt: skip
    assert (page.next_token is None) == (searches[0].next_link is None)


LANDED = [path for path in SEARCHED if find_landing(path)]


@pytest.mark.parametrize("path", LANDED, ids=name_of)
def test_search_is_found_on_recorded_landing_pages(path: Path) -> None:
    """Real landing pages: method, address and order of the search are taken from them."""
    landing = find_landing(path)
    assert landing is not None
    with replaying(path, any_search=True) as (replay, server, _):
        source = open_local(landing.url.replace(replay.origin, server.url))
        source.fetch_page(QUERY, None)
        source.fetch_page(QUERY, None)
    assert [request.method for request in server.requests] == ["GET", "POST", "POST"]
    assert server.requests[1].path.endswith("/search")
    sorts = any("item-search#sort" in name for name in landing.document["conformsTo"])
    assert ("sortby" in server.requests[1].document) == sorts
