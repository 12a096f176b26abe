"""A STAC API as a source: Item Search by POST or GET, next links followed as they are given.

A token is the whole next request as JSON (method, address, body, headers), so that a resumed
traversal sends exactly what the server asked for. It holds no credentials. Sources: STAC API -
Item Search 1.0.0 (datetime, bbox, intersects, paging with ``merge``) and its sort extension.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlencode, urljoin

from scene_pipeline.errors import SourceFaultError, SourceRefusedError, TokenExpiredError
from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.http import HttpClient, Reply, Request
from scene_pipeline.ingest.sources.base import (
    FOREIGN_CHARS,
    Area,
    Declaration,
    Page,
    Query,
    format_scope,
)
from scene_pipeline.ingest.sources.options import StacOptions

__all__ = ["StacApi", "find_next", "format_token", "parse_token"]

MAX_TOKEN_CHARS = 100_000
_SORT_CLASS = "item-search#sort"
# What servers answer to a token that they no longer know. pgstac answers 500 as soon as the Item
# that its token names is gone.
_EXPIRED = frozenset({400, 404, 410, 422, 500})
_TRIES_AT_500 = 3


@dataclass(slots=True)
class StacApi:
    """The `Source` over one API root."""

    client: HttpClient
    declaration: Declaration
    options: StacOptions = field(default_factory=StacOptions)
    _search: tuple[Literal["GET", "POST"], str, bool] | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        """The root URL."""
        return str(self.client.root)

    @property
    def scope(self) -> str:
        """A discovered order is left out: a token carries it in its own request."""
        return format_scope(
            address=self.address,
            filter=self.options.filter,
            order=self.options.sortby,
            boundary="closed whole seconds around [start, end)",
        )

    def complete_through(self, query: Query) -> Bound | None:  # noqa: ARG002 - the port's signature
        """No STAC API says so itself."""
        return None

    def fetch_page(self, query: Query, token: str | None) -> Page:
        """See `Source.fetch_page`."""
        if token is None:
            request = self._first_request(query)
            return _read_page(request, self.client.fetch(request))
        request = parse_token(token)
        try:
            reply = self.client.fetch(request, tries_at_500=_TRIES_AT_500)
        except SourceRefusedError as refusal:
            if refusal.status in _EXPIRED:
                raise TokenExpiredError(
                    f"the resume token is no longer honoured ({refusal.what})",
                    where=refusal.where,
                    next_step="the window starts again; what has arrived is kept",
                ) from refusal
            raise
        return _read_page(request, reply)

    def _first_request(self, query: Query) -> Request:
        if self._search is None:
            self._search = self._discover()
        method, url, sorts = self._search
        limit = min(query.limit, self.declaration.max_page_items)
        body: dict[str, Any] = {"limit": limit, "datetime": _format_interval(query)}
        if query.collection:
            body["collections"] = [query.collection]
        body |= _format_area(query.area)
        if sorts:
            body["sortby"] = [
                {"field": name, "direction": "asc"} for name in ("properties.datetime", "id")
            ]
        body |= self.options.filter
        if method == "POST":
            return Request("POST", url, body)
        return Request("GET", f"{url}{'&' if '?' in url else '?'}{urlencode(_flatten(body))}")

    def _discover(self) -> tuple[Literal["GET", "POST"], str, bool]:
        """Method and address of the search and whether it sorts, as the landing page says."""
        root = self.address.rstrip("/")
        sorts, method = self.options.sortby == "yes", self.options.method
        if method != "auto" and self.options.sortby != "auto":
            return method, f"{root}/search", sorts
        landing = self.client.fetch(Request("GET", str(self.client.root)))
        page = landing.document if isinstance(landing.document, dict) else {}
        classes = page.get("conformsTo")
        if self.options.sortby == "auto" and isinstance(classes, list):
            sorts = any(str(name).endswith(_SORT_CLASS) for name in classes)
        offered = {
            str(name).upper(): _join(landing, str(link.get("href")))
            for link in _links(page, "search")
            # Some servers name one address without a method and take both.
            for name in ([link["method"]] if link.get("method") else ("GET", "POST"))
        }
        if method == "auto":
            method = "GET" if offered.keys() == {"GET"} else "POST"
        return method, offered.get(method, f"{root}/search"), sorts


def find_next(request: Request, reply: Reply) -> Request | None:
    """The request that the document's ``next`` link asks for, None where it has none.

    With ``merge`` the link's body and headers complete those of the request just made, else they
    replace them. Raises `SourceFaultError` for a link that cannot be followed.
    """
    links = _links(reply.document, "next")
    if not links:
        return None
    # OGC APIs may offer the same page in several formats, or by both methods.
    readable = [link for link in links if "json" in str(link.get("type") or "json")]
    link = min(readable or links, key=lambda one: _method(one) != request.method)
    href, method = link.get("href"), _method(link)
    if not isinstance(href, str) or method not in {"GET", "POST"}:
        raise SourceFaultError(
            "next link without an address, or by another method than GET and POST",
            where=reply.where,
        )
    body, headers = link.get("body") or {}, link.get("headers") or {}
    if not isinstance(body, dict) or not isinstance(headers, dict):
        raise SourceFaultError("next link with a body or headers of no object", where=reply.where)
    texts = {str(name): str(value) for name, value in headers.items()}
    if not all(
        (name + value).isascii() and (name + value).isprintable() for name, value in texts.items()
    ):
        raise SourceFaultError("next link with headers that HTTP cannot send", where=reply.where)
    if link.get("merge") is True:
        body, texts = {**(request.body or {}), **body}, {**request.headers, **texts}
    url = _join(reply, href)
    if method == "POST":
        return Request("POST", url, body, texts)
    return Request("GET", url, None, texts)


def format_token(request: Request) -> str:
    """The request as text; raises `SourceFaultError` where it is too long to keep."""
    token = json.dumps([request.method, request.url, request.body, dict(request.headers)])
    if len(token) > MAX_TOKEN_CHARS:
        raise SourceFaultError(
            f"next link of {len(token)} characters", next_step=f"{MAX_TOKEN_CHARS} is the limit"
        )
    return token


def parse_token(token: str) -> Request:
    """The request that `format_token` wrote."""
    method, url, body, headers = json.loads(token)
    return Request(method, url, body, headers)


def _read_page(request: Request, reply: Reply) -> Page:
    document = reply.document
    features = document.get("features") if isinstance(document, dict) else None
    if not isinstance(features, list) or document.get("type") != "FeatureCollection":
        kind = document.get("type") if isinstance(document, dict) else None
        known = f": it is a {kind}" if kind in ("Catalog", "Collection", "Feature") else ""
        raise SourceFaultError(
            f"the answer is no FeatureCollection{known}",
            where=reply.where,
            next_step="check url of the stream: it is the root of a STAC API",
        )
    following = find_next(request, reply)
    return Page(
        items=[feature for feature in features if isinstance(feature, dict)],
        next_token=None if following is None else format_token(following),
        matched=_find_matched(document),
        server_at=reply.server_at,
        foreign=[
            json.dumps(feature)[:FOREIGN_CHARS]
            for feature in features
            if not isinstance(feature, dict)
        ],
    )


def _find_matched(document: Mapping[str, Any]) -> int | None:
    """OGC's ``numberMatched``, or the older context extension's ``matched``."""
    context = document.get("context")
    older = context.get("matched") if isinstance(context, dict) else None
    for count in (document.get("numberMatched"), older):
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
    return None


def _links(document: Any, rel: str) -> list[Mapping[str, Any]]:
    links = document.get("links") if isinstance(document, dict) else None
    if not isinstance(links, list):
        return []
    return [link for link in links if isinstance(link, dict) and link.get("rel") == rel]


def _join(reply: Reply, href: str) -> str:
    try:
        return urljoin(reply.url, href)
    except ValueError:
        raise SourceFaultError("a link leads to no URL", where=reply.where) from None


def _method(link: Mapping[str, Any]) -> str:
    return str(link.get("method") or "GET").upper()


def _format_interval(query: Query) -> str:
    """[start, end) as a closed interval of whole seconds: some servers cut fractions."""
    start, end = query.start.astimezone(UTC), query.end.astimezone(UTC)
    if end.microsecond and end < datetime.max.replace(microsecond=0, tzinfo=UTC):
        end += timedelta(seconds=1)
    return "/".join(at.replace(microsecond=0, tzinfo=None).isoformat() + "Z" for at in (start, end))


def _format_area(area: Area) -> dict[str, Any]:
    """``bbox``; two boxes across the antimeridian; nothing for the whole world.

    PostGIS reads a bbox with west > east as the rest of the world, so none is sent. A bbox of
    the whole world would hide Items without a geometry, which must be seen to be quarantined.
    """
    west, south, east, north = area
    if west <= -180 and east >= 180 and south <= -90 and north >= 90:
        return {}
    if west <= east:
        return {"bbox": list(area)}
    boxes = [
        [[[w, south], [e, south], [e, north], [w, north], [w, south]]]
        for w, e in ((west, 180.0), (-180.0, east))
        if w < e
    ]
    return {"intersects": {"type": "MultiPolygon", "coordinates": boxes}}


def _flatten(body: Mapping[str, Any]) -> dict[str, str]:
    """Search fields as GET parameters."""
    flat = {}
    for name, value in body.items():
        if name == "sortby":
            flat[name] = ",".join(f"+{key['field']}" for key in value)
        elif isinstance(value, list):
            flat[name] = ",".join(map(str, value))
        else:
            flat[name] = json.dumps(value) if isinstance(value, dict) else str(value)
    return flat
