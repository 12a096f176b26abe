"""From a page's Items to outcomes: every member of a page lands, is outside, or is unusable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from scene_pipeline.errors import DataError
from scene_pipeline.ingest.pager import ItemId
from scene_pipeline.scenes.item import HALF_EARTH_KM2, Scene, parse_and_repair
from scene_pipeline.scenes.precedence import twin_key

if TYPE_CHECKING:
    from scene_pipeline.scenes.grid import TileGrid
    from scene_pipeline.scenes.keys import SceneDefinition

__all__ = ["Landing", "Outcome", "PreparedPage", "Unusable", "prepare_page"]

Outcome = Literal["landed", "outside", "quarantined"]

# Clocks differ, and some providers stamp a scene at its end: later than this is a wrong date.
FUTURE_TOLERANCE = timedelta(days=1)
# Longer ids, or ids with control characters, are kept in the quarantined Item alone.
MAX_ID_CHARS = 400


@dataclass(frozen=True, slots=True)
class Landing:
    """One version of one scene, and the tiles of its day that it falls into (none: outside)."""

    scene: Scene
    tiles: tuple[str, ...]
    twin: str | None

    @property
    def item(self) -> ItemId:
        """(Collection, id)."""
        return self.scene.collection, self.scene.item_id

    @property
    def outcome(self) -> Outcome:
        """Landed, or outside the area or the days of the definition."""
        return "landed" if self.tiles else "outside"


@dataclass(frozen=True, slots=True)
class Unusable:
    """A member of a page that cannot become a scene, whole, as JSON text."""

    item: ItemId
    digest: str
    reason: str
    explanation: str
    text: str


@dataclass(frozen=True, slots=True)
class PreparedPage:
    """What a page comes to under one routing generation; nothing of it is stored yet."""

    landings: tuple[Landing, ...]
    unusable: tuple[Unusable, ...]
    routing: int

    @property
    def ids(self) -> set[ItemId]:
        """Every distinct member."""
        return {each.item for each in self.landings} | {each.item for each in self.unusable}


def prepare_page(
    items: Sequence[Any],
    *,
    foreign: Sequence[str] = (),
    definition: SceneDefinition,
    grid: TileGrid,
    routing: int,
    collection: str,
    now: datetime,
    max_area_km2: float = HALF_EARTH_KM2,
) -> PreparedPage:
    """Parse, repair and place a page's members; one version served twice counts once.

    ``collection`` serves Items that name none. ``now`` tells a scene of the future, and
    ``max_area_km2`` a footprint that cannot be the Collection's.
    """
    parsed = parse_and_repair(items, default_collection=collection, max_area_km2=max_area_km2)
    if len(parsed.scenes) + len(parsed.rejected) != len(items):
        raise DataError(
            f"{len(items)} Items came to {len(parsed.scenes)} scenes and "
            f"{len(parsed.rejected)} rejections: one has no outcome",
            next_step="this is a fault of this program; the page is not promoted",
        )
    tiles = place_footprints(parsed.footprints, grid)
    landings: dict[tuple[ItemId, str], Landing] = {}
    unusable: dict[tuple[ItemId, str], Unusable] = {}
    for index, scene in enumerate(parsed.scenes):
        found = _find_ingest_fault(scene, now)
        if found:
            _add(unusable, _refuse(json.loads(scene.item), *found, collection))
            continue
        inside = has_day(definition, scene.acq_date)
        landing = Landing(scene, tiles[index] if inside else (), _format_twin(scene))
        landings.setdefault((landing.item, scene.digest), landing)
    for rejection in parsed.rejected:
        _add(unusable, _refuse(rejection.item, rejection.reason, rejection.text, collection))
    for text in foreign:
        _add(unusable, _refuse(text, "not an Item", "it is not a JSON object", collection))
    return PreparedPage(
        landings=tuple(landings.values()), unusable=tuple(unusable.values()), routing=routing
    )


def place_footprints(footprints: Any, grid: TileGrid) -> list[tuple[str, ...]]:
    """The tiles that each repaired lon/lat footprint falls into, in declared order."""
    tiles: list[list[str]] = [[] for _ in range(len(footprints))]
    if len(footprints):
        for footprint, tile in zip(*grid.tiles_for(footprints), strict=True):
            tiles[footprint].append(grid.keys[tile])
    return [tuple(each) for each in tiles]


def has_day(definition: SceneDefinition, day: date) -> bool:
    """Whether ``definition`` has partitions of this day, now or later."""
    return definition.start <= day and (definition.end is None or day < definition.end)


def _find_ingest_fault(scene: Scene, now: datetime) -> tuple[str, str] | None:
    """What only ingest can see: the clock, and what the database's keys can carry."""
    if scene.acquired_at > now + FUTURE_TOLERANCE:
        return "in the future", f"acquired at {scene.acquired_at.isoformat()}"
    if not (_is_storable(scene.item_id) and _is_storable(scene.collection)):
        return "id not storable", "id or collection is too long, or has control characters"
    return None


def _is_storable(text: str) -> bool:
    return len(text) <= MAX_ID_CHARS and text.isprintable()


def _refuse(member: Any, reason: str, explanation: str, collection: str) -> Unusable:
    # Escaped ASCII: NUL and lone surrogates, which a database refuses, stay readable.
    text = member if isinstance(member, str) else json.dumps(member, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    fields = member if isinstance(member, Mapping) else {}
    item_id = fields.get("id")
    named = fields.get("collection")
    return Unusable(
        item=(
            named if isinstance(named, str) and named and _is_storable(named) else collection,
            item_id
            if isinstance(item_id, str) and item_id and _is_storable(item_id)
            else f"sha256:{digest}",
        ),
        digest=digest,
        reason=reason,
        explanation=explanation,
        text=text if text.isascii() else json.dumps(text)[1:-1],
    )


def _add(unusable: dict[tuple[ItemId, str], Unusable], each: Unusable) -> None:
    unusable.setdefault((each.item, each.digest), each)


def _format_twin(scene: Scene) -> str | None:
    twin = twin_key(scene)
    return None if twin is None else "|".join((*twin[:-1], twin[-1].isoformat()))
