"""A small STAC API in memory whose Items change between pages, and which can be made to misbehave.

It is not derived from the source under test: it filters, sorts and pages on its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, quote, urlsplit

from scene_pipeline_tests.services.http_server import Answer, Incoming, answer_json

Fault = Literal["cut", "repeat", "reorder", "expire", "loop", "empty", "no next"]


@dataclass(slots=True)
class MemoryStac:
    """``items`` may be changed at any time, for example in ``before_page(number)``.

    ``paging``: keyset tokens name the last row, offset tokens count rows. ``interval``: how
    `datetime` matches, by overlap or by the Item's datetime alone. ``faults`` maps a page
    number (from 1, over all searches) to what is wrong with it. ``methods`` as offered.
    """

    items: list[dict[str, Any]] = field(default_factory=list)
    paging: Literal["keyset", "offset"] = "keyset"
    interval: Literal["overlap", "datetime"] = "overlap"
    matched: bool = True
    methods: tuple[str, ...] = ("GET", "POST")
    sorts: bool = True
    faults: dict[int, Fault] = field(default_factory=dict)
    before_page: Callable[[int], None] = lambda number: None
    pages: int = 0
    url: str = ""
    _last: tuple[Any, Any] = (None, None)

    def respond(self, incoming: Incoming) -> Answer:
        """Landing page or search; anything else is 404."""
        path = urlsplit(incoming.path).path
        if path in {"", "/"}:
            return answer_json(self._landing())
        if path != "/search" or incoming.method not in self.methods:
            return answer_json({"description": "no such resource"}, 404)
        search = incoming.document if incoming.method == "POST" else _parse_query(incoming.path)
        self.pages += 1
        self.before_page(self.pages)
        return self._search(incoming.method, search)

    def _landing(self) -> dict[str, Any]:
        classes = ["https://api.stacspec.org/v1.0.0/item-search"]
        if self.sorts:
            classes.append("https://api.stacspec.org/v1.0.0/item-search#sort")
        links = [{"rel": "search", "href": f"{self.url}/search", "method": m} for m in self.methods]
        return {"type": "Catalog", "conformsTo": classes, "links": links}

    def _search(self, method: str, search: Mapping[str, Any]) -> Answer:
        fault = self.faults.get(self.pages)
        token, limit = search.get("token"), int(search.get("limit", 10))
        if fault == "expire" and token:
            return answer_json({"description": "token has expired"}, 400)
        rows = sorted((item for item in self.items if self._matches(item, search)), key=_order)
        first = 0
        if token and self.paging == "keyset":
            first = sum(_order(row) <= tuple(json.loads(token)) for row in rows)
        elif token:
            first = int(token)
        page, following = rows[first : first + limit], None
        if first + limit < len(rows):
            following = (
                json.dumps(_order(page[-1])) if self.paging == "keyset" else str(first + limit)
            )
        if fault == "cut":
            page = page[: len(page) // 2]
        elif fault == "repeat":
            page, following = self._last
        elif fault == "reorder":
            page = page[::-1]
        elif fault == "loop":
            page, following = self._last[0], f"{following} "
        elif fault == "empty":
            # The same position, in a token of other words.
            page, following = [], f"{token or self._first_token} "
        elif fault == "no next":
            following = None
        self._last = (page, following)
        document: dict[str, Any] = {"type": "FeatureCollection", "features": page, "links": []}
        if self.matched:
            document["numberMatched"] = len(rows)
        if following is not None:
            document["links"].append(self._link(method, search, following))
        return answer_json(document)

    @property
    def _first_token(self) -> str:
        return '["", ""]' if self.paging == "keyset" else "0"

    def _link(self, method: str, search: Mapping[str, Any], token: str) -> dict[str, Any]:
        if method == "POST":
            body = {**search, "token": token}
            return {"rel": "next", "method": "POST", "href": f"{self.url}/search", "body": body}
        query = "&".join(
            f"{name}={_quote(value)}" for name, value in {**search, "token": token}.items()
        )
        return {"rel": "next", "href": f"{self.url}/search?{query}"}

    def _matches(self, item: Mapping[str, Any], search: Mapping[str, Any]) -> bool:
        collections = search.get("collections")
        if collections and item["collection"] not in collections:
            return False
        start, _, end = str(search.get("datetime", "0000/9999")).partition("/")
        properties = item["properties"]
        low = high = properties.get("datetime")
        if self.interval == "overlap" and properties.get("start_datetime"):
            low, high = properties["start_datetime"], properties["end_datetime"]
        # A server that cuts fractions, as some do.
        return low is not None and low[:19] <= end[:19] and high[:19] >= start[:19]


def _order(item: Mapping[str, Any]) -> tuple[str, str]:
    properties = item["properties"]
    return properties.get("datetime") or properties["start_datetime"], item["id"]


def _parse_query(path: str) -> dict[str, Any]:
    flat = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
    if "collections" in flat:
        return {**flat, "collections": flat["collections"].split(",")}
    return flat


def _quote(value: Any) -> str:
    return quote(",".join(value) if isinstance(value, list) else str(value), safe="")
