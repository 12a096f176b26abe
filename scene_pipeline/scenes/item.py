"""One STAC Item to one scene, or a rejection with its reason; never half a scene.

Items of STAC 0.7 to 1.1 are met in the wild. What differs between those versions and matters
here is where a field stands: `_FIELDS` lists the names of each column, newest first.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import shapely

from scene_pipeline.errors import SceneRejectedError
from scene_pipeline.scenes.footprint import FootprintFault, repair_footprints
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

Rejection = (
    Literal[
        "not an Item",
        "id missing",
        "collection missing",
        "datetime missing",
        "time unparsable",
        "property type",
        "text not storable",
        "geometry unparsable",
    ]
    | FootprintFault
)

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
    fields = _parse_fields(item, default_collection)
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
            read.append((position, item, _parse_fields(item, default_collection)))
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
    ordered = sorted(scenes, key=lambda scene: (scene.acq_date, scene.collection, scene.item_id))
    arrays = [
        pa.array(
            shapely.to_wkb([scene.geometry for scene in ordered])
            if column.name == "geometry"
            else [getattr(scene, column.name) for scene in ordered],
            type=column.type,
        )
        for column in RAW_COLUMNS
    ]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(RAW_COLUMNS))


# Properties that a column holds, by the names that STAC versions and extensions gave them.
_TEXTS: dict[str, tuple[str, ...]] = {
    "platform": ("platform", "eo:platform"),
    "constellation": ("constellation", "eo:constellation"),
    "processing_baseline": (
        "processing:version",
        "s2:processing_baseline",
        "sentinel:processing_baseline",
    ),
}
_NUMBERS: dict[str, tuple[str, ...]] = {
    "gsd_m": ("gsd", "eo:gsd"),
    "cloud_cover_pct": ("eo:cloud_cover",),
    "sun_elevation_deg": ("view:sun_elevation", "eo:sun_elevation"),
    "off_nadir_deg": ("view:off_nadir", "eo:off_nadir"),
}
_INSTANTS: dict[str, str] = {
    "start_at": "start_datetime",
    "end_at": "end_datetime",
    "created_at": "created",
    "updated_at": "updated",
}


def _parse_fields(item: Any, default_collection: str) -> dict[str, Any]:
    """Every field of `Scene` but the geometry."""
    if not isinstance(item, Mapping) or not isinstance(item.get("properties"), Mapping):
        raise _reject("not an Item", "an Item is a JSON object that has properties", item)
    properties = dict(item["properties"])
    item_id = item.get("id")
    if not isinstance(item_id, str) or not item_id:
        raise _reject("id missing", f"id is {item_id!r}", item)
    collection = item.get("collection") or properties.pop("collection", None) or default_collection
    if not isinstance(collection, str) or not collection:
        raise _reject("collection missing", f"collection is {collection!r}", item)

    fields: dict[str, Any] = {"item_id": item_id, "collection": collection}
    instants = {name: _take_instant(properties, source, item) for name, source in _INSTANTS.items()}
    acquired_at = _take_instant(properties, "datetime", item) or instants["start_at"]
    if acquired_at is None:
        raise _reject("datetime missing", "neither datetime nor start_datetime is set", item)
    fields |= {"acquired_at": acquired_at, "acq_date": acquired_at.date(), **instants}
    fields |= {name: _take_text(properties, names, item) for name, names in _TEXTS.items()}
    fields |= {name: _take_number(properties, names, item) for name, names in _NUMBERS.items()}
    fields["grid_code"] = _find_grid_code(properties)
    fields["item_href"] = _find_self_href(item)
    properties["assets"] = _find_asset_hrefs(item)
    fields["properties"] = _dump(properties, item)
    fields["item"] = _dump(item, item)
    fields["digest"] = hashlib.sha256(fields["item"].encode()).hexdigest()
    return fields


def _reject(reason: Rejection, text: str, item: Any) -> SceneRejectedError:
    name = item.get("id") if isinstance(item, Mapping) else None
    return SceneRejectedError(text, reason=reason, where=f"Item {name!r}")


def _dump(value: Any, item: Any) -> str:
    """Canonical JSON that every store takes: no NaN, no NUL, no lone surrogate."""
    try:
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        text.encode()
    except (TypeError, ValueError) as error:
        raise _reject("text not storable", f"not JSON that can be stored: {error}", item) from None
    if "\\u0000" in text and any("\0" in part for part in _iter_texts(value)):
        raise _reject("text not storable", "a NUL character, which databases refuse", item)
    return text


def _iter_texts(value: Any) -> Iterator[str]:
    """Every string of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield name
            yield from _iter_texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _iter_texts(part)


