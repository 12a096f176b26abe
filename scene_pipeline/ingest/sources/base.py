"""The source port: what the pager may ask of a provider, and what we declare of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from scene_pipeline.ingest.bounds import Bound

__all__ = ["Area", "Declaration", "Page", "Query", "Source", "format_scope"]

Area = tuple[float, float, float, float]
FOREIGN_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """What one traversal enumerates: a Collection over an area, coordinates in [start, end).

    ``area`` is (west, south, east, north) in lon/lat degrees; west > east crosses the
    antimeridian. Instants are aware UTC.
    """

    collection: str
    area: Area
    start: datetime
    end: datetime
    limit: int = 250


@dataclass(frozen=True, slots=True)
class Page:
    """One response: Items as parsed JSON, and the opaque token of the next page (None: the end).

    ``matched`` is the server's count for the whole query where it gives one. ``server_at`` is
    the response's ``Date``. ``foreign`` holds members that are not even JSON objects, as text
    cut to `FOREIGN_CHARS` characters: each needs an outcome as an Item does.
    """

    items: Sequence[Mapping[str, Any]]
    next_token: str | None
    matched: int | None = None
    server_at: datetime | None = None
    foreign: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Declaration:
    """What we declare of a source; certificates quote it, because no provider documents it.

    ``finality``: see `settings.FinalitySettings`. ``matched``: how far the count can be
    trusted. ``paging``: ``keyset`` continues after the last row, ``offset`` counts rows and can
    skip or repeat under changes. ``null_datetime_matches``: a datetime query also finds Items
    that have an interval alone. ``token_lifetime_s``/``retention_days``: None where unknown.
    ``max_page_items``: larger pages fail. ``cadence_hours``: an empty stream older than this is
    shown as stalled.
    """

    finality: Literal["none", "lag", "explicit"] = "none"
    lag_hours: float | None = None
    matched: Literal["exact", "estimate", "none"] = "none"
    paging: Literal["keyset", "offset"] = "keyset"
    null_datetime_matches: bool = True
    requests_per_s: float = 5.0
    token_lifetime_s: float | None = None
    retention_days: float | None = None
    cadence_hours: float | None = None
    max_page_items: int = 10_000


class Source(Protocol):
    """A provider that enumerates Items page by page."""

    @property
    def address(self) -> str:
        """Where it is (URL or path, without secrets), for messages and reports."""

    @property
    def scope(self) -> str:
        """All that decides, beside the `Query`, which Items come in which order.

        Canonical JSON of address, filter, order and boundary convention, without secrets; a
        token saved under another scope is never resumed.
        """

    @property
    def declaration(self) -> Declaration:
        """What we declare of it."""

    def fetch_page(self, query: Query, token: str | None) -> Page:
        """The page at ``token`` (None: the first).

        Raises `SourceUnavailableError` (retry helps), `SourceFaultError` (not STAC, foreign
        host), or `TokenExpiredError`.
        """

    def complete_through(self, query: Query) -> Bound | None:
        """With finality ``explicit``: up to where the source itself says it is complete."""


def format_scope(**parts: object) -> str:
    """The canonical JSON that `Source.scope` promises."""
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))
