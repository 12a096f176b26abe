"""One STAC Item to one scene, or a rejection with its reason; never half a scene."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from operator import attrgetter
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import shapely

from scene_pipeline.errors import SceneRejectedError
from scene_pipeline.scenes.footprint import repair_footprints
from scene_pipeline.scenes.item_fields import (
    Rejection,
    parse_fields,
    parse_instant,
    reject_item,
)
from scene_pipeline.scenes.schema import RAW_COLUMNS, arrow_schema

__all__ = [
    "Parsed",
    "RejectedItem",
    "Rejection",
    "Scene",
    "parse_and_repair",
    "parse_instant",
    "parse_item",
    "scenes_to_table",
]

# Half of the Earth, on the sphere: a ring that encloses more was closed over the wrong side.
HALF_EARTH_KM2 = 255e6


@dataclass(frozen=True, slots=True)
class Scene:
    """One validated Item: a row of `schema.RAW_COLUMNS`, with the footprint as published.

    ``geometry`` is lon/lat (OGC:CRS84), not repaired, Z kept. Instants are aware UTC, floored to
    microseconds. ``item`` is the whole Item as canonical JSON (sorted keys), ``digest`` its sha256.
    """

    acq_date: date
    collection: str
    item_id: str
    acquired_at: datetime
    start_at: datetime | None
    end_at: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    platform: str | None
    constellation: str | None
    grid_code: str | None
    gsd_m: float | None
    cloud_cover_pct: float | None
    sun_elevation_deg: float | None
    off_nadir_deg: float | None
    processing_baseline: str | None
    item_href: str | None
    properties: str
    digest: str
    item: str
    geometry: Any


@dataclass(frozen=True, slots=True)
class RejectedItem:
    """An Item that cannot become a scene: the whole Item, the reason code and a text."""

    item: Any
    reason: Rejection
    text: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A page's outcome: every Item is in ``scenes`` or in ``rejected``, in the page's order.

    ``footprints[i]`` (a repaired lon/lat MultiPolygon) and ``repairs[i]`` belong to ``scenes[i]``.
    """

    scenes: list[Scene]
    footprints: Any
    repairs: list[tuple[str, ...]]
    rejected: list[RejectedItem]


def parse_item(item: Mapping[str, Any], *, default_collection: str = "") -> Scene:
    """Parse one Item; its footprint is read, not repaired.

    ``default_collection`` serves Items that name none (static catalogs of STAC 0.x). Raises
    `SceneRejectedError` whose ``reason`` is a `Rejection`.
    """
    fields = parse_fields(item, default_collection)
    geometry = _parse_geometries([item])[0]
    if isinstance(geometry, SceneRejectedError):
        raise geometry
    return Scene(**fields, geometry=geometry)


def parse_and_repair(
    items: Iterable[Any], *, default_collection: str = "", max_area_km2: float = HALF_EARTH_KM2
) -> Parsed:
    """Parse a page of Items and repair their footprints in one vectorised pass.

    ``max_area_km2`` is the Collection's bound: a larger footprint is rejected (a ring closed
    over the wrong pole, a box round the whole world).
    """
    rejected: dict[int, RejectedItem] = {}
    read: list[tuple[int, Any, dict[str, Any]]] = []

    def reject(position: int, item: Any, error: SceneRejectedError) -> None:
        rejected[position] = RejectedItem(item, error.reason, error.what)  # type: ignore[arg-type]

    for position, item in enumerate(items):
        try:
            read.append((position, item, parse_fields(item, default_collection)))
        except SceneRejectedError as error:
            reject(position, item, error)

    geometries = _parse_geometries([item for _, item, _ in read])
    whole = []
    for (position, item, fields), geometry in zip(read, geometries, strict=True):
        if isinstance(geometry, SceneRejectedError):
            reject(position, item, geometry)
        else:
            whole.append((position, item, Scene(**fields, geometry=geometry)))

    shapes = np.empty(len(whole), dtype=object)
    shapes[:] = [scene.geometry for _, _, scene in whole]
    repaired = repair_footprints(shapes, max_area_km2=max_area_km2)
    for (position, item, _), reason in zip(whole, repaired.reasons, strict=True):
        if reason is not None:
            rejected[position] = RejectedItem(item, reason, f"footprint: {reason}")
    good = [index for index, reason in enumerate(repaired.reasons) if reason is None]
    return Parsed(
        scenes=[whole[index][2] for index in good],
        footprints=repaired.geometry[good],
        repairs=[repaired.repairs[index] for index in good],
        rejected=[rejected[position] for position in sorted(rejected)],
    )


def scenes_to_table(scenes: Sequence[Scene]) -> pa.Table:
    """The scenes as a table in `RAW_COLUMNS`, sorted by (acq_date, collection, item_id)."""
    if not scenes:
        return arrow_schema(RAW_COLUMNS).empty_table()
    ordered = sorted(scenes, key=attrgetter("acq_date", "collection", "item_id"))
    columns = zip(*map(attrgetter(*(c.name for c in RAW_COLUMNS)), ordered), strict=True)
    arrays = [
        pa.array(shapely.to_wkb(values) if column.name == "geometry" else values, column.type)
        for column, values in zip(RAW_COLUMNS, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(RAW_COLUMNS))


def _parse_geometries(items: Sequence[Mapping[str, Any]]) -> list[Any]:
    """One shapely geometry, or the rejection, for each Item."""
    texts = [_dump_geometry(item.get("geometry")) for item in items]
    shapes = shapely.from_geojson(texts, on_invalid="ignore")
    return [
        shape if shape is not None else _reject_geometry(item)
        for item, shape in zip(items, shapes, strict=True)
    ]


def _dump_geometry(geometry: Any) -> bytes:
    try:
        return orjson.dumps(geometry, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:
        return b""  # no GeoJSON holds a number beyond 64 bits


def _reject_geometry(item: Mapping[str, Any]) -> SceneRejectedError:
    if item.get("geometry") is None:
        return reject_item("geometry null", "the Item has no geometry", item)
    return reject_item("geometry unparsable", "geometry is not GeoJSON", item)