_CLOCK = re.compile(r"[T ](\d{2}:\d{2}):60(\.\d+)?")


def parse_instant(text: str) -> datetime:
    """An ISO 8601 date or time to aware UTC, floored to microseconds.

    Without an offset it is UTC (STAC: RFC 3339, section 5.6, in UTC). A leap second becomes the
    last microsecond before the next minute. Raises ValueError.
    """
    text = _CLOCK.sub(r"T\1:59.999999", text.strip())
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        return instant.replace(tzinfo=UTC)
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def _take_instant(properties: dict[str, Any], name: str, item: Any) -> datetime | None:
    value = properties.pop(name, None)
    if value is None:
        return None
    try:
        return parse_instant(value)
    except (AttributeError, TypeError, ValueError):
        raise _reject("time unparsable", f"{name} is {value!r}", item) from None


def _take(properties: dict[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
    """The first of ``names`` that is set; it leaves ``properties``, the others stay."""
    for name in names:
        if properties.get(name) is not None:
            return name, properties.pop(name)
    for name in names:
        properties.pop(name, None)
    return names[0], None


def _take_text(properties: dict[str, Any], names: tuple[str, ...], item: Any) -> str | None:
    name, value = _take(properties, names)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # versions are written as numbers too
    raise _reject("property type", f"{name} is {value!r}, not text", item)


def _take_number(properties: dict[str, Any], names: tuple[str, ...], item: Any) -> float | None:
    name, value = _take(properties, names)
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise _reject("property type", f"{name} is {value!r}, not a finite number", item)


def _find_grid_code(properties: Mapping[str, Any]) -> str | None:
    """`grid:code`, or the MGRS or WRS fields that came before it, in the grid extension's form."""

    def first(*names: str) -> Any:
        return next((properties[name] for name in names if properties.get(name) is not None), None)

    code = first("grid:code")
    if isinstance(code, str):
        return code
    tile = first("s2:mgrs_tile")
    if isinstance(tile, str):
        return f"MGRS-{tile}"
    mgrs = [
        first(f"mgrs:{part}", f"sentinel:{part}")
        for part in ("utm_zone", "latitude_band", "grid_square")
    ]
    if None not in mgrs:
        return "MGRS-{}{}{}".format(*mgrs)
    path, row = first("landsat:wrs_path", "eo:column"), first("landsat:wrs_row", "eo:row")
    try:
        wrs = f"{int(path):03d}{int(row):03d}"
    except (TypeError, ValueError):
        return None
    return f"WRS{first('landsat:wrs_type') or 2}-{wrs}"


def _find_self_href(item: Mapping[str, Any]) -> str | None:
    links = item.get("links")
    # STAC 0.4 to 0.5 kept links as an object by relation.
    entries = links.values() if isinstance(links, Mapping) else links
    for link in entries if isinstance(entries, Iterable) else ():
        if isinstance(link, Mapping) and link.get("rel") == "self":
            href = link.get("href")
            return href if isinstance(href, str) else None
    return None


def _find_asset_hrefs(item: Mapping[str, Any]) -> dict[str, str]:
    assets = item.get("assets")
    if not isinstance(assets, Mapping):
        return {}
    return {
        name: asset["href"]
        for name, asset in assets.items()
        if isinstance(asset, Mapping) and isinstance(asset.get("href"), str)
    }


def _parse_geometries(items: Sequence[Mapping[str, Any]]) -> list[Any]:
    """One shapely geometry, or the rejection, for each Item."""
    texts = [json.dumps(item.get("geometry")) for item in items]
    shapes = shapely.from_geojson(texts, on_invalid="ignore")
    return [
        shape if shape is not None else _reject_geometry(item)
        for item, shape in zip(items, shapes, strict=True)
    ]


def _reject_geometry(item: Mapping[str, Any]) -> SceneRejectedError:
    if item.get("geometry") is None:
        return _reject("geometry null", "the Item has no geometry", item)
    return _reject("geometry unparsable", "geometry is not GeoJSON", item)
