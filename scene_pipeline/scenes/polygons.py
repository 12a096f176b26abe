"""Arrays of polygons: validity, parts, one type. Pure shapely, no CRS."""

from __future__ import annotations

from typing import Any

import numpy as np
import shapely

__all__ = [
    "COLLECTION",
    "MULTIPOLYGON",
    "POLYGON",
    "are_convex",
    "are_valid",
    "build_multipolygons",
    "keep_polygons",
    "make_valid",
    "to_multipolygons",
]

POLYGON, MULTIPOLYGON, COLLECTION = 3, 6, 7


def are_convex(xy: Any, owner: Any, count: int) -> Any:
    """Which of ``count`` shapes are one strictly convex ring, hence valid without asking GEOS.

    ``xy`` and ``owner`` are their coordinates and index (`shapely.get_coordinates`). A closed
    path whose turns all go one way, in one revolution, cannot meet itself. The difference of two
    doubles is right to its last place, so a turn far above rounding has its true sign.
    """
    convex = np.zeros(count, dtype=bool)
    if len(xy) == 0:
        return convex
    x, y = np.ascontiguousarray(xy.T)
    first = np.concatenate([[0], np.flatnonzero(owner[1:] != owner[:-1]) + 1])
    last = np.append(first[1:], len(x)) - 1
    dx, dy = np.diff(x, append=0), np.diff(y, append=0)
    dx[last], dy[last] = dx[first], dy[first]
    # The turn at each vertex; a shape's last vertex is its first, so that one stands in for it.
    forward, backward = dx[:-1] * dy[1:], dy[:-1] * dx[1:]
    turn, doubt = np.empty_like(x), np.empty_like(x)
    turn[1:], doubt[1:] = forward - backward, 1e-9 * (np.abs(forward) + np.abs(backward))
    turn[first], doubt[first] = turn[last], doubt[last]
    left, right = turn > doubt, turn < -doubt
    steady = np.logical_and.reduceat(left, first) | np.logical_and.reduceat(right, first)
    # A steady turn enters the half-plane of eastward directions once in each revolution.
    east = dx >= 0
    entered = np.zeros(len(x), dtype=np.intp)
    entered[1:] = east[1:] & ~east[:-1]
    entered[first] = 0
    once = np.add.reduceat(entered, first) == 1
    closed = (x[first] == x[last]) & (y[first] == y[last])
    convex[owner[first[steady & once & closed]]] = True
    return convex


def are_valid(shapes: Any, xy: Any, owner: Any) -> Any:
    """As `shapely.is_valid`; ``xy`` and ``owner`` are the shapes' coordinates and index."""
    valid = are_convex(xy, owner, len(shapes))
    valid[~valid] = shapely.is_valid(shapes[~valid])
    return valid


def build_multipolygons(xy: Any, owner: Any) -> Any:
    """MultiPolygons of one ring each, from the rings' coordinates and index, in its order."""
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    count = np.arange(len(first) + 1)
    rings = np.append(first, len(xy))
    return shapely.from_ragged_array(shapely.GeometryType.MULTIPOLYGON, xy, (rings, count, count))


def make_valid(shapes: Any) -> Any:
    """Valid MultiPolygons that cover what the rings enclose; both halves of a bow-tie are kept."""
    mended = shapely.make_valid(shapes, method="structure", keep_collapsed=False)
    # GEOS leaves parts that share an edge where a ring runs along itself; their union is valid.
    sharing = ~shapely.is_valid(mended)
    mended[sharing] = [shapely.union_all(shapely.get_parts(shape)) for shape in mended[sharing]]
    return np.array([keep_polygons(shape) for shape in mended], dtype=object)


def keep_polygons(shape: Any) -> Any:
    """The polygons of one geometry that have an area, as a MultiPolygon (empty where none)."""
    parts = shapely.get_parts(shape)
    while np.any(shapely.get_type_id(parts) >= MULTIPOLYGON):
        parts = shapely.get_parts(parts)
    solid = (shapely.get_type_id(parts) == POLYGON) & (shapely.area(parts) > 0)
    return shapely.multipolygons(parts[solid])


def to_multipolygons(shapes: Any) -> Any:
    """Polygons and MultiPolygons (array) as MultiPolygons, without parts that have no area.

    None stays None, and what has no area at all becomes None.
    """
    result = np.array(shapes, dtype=object)
    result[~(shapely.area(result) > 0)] = None
    kinds = shapely.get_type_id(result)
    single = np.flatnonzero(kinds == POLYGON)
    if len(single):
        result[single] = shapely.multipolygons(result[single], indices=np.arange(len(single)))
    several = np.flatnonzero(kinds == MULTIPOLYGON)
    parts, owner = shapely.get_parts(result[several], return_index=True)
    for index in several[np.unique(owner[~(shapely.area(parts) > 0)])]:
        result[index] = keep_polygons(result[index])
    return result
