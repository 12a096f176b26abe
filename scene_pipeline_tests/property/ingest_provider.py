"""A provider in memory for the tests of ingest: real Items, real paging, faults on request."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from scene_pipeline.errors import SourceUnavailableError, TokenExpiredError
from scene_pipeline.ingest.bounds import Bound, Endpoint
from scene_pipeline.ingest.sources.base import Declaration, Page, Query

START = datetime(2024, 6, 1, tzinfo=UTC)
AREA = (6.0, 45.0, 12.0, 48.0)
COLLECTION = "c"
LAG = timedelta(hours=2)

# Footprints by name: inside one zoom-7 tile, across two, outside the area, none at all.
BOXES: dict[str, tuple[float, float, float, float] | None] = {
    "west": (7.0, 46.2, 7.4, 46.6),
    "east": (10.0, 46.2, 10.4, 46.6),
    "both": (8.2, 46.2, 8.8, 46.6),
    "outside": (40.0, 46.0, 41.0, 47.0),
    "unusable": None,
}
Place = Literal["west", "east", "both", "outside", "unusable"]
Fault = Literal[
    "unavailable", "token expired", "same token", "same page", "cut", "empty page", "swapped"
]


@dataclass(frozen=True, slots=True)
class Version:
    """One published state of an Item. ``at_s``: its coordinate, seconds after `START`.

    ``published_s`` and ``withdrawn_s`` are when it can be seen; ``broad``: only under the wider
    of a stream's two scopes.
    """

    item_id: str
    number: int
    at_s: int
    place: Place
    published_s: int
    withdrawn_s: int | None = None
    broad: bool = False
    unfinished: bool = False  # published later than the declared lag allows

    @property
    def at(self) -> datetime:
        return START + timedelta(seconds=self.at_s)

    def to_item(self) -> dict[str, Any]:
        box = BOXES[self.place]
        geometry = None
        if box is not None:
            west, south, east, north = box
            ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
            geometry = {"type": "Polygon", "coordinates": [ring]}
        return {
            "type": "Feature",
            "stac_version": "1.0.0",
            "id": self.item_id,
            "collection": COLLECTION,
            "geometry": geometry,
            "properties": {"datetime": self.at.isoformat(), "number": self.number},
            "links": [],
            "assets": {},
        }


@dataclass
class Provider:
    """Satisfies `sources.base.Source`. ``now_s`` reads the world's clock."""

    name: str
    now_s: Callable[[], int]
    finality: Literal["none", "lag", "explicit"] = "lag"
    matched: Literal["exact", "none"] = "exact"
    paging: Literal["keyset", "offset"] = "keyset"
    endpoint: Endpoint = "excluded"
    server_skew_s: int = 0
    broad: bool = False
    versions: list[Version] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    requests: int = 0

    @property
    def address(self) -> str:
        return f"memory:{self.name}"

    @property
    def scope(self) -> str:
        return json.dumps([self.name, self.broad])

    @property
    def declaration(self) -> Declaration:
        return Declaration(
            finality=self.finality,
            lag_hours=LAG.total_seconds() / 3600 if self.finality == "lag" else None,
            matched=self.matched,
            paging=self.paging,
        )

    def complete_through(self, query: Query) -> Bound | None:
        del query
        return Bound(START + timedelta(seconds=self.now_s()) - LAG, self.endpoint)

    def publish(self, version: Version) -> None:
        """Add a version; an earlier one of the same Item is withdrawn at that moment."""
        self.withdraw(version.item_id, version.published_s)
        self.versions.append(version)

    def withdraw(self, item_id: str, at_s: int) -> None:
        self.versions = [
            replace(each, withdrawn_s=at_s)
            if each.item_id == item_id and each.withdrawn_s is None
            else each
            for each in self.versions
        ]

    def visible(self, *, broad: bool | None = None) -> list[Version]:
        """What can be seen now, by coordinate and id."""
        now_s = self.now_s()
        wide = self.broad if broad is None else broad
        return sorted(
            (
                each
                for each in self.versions
                if each.published_s <= now_s
                and (each.withdrawn_s is None or now_s < each.withdrawn_s)
                and (wide or not each.broad)
            ),
            key=lambda each: (each.at_s, each.item_id),
        )

    def fetch_page(self, query: Query, token: str | None) -> Page:
        self.requests += 1
        fault = self.faults.pop(0) if self.faults else None
        if fault == "unavailable":
            raise SourceUnavailableError(f"{self.name} does not answer", where=self.address)
        if fault == "token expired" and token is not None:
            raise TokenExpiredError(f"{self.name} forgot its token", where=self.address)
        # STAC intervals are closed at both ends.
        rows = [each for each in self.visible() if query.start <= each.at <= query.end]
        if self.paging == "offset":
            position = json.loads(token)[0] if token else 0
            rest = rows[position:]
        else:
            position = json.loads(token)[0] if token else [-1, ""]
            rest = [each for each in rows if [each.at_s, each.item_id] > position]
        page, more = rest[: query.limit], rest[query.limit :]
        if fault == "empty page":
            page, more = [], rest
            following: Any = position
        elif fault == "same page":
            following = position
        else:
            following = (
                position + len(page)
                if self.paging == "offset"
                else [page[-1].at_s, page[-1].item_id]
                if page
                else position
            )
        # The count makes a token new even where it stands for a page that was served before.
        next_token = json.dumps([following, self.requests]) if more else None
        if fault == "same token" and token is not None:
            next_token = token
        if fault == "cut":
            next_token = None
        items = [each.to_item() for each in page]
        if fault == "swapped":
            items.reverse()
        return Page(
            items=items,
            next_token=next_token,
            matched=len(rows) if self.matched == "exact" else None,
            server_at=START + timedelta(seconds=self.now_s() + self.server_skew_s),
        )
