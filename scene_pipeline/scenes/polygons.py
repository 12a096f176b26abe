"""Arrays of polygons: parts, validity, one type. Pure shapely, no CRS."""

from __future__ import annotations

from typing import Any

import numpy as np
import shapely

__all__ = ["keep_polygons", "make_valid", "to_multipolygons"]

_POLYGON, _MULTIPOLYGON, _COLLECTION = 3, 6, 7


def make_valid(geometry: Any) -> Any:
    """Valid polygons that cover what the rings enclose; both halves of a bow-tie are kept."""
    return shapely.make_valid(geometry, method="structure", keep_collapsed=False)


def keep_polygons(geometry: Any) -> Any:
    """The polygon parts of one geometry that have an area; an empty MultiPolygon where none."""
    parts = shapely.get_parts(geometry)
    while np.any(shapely.get_type_id(parts) >= _MULTIPOLYGON):
        parts = shapely.get_parts(parts)
    solid = parts[(shapely.get_type_id(parts) == _POLYGON) & (shapely.area(parts) > 0)]
    return shapely.multipolygons(solid)


def to_multipolygons(geometries: Any) -> Any:
    """A MultiPolygon for each Polygon or MultiPolygon, None for None and for no area.

    Empty parts and parts without an area are dropped; valid input stays valid.
    """
    parts, index = shapely.get_parts(geometries, return_index=True)
    solid = shapely.area(parts) > 0
    parts, index = parts[solid], index[solid]
    result = np.full(len(geometries), None, dtype=object)
    if len(parts):
        owners, positions = np.unique(index, return_inverse=True)
        result[owners] = shapely.multipolygons(parts, indices=positions)
    return result
