"""STAC Items for tests: made-up ones, and all real ones of the shared folder."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scene_pipeline.scenes.item import Scene, parse_item


def make_ring(west: float, south: float, east: float, north: float) -> list[list[float]]:
    """A closed box, counterclockwise."""
    return [[west, south], [east, south], [east, north], [west, north], [west, south]]


def make_item(item_id: str = "scene", **properties: Any) -> dict[str, Any]:
    """A small valid Item over the Alps; ``properties`` are added, None removes one."""
    fields = {"datetime": "2024-06-01T10:20:30Z", "platform": "sentinel-2a", **properties}
    return {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": item_id,
        "collection": "sentinel-2-l2a",
        "geometry": {"type": "Polygon", "coordinates": [make_ring(6.2, 45.1, 7.3, 46.1)]},
        "bbox": [6.2, 45.1, 7.3, 46.1],
        "properties": fields,
        "links": [{"rel": "self", "href": f"https://stac.example/items/{item_id}"}],
        "assets": {"B04": {"href": f"https://data.example/{item_id}/B04.tif"}},
    }


def make_scene(item_id: str = "scene", **properties: Any) -> Scene:
    """The scene of `make_item`."""
    return parse_item(make_item(item_id, **properties))


def iter_items(path: Path) -> Iterator[dict[str, Any]]:
    """The Items of one ndjson file, plain or gzipped."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def read_real_items(real_data: Path) -> list[dict[str, Any]]:
    """Every Item of the shared folder, file by file."""
    files = sorted((real_data / "items").glob("*.ndjson*"))
    return [item for path in files for item in iter_items(path)]
