"""The tile grid: which tiles exist, where they are, which of them a footprint falls into."""

from __future__ import annotations

import json
import math
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import shapely

from scene_pipeline.errors import InvalidKeyError, SettingsError
from scene_pipeline.scenes import mercator
from scene_pipeline.scenes.footprint import cut_to_boxes, project_footprints, repair_footprints
from scene_pipeline.scenes.mercator import MAX_LATITUDE, RADIUS_M

__all__ = ["Area", "TileGrid", "WebMercatorGrid", "project_area", "read_area"]

# (west, south, east, north) in lon/lat degrees; west > east crosses the antimeridian.
Area = tuple[float, float, float, float]


class TileGrid(Protocol):
    """Named tiles that are axis-aligned boxes of EPSG:3857 and do not overlap."""

    @property
    def name(self) -> str:
        """What the tiles are, for the definition's fingerprint."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The tiles' keys, in declared order."""

    def bounds(self, key: str) -> tuple[float, float, float, float]:
        """(xmin, ymin, xmax, ymax) of a tile, EPSG:3857 metres; raises `InvalidKeyError`."""

    def tiles_for(self, footprints: Any) -> tuple[Any, Any]:
        """Pairs (index of the footprint, index of the tile in ``keys``), ordered.

        ``footprints`` is an array of repaired lon/lat MultiPolygons (None falls into no tile). A
        pair stands exactly where the footprint's piece in the tile has an area.
        """


class WebMercatorGrid:
    """Tiles ``z-x-y`` of one zoom of the WebMercatorQuad (OGC 17-083r4, annex D.1) over an area.

    Rows go north to south, columns west to east from the area's west side, also across the
    antimeridian. A tile that only touches the area is left out.
    """

    def __init__(self, zoom: int, area: Area) -> None:
        self.zoom = zoom
        self.area = area
        self.keys: tuple[str, ...] = tuple(
            f"{zoom}-{column}-{row}" for row in self._rows() for column in self._columns()
        )
        self._index = {key: index for index, key in enumerate(self.keys)}

    @property
    def name(self) -> str:
        """The tile matrix set and zoom."""
        return f"WebMercatorQuad/{self.zoom}"

    @property
    def columns(self) -> list[tuple[float, float]]:
        """West and east of each column of tiles, in degrees, from the area's west side."""
        width = 360 / 2**self.zoom
        return [(number * width - 180, (number + 1) * width - 180) for number in self._columns()]

    def _columns(self) -> list[int]:
        west, _, east, _ = self.area
        count = 2**self.zoom
        first = math.floor(_snap((west + 180) / 360 * count))
        span = east + 360 if west > east else east
        last = math.ceil(_snap((span + 180) / 360 * count)) - 1
        # An area that ends in the column in which it began must not name it twice.
        return list(dict.fromkeys(column % count for column in range(first, max(first, last) + 1)))

    def _rows(self) -> range:
        _, south, _, north = self.area
        count = 2**self.zoom
        top, bottom = (
            (0.5 - math.asinh(math.tan(math.radians(_clamp(lat)))) / (2 * math.pi)) * count
            for lat in (north, south)
        )
        first = min(math.floor(_snap(top)), count - 1)
        return range(first, max(first + 1, min(math.ceil(_snap(bottom)), count)))

    def bounds(self, key: str) -> tuple[float, float, float, float]:
        """(xmin, ymin, xmax, ymax) in EPSG:3857 metres."""
        if key not in self._index:
            raise InvalidKeyError(
                f"{key!r} is not a tile of this grid",
                reason="unknown tile",
                next_step=f"tiles are {self.keys[0]} … {self.keys[-1]} ({len(self.keys)})",
            )
        _, column, row = (int(part) for part in key.split("-"))
        return (
            self._edge(column),
            -self._edge(row + 1),
            self._edge(column + 1),
            -self._edge(row),
        )

    def _edge(self, number: int) -> float:
        # As `mercator.project` computes the edge's longitude, so that shared edges are equal.
        return RADIUS_M * math.radians(number * 360 / 2**self.zoom - 180)

    @cached_property
    def _boxes(self) -> Any:
        return shapely.box(*np.array([self.bounds(key) for key in self.keys]).T)

    @cached_property
    def _tree(self) -> Any:
        return shapely.STRtree(self._boxes)

    def tiles_for(self, footprints: Any) -> tuple[Any, Any]:
        """See `TileGrid.tiles_for`."""
        projected = project_footprints(footprints)
        # By parts: the box of a footprint that is split at ±180° spans the whole row of tiles.
        parts, owner = shapely.get_parts(projected, return_index=True)
        part, tile = self._tree.query(parts)
        pairs = np.unique(np.stack([owner[part], tile]), axis=1)
        pieces = cut_to_boxes(projected[pairs[0]], self._boxes[pairs[1]])
        found = pairs[:, ~shapely.is_missing(pieces)]
        return found[0], found[1]


