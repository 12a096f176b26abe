"""What every source promises, run against each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scene_pipeline.ingest.sources.archive import Archive
from scene_pipeline.ingest.sources.base import Declaration, Query, Source
from scene_pipeline.ingest.sources.simulator import Simulator, simulate_items
from scene_pipeline_tests.services.http_server import serve
from scene_pipeline_tests.services.memory_stac import MemoryStac
from scene_pipeline_tests.services.sources import iterate_pages, make_query, open_local

FIJI = (175.5, -21.0, -178.0, -17.0)
SECRET = "sk-3f9a0c77d1e24b"


@dataclass(frozen=True)
class Case:
    """A way to open the same source afresh, and the ids of its query in the promised order."""

    open: Callable[[], Source]
    query: Query
    ids: tuple[str, ...]


def make_items(count: int = 57) -> list[dict[str, Any]]:
    return [
        {
            "type": "Feature",
            "id": f"i{number:03d}",
            "collection": "c",
            "geometry": {"type": "Point", "coordinates": [178.0, -18.0]},
            # Ties at equal instants, out of order.
            "properties": {"datetime": f"2024-06-{1 + number * 7 % 28:02d}T00:00:00Z"},
        }
        for number in range(count)
    ]


KINDS = [
    "simulator", "archive", "STAC keyset POST", "STAC keyset GET", "STAC offset", "STAC unsorted",
    pytest.param("pgstac", marks=[pytest.mark.stac, pytest.mark.postgres]),
]  # fmt: skip


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    query = replace(make_query("c", limit=10), area=FIJI)
    items = make_items()
    by_time = sorted(items, key=lambda item: (item["properties"]["datetime"], item["id"]))
    ids = tuple(item["id"] for item in by_time)
    kind: str = request.param
    if kind == "simulator":
        start, end = datetime(2024, 6, 4, tzinfo=UTC), datetime(2024, 6, 8, tzinfo=UTC)
        source = Simulator(start.date())
        simulated = simulate_items("c", FIJI, start, end, source.missions)
        yield Case(
            lambda: Simulator(start.date()),
            replace(query, start=start, end=end),
            tuple(item["id"] for item in simulated),
        )
    elif kind == "archive":
        path = tmp_path / "items.ndjson"
        path.write_text("\n".join(map(json.dumps, items)))
        in_file = tuple(item["id"] for item in items)
        yield Case(lambda: Archive(path, Declaration()), query, in_file)
    elif kind == "pgstac":
        server = request.getfixturevalue("pgstac_server")
        server.load("contract", items)
        yield Case(lambda: open_local(server.url), replace(query, collection="contract"), ids)
    else:
        memory = MemoryStac(items, paging="offset" if "offset" in kind else "keyset")
        memory.methods = ("GET",) if "GET" in kind else ("GET", "POST")
        memory.sorts = "unsorted" not in kind
        with serve(memory.respond) as local:
            memory.url = local.url
            yield Case(lambda: open_local(local.url, secrets={"X-Key": SECRET}), query, ids)


def test_pages_give_every_item_once_and_in_order(case: Case) -> None:
    pages = list(iterate_pages(case.open(), case.query))
    assert len(pages) > 3
    assert tuple(item["id"] for page in pages for item in page.items) == case.ids
    assert not any(page.foreign for page in pages)


@pytest.mark.parametrize("limit", [1, 7, 500])
def test_page_size_decides_nothing_else(case: Case, limit: int) -> None:
    query = replace(case.query, limit=limit)
    found = [item["id"] for page in iterate_pages(case.open(), query) for item in page.items]
    assert tuple(found) == case.ids


def test_any_token_is_resumed_by_another_process(case: Case) -> None:
    pages = list(iterate_pages(case.open(), case.query))
    for number in (0, 1, len(pages) - 2):
        rest = iterate_pages(case.open(), case.query, pages[number].next_token)
        expected = [item["id"] for page in pages[number + 1 :] for item in page.items]
        assert [item["id"] for page in rest for item in page.items] == expected


def test_a_page_may_be_asked_for_again(case: Case) -> None:
    source = case.open()
    token = source.fetch_page(case.query, None).next_token
    first, second = (source.fetch_page(case.query, token) for _ in range(2))
    assert (first.items, first.next_token) == (second.items, second.next_token)


def test_pages_asked_for_at_once_are_those_asked_for_in_turn(case: Case) -> None:
    """A page is fetched ahead while another is asked for again."""
    tokens = [page.next_token for page in iterate_pages(case.open(), case.query)][:-1]
    source = case.open()
    expected = [source.fetch_page(case.query, token).items for token in tokens]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            pages = pool.map(lambda token: source.fetch_page(case.query, token), tokens * 2)
            assert [page.items for page in pages] == expected * 2


def test_tokens_are_text_and_differ_from_page_to_page(case: Case) -> None:
    tokens = [page.next_token for page in iterate_pages(case.open(), case.query)]
    assert tokens.pop() is None
    assert all(isinstance(token, str) for token in tokens)
    assert len(set(tokens)) == len(tokens)
    assert SECRET not in json.dumps(tokens)


def test_counts_are_exact_or_absent(case: Case) -> None:
    source = case.open()
    page = source.fetch_page(case.query, None)
    assert page.matched in {None, len(case.ids)}
    if source.declaration.matched == "exact":
        assert page.matched == len(case.ids)


def test_scope_is_stable_and_without_secrets(case: Case) -> None:
    one, other = case.open(), case.open()
    one.fetch_page(case.query, None)
    assert one.scope == other.scope
    assert one.address in json.dumps(json.loads(one.scope))
    assert SECRET not in one.scope + one.address + repr(one)


def test_completeness_is_claimed_only_by_declaration(case: Case) -> None:
    source = case.open()
    claimed = source.complete_through(case.query)
    assert (claimed is not None) == (source.declaration.finality == "explicit")
    if claimed is not None:
        assert claimed.value.tzinfo is UTC
