"""Strategies of footprints: anywhere on the cylinder, of every awkward kind."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

Ring = list[tuple[float, float]]

_UNIT = st.floats(0, 1, allow_nan=False, width=32)


def wrap_longitude(lon: float) -> float:
    """Into [-180, 180)."""
    return (lon + 180) % 360 - 180


@st.composite
def unrolled_rings(draw: st.DrawFn) -> Ring:
    """A star-shaped, closed ring of at most 80 degrees width, its longitudes not yet wrapped."""
    count = draw(st.integers(3, 12))
    lon = draw(st.sampled_from([-180.0, -90.0, 0.0, 179.0, 180.0]) | st.floats(-180, 180))
    lat = draw(st.floats(-80, 80))
    size = draw(st.floats(0.01, 40))
    radii = draw(st.lists(st.floats(0.2, 1), min_size=count, max_size=count))
    turn = draw(_UNIT)
    points = []
    for number, radius in enumerate(radii):
        angle = 2 * math.pi * (number + turn) / count
        x = lon + size * radius * math.cos(angle)
        y = lat + size * radius * math.sin(angle)
        points.append((x, max(-90.0, min(90.0, y))))
    return [*points, points[0]]


@st.composite
def polar_rings(draw: st.DrawFn) -> Ring:
    """A closed ring that goes once round a pole, as published: longitudes in [-180, 180)."""
    steps = draw(st.lists(st.floats(5, 100), min_size=4, max_size=20))
    start = draw(st.floats(-180, 180))
    side = draw(st.sampled_from([1, -1]))
    scale = 360 / sum(steps)
    points, lon = [], start
    for step in steps:
        points.append((wrap_longitude(lon), side * draw(st.floats(20, 89))))
        lon += step * scale
    if max(steps) * scale >= 179:  # such a step has no shorter way
        points = [(wrap_longitude(start + 40 * n), side * 70.0) for n in range(9)]
    return [*points, points[0]]


def published(ring: Ring) -> Ring:
    """The ring with longitudes as providers write them."""
    return [(wrap_longitude(lon), lat) for lon, lat in ring]


def geojson_rings() -> st.SearchStrategy[Ring]:
    """Rings as published: ordinary, across the antimeridian, round a pole."""
    return unrolled_rings().map(published) | polar_rings()


def shuffled_rings() -> st.SearchStrategy[Ring]:
    """Closed rings that cross themselves as they like."""
    point = st.tuples(st.floats(-20, 20, width=32), st.floats(-20, 20, width=32))
    return st.lists(point, min_size=3, max_size=9).map(lambda points: [*points, points[0]])


def rotate(ring: Ring, by: int) -> Ring:
    """The same closed ring from another start vertex."""
    open_ring = ring[:-1]
    by %= len(open_ring)
    turned = open_ring[by:] + open_ring[:by]
    return [*turned, turned[0]]


def as_array(shapes: list[Any]) -> Any:
    """Geometries as the object array that the package takes."""
    import numpy as np

    array = np.empty(len(shapes), dtype=object)
    array[:] = shapes
    return array