def _snap(position: float) -> float:
    """A position in tiles; within a millionth of an edge it is the edge."""
    nearest = round(position)
    return float(nearest) if abs(position - nearest) < 1e-6 else position


def _clamp(lat: float) -> float:
    return max(-MAX_LATITUDE, min(MAX_LATITUDE, lat))


def project_area(area: Area) -> list[tuple[float, float, float, float]]:
    """The one box of an area in EPSG:3857, or the two of one that crosses the antimeridian."""
    west, south, east, north = area
    spans = [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]
    boxes = []
    for left, right in spans:
        (xmin, ymin), (xmax, ymax) = mercator.project(
            [(left, max(south, -MAX_LATITUDE)), (right, min(north, MAX_LATITUDE))]
        ).tolist()
        boxes.append((xmin, ymin, xmax, ymax))
    return boxes


def read_area(area: Area | Path | str) -> Area:
    """A bbox as it is, or the bounds of a GeoJSON file (west > east across the antimeridian).

    Raises `SettingsError` where the file has no usable polygon.
    """
    if isinstance(area, tuple):
        return area
    path = Path(area)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        shapes = list(_find_geometries(document))
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"cannot read the area: {error}",
            where=str(path),
            next_step="area is (west, south, east, north), or a GeoJSON file of polygons",
        ) from None
    repaired = repair_footprints(shapely.from_geojson(shapes, on_invalid="ignore"))
    parts = shapely.get_parts(repaired.geometry)
    if len(parts) == 0 or any(repaired.reasons):
        raise SettingsError(
            f"not every geometry is a polygon in lon/lat: {[r for r in repaired.reasons if r]}",
            where=str(path),
            next_step="area is (west, south, east, north), or a GeoJSON file of polygons",
        )
    bounds = shapely.bounds(parts)
    west, east = _narrowest_span(bounds[:, 0], bounds[:, 2])
    return (west, float(bounds[:, 1].min()), east, float(bounds[:, 3].max()))


def _find_geometries(document: Any) -> list[str]:
    if not isinstance(document, dict):
        raise ValueError("not a GeoJSON object")
    if document.get("type") == "FeatureCollection":
        return [text for part in document["features"] for text in _find_geometries(part)]
    if document.get("type") == "Feature":
        return _find_geometries(document["geometry"])
    return [json.dumps(document)]


def _narrowest_span(west: Any, east: Any) -> tuple[float, float]:
    """The narrowest (west, east) that holds all spans: everything but the widest gap."""
    order = np.argsort(west)
    west, reach = west[order], np.maximum.accumulate(east[order])
    gaps = np.append(west[1:], west[0] + 360) - reach
    widest = int(np.argmax(gaps))
    if widest == len(gaps) - 1:
        return float(west[0]), float(reach[-1])
    return float(west[widest + 1]), float(reach[widest])
