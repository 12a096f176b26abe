"""The fields of a scene, from wherever the versions of STAC keep them.

Items of STAC 0.7 to 1.1 are met in the wild. What differs between them and matters here is where
a field stands: the tables below list the names of each column, newest first.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from scene_pipeline.errors import SceneRejectedError
from scene_pipeline.scenes.footprint import FootprintFault

__all__ = ["Rejection", "parse_fields", "parse_instant", "reject_item"]

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


def parse_fields(item: Any, default_collection: str) -> dict[str, Any]:
    """Every field of `item.Scene` but the geometry; raises `SceneRejectedError`."""
    if not isinstance(item, dict) or not isinstance(item.get("properties"), dict):
        raise reject_item("not an Item", "an Item is a JSON object that has properties", item)
    properties = dict(item["properties"])
    item_id = item.get("id")
    if not isinstance(item_id, str) or not item_id:
        raise reject_item("id missing", f"id is {item_id!r}", item)
    collection = item.get("collection") or properties.pop("collection", None) or default_collection
    if not isinstance(collection, str) or not collection:
        raise reject_item("collection missing", f"collection is {collection!r}", item)

    fields: dict[str, Any] = {"item_id": item_id, "collection": collection}
    instants = {name: _take_instant(properties, source, item) for name, source in _INSTANTS.items()}
    acquired_at = _take_instant(properties, "datetime", item) or instants["start_at"]
    if acquired_at is None:
        raise reject_item("datetime missing", "neither datetime nor start_datetime is set", item)
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


def reject_item(reason: Rejection, text: str, item: Any) -> SceneRejectedError:
    """The error to raise for an Item that cannot become a scene."""
    name = item.get("id") if isinstance(item, dict) else None
    return SceneRejectedError(text, reason=reason, where=f"Item {name!r}")


def _dump(value: Any, item: Any) -> str:
    """Canonical JSON that every store takes: keys sorted, no NaN, no NUL, no lone surrogate."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError:
        text = _dump_odd(value, item)
    if "\\u0000" in text and any("\0" in part for part in _iter_texts(value)):
        raise reject_item("text not storable", "a NUL character, which databases refuse", item)
    return text


def _dump_odd(value: Any, item: Any) -> str:
    """The same, of whole numbers beyond 64 bits; says what else cannot be stored."""
    try:
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise reject_item("text not storable", f"not storable as JSON: {error}", item) from None
    return text


def _iter_texts(value: Any) -> Iterator[str]:
    """Every string of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
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
        raise reject_item("time unparsable", f"{name} is {value!r}", item) from None


_ABSENT = object()


def _take(properties: dict[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
    """The first of ``names`` that is set leaves ``properties``, nulls too; the others stay."""
    for name in names:
        if (value := properties.pop(name, None)) is not None:
            break
    else:
        return names[0], None
    for other in names:
        if properties.get(other, _ABSENT) is None:
            del properties[other]
    return name, value


def _take_text(properties: dict[str, Any], names: tuple[str, ...], item: Any) -> str | None:
    name, value = _take(properties, names)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # versions are written as numbers too
    raise reject_item("property type", f"{name} is {value!r}, not text", item)


def _take_number(properties: dict[str, Any], names: tuple[str, ...], item: Any) -> float | None:
    name, value = _take(properties, names)
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise reject_item("property type", f"{name} is {value!r}, not a finite number", item)


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
    entries = links.values() if isinstance(links, dict) else links
    for link in entries if isinstance(entries, Iterable) else ():
        if isinstance(link, dict) and link.get("rel") == "self":
            href = link.get("href")
            return href if isinstance(href, str) else None
    return None


def _find_asset_hrefs(item: Mapping[str, Any]) -> dict[str, str]:
    assets = item.get("assets")
    if not isinstance(assets, dict):
        return {}
    return {
        name: asset["href"]
        for name, asset in assets.items()
        if isinstance(asset, dict) and isinstance(asset.get("href"), str)
    }
