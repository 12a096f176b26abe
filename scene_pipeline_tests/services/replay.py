"""Recorded request-response sequences, served again over HTTP from a local address."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scene_pipeline_tests.services.http_server import Answer, Incoming, answer_json


@dataclass(frozen=True, slots=True)
class Exchange:
    """One recorded request with its response document (None where it was not JSON)."""

    method: str
    url: str
    body: Any
    status: int
    document: Any

    @property
    def is_page(self) -> bool:
        """Whether it is a page of Items, not a landing page or an error."""
        return isinstance(self.document, dict) and self.document.get("type") == "FeatureCollection"

    @property
    def next_link(self) -> Mapping[str, Any] | None:
        """The page's ``next`` link as recorded."""
        links = self.document.get("links", []) if self.is_page else []
        return next((link for link in links if link["rel"] == "next"), None)

    @property
    def ids(self) -> list[str]:
        """Ids of the page's Items."""
        return [feature["id"] for feature in self.document["features"]]


def read_exchanges(path: Path) -> list[Exchange]:
    """The exchanges of one recording, in order."""
    exchanges = []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            recorded = json.loads(line)
            request, response = recorded["request"], recorded["response"]
            status = response["status"]
            exchanges.append(
                Exchange(
                    request["method"],
                    request["url"],
                    json.loads(request["body"]) if request["body"] else None,
                    status["code"] if isinstance(status, dict) else status,
                    response["json"],
                )
            )
    return exchanges


def find_chain(exchanges: Sequence[Exchange], first: Exchange) -> list[Exchange]:
    """``first`` and the recorded pages that its next links lead to, by the words of the
    specification and by other code than the source's own.
    """
    chain = [first]
    while (link := chain[-1].next_link) is not None:
        method, href = link.get("method", "GET"), link["href"]
        merged = {**(chain[-1].body or {}), **link.get("body", {})}
        body = (merged if link.get("merge") else link.get("body", {})) if method == "POST" else None
        following = next(
            (
                e
                for e in exchanges
                if e.is_page and (e.method, e.url, e.body) == (method, href, body)
            ),
            None,
        )
        if following is None or following in chain:
            break
        chain.append(following)
    return chain


@dataclass(slots=True)
class Replay:
    """Answers each recorded request with its recorded response, addresses rewritten.

    Beyond the record it answers 503 (for an hour), because there the server is not known. With
    ``any_search`` a search in other words, which names no page, gets the record's first page.
    """

    exchanges: Sequence[Exchange]
    any_search: bool = False
    url: str = ""
    _given: dict[str, int] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """Scheme and host of the recorded server."""
        parts = urlsplit(self.exchanges[0].url)
        return f"{parts.scheme}://{parts.netloc}"

    def respond(self, incoming: Incoming) -> Answer:
        """The response to one request; equal requests get their responses in recorded order."""
        found = [e for e in self.exchanges if self._key(e) == self._key_of(incoming)]
        if not found and self.any_search and _starts_search(incoming):
            found = [e for e in self.exchanges if e.is_page][:1]
        if not found:
            return answer_json({"description": "not in the record"}, 503, retry_after="3600")
        key = self._key_of(incoming)
        turn = self._given.get(key, 0)
        self._given[key] = turn + 1
        exchange = found[min(turn, len(found) - 1)]
        text = json.dumps(exchange.document).replace(self.origin, self.url)
        return Answer(text.encode(), exchange.status, {"content-type": "application/json"})

    def _key(self, exchange: Exchange) -> str:
        path = exchange.url.removeprefix(self.origin)
        return json.dumps([exchange.method, path, exchange.body], sort_keys=True)

    def _key_of(self, incoming: Incoming) -> str:
        return json.dumps([incoming.method, incoming.path, incoming.document], sort_keys=True)


def _starts_search(incoming: Incoming) -> bool:
    body = incoming.document or {}
    return incoming.path.endswith("/search") and body.keys().isdisjoint({"token", "next", "page"})
