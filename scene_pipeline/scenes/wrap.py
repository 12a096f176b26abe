"""Polygons on the cylinder: what a ring means at ±180° and round a pole, cut to [-180, 180].

A ring is a closed path on the cylinder of longitudes. Read along the shorter way, its longitudes
either return to their start (a bounded region, somewhere) or advance by a whole turn (it goes
round a pole). Both readings depend on steps between vertices alone, so winding, start vertex and
a shift by 360° change nothing. Lines are straight in lon/lat (RFC 7946, section 3.1.1).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import shapely

from scene_pipeline.scenes.polygons import keep_polygons, make_valid

__all__ = ["WrapRepair", "wrap_polygons"]

WrapRepair = Literal["split at antimeridian", "closed over pole", "longitudes wrapped"]


def wrap_polygons(geometry: Any) -> tuple[Any, tuple[WrapRepair, ...]]:
    """The Polygon or MultiPolygon within [-180, 180], and what that took.

    Nothing to do gives the same object back: a footprint that is split already, or a band round
    the world, stays as published.
    """
    found: list[WrapRepair] = []
    wrapped = []
    for polygon in shapely.get_parts(geometry):
        shell, repairs = _wrap_ring(shapely.get_exterior_ring(polygon))
        found += repairs
        holes = []
        for ring in shapely.get_rings(polygon)[1:]:
            hole, repairs = _wrap_ring(ring)
            holes.append(hole)
            found += repairs
        wrapped.append(shapely.difference(shell, shapely.union_all(holes)) if holes else shell)
    if not found:
        return geometry, ()
    return keep_polygons(shapely.union_all(wrapped)), tuple(dict.fromkeys(found))


def _wrap_ring(ring: Any) -> tuple[Any, list[WrapRepair]]:
    """The region inside one ring, in [-180, 180]."""
    lon, lat = shapely.get_coordinates(ring).T
    steps = np.diff(lon)
    shorter = steps - 360 * np.round(steps / 360)
    turns = round(shorter.sum() / 360)
    repairs: list[WrapRepair] = []
    if _is_literal(ring, lat, steps, shorter, turns=turns):
        region = shapely.polygons(ring)
    else:
        unrolled = lon[0] + np.concatenate([[0.0], np.cumsum(shorter)])
        path = np.column_stack([unrolled, lat])
        if turns:
            repairs.append("closed over pole")
            path = np.concatenate([path, _over_pole(path, lat, shorter)])
        region = shapely.polygons(path)
    if not shapely.is_valid(region):
        region = make_valid(region)
    west, _, east, _ = shapely.bounds(region)
    if math.isnan(west):
        return region, repairs
    first, last = math.floor((west + 180) / 360), math.ceil((east + 180) / 360) - 1
    if first == last == 0:
        if shapely.bounds(ring)[[0, 2]].tolist() != [west, east] and not repairs:
            repairs.append("longitudes wrapped")
        return region, repairs
    repairs.append("split at antimeridian" if last > first else "longitudes wrapped")
    # No edge of the result is longer than half a turn, so reading it again changes nothing.
    region = shapely.segmentize(region, 90)
    strips = [_take_strip(region, turn) for turn in range(first, last + 1)]
    return keep_polygons(shapely.union_all(strips)), repairs


def _take_strip(region: Any, turn: int) -> Any:
    """The part of ``region`` in one turn of the cylinder, brought back to [-180, 180]."""
    strip = shapely.box(360 * turn - 180, -90, 360 * turn + 180, 90)
    return shapely.transform(shapely.intersection(region, strip), lambda xy: xy - (360 * turn, 0))


def _is_literal(ring: Any, lat: Any, steps: Any, shorter: Any, *, turns: int) -> bool:
    """Whether the longitudes mean what they say, instead of the shorter way between vertices.

    A step of more than half a turn crosses the antimeridian. A step of one whole turn is either a
    parallel from end to end (a band, a closed cap) or no step at all (+180 written as -180).
    """
    lengths = np.abs(steps)
    if np.any((lengths > 180) & (lengths < 360)):
        return False
    if not np.any(lengths >= 360):
        return True
    if turns:
        return bool(shapely.area(shapely.polygons(ring)) > 0)
    width = np.concatenate([[0.0], np.cumsum(shorter)])
    return bool(shapely.area(shapely.polygons(np.column_stack([width, lat]))) == 0)


def _over_pole(path: Any, lat: Any, shorter: Any) -> Any:
    """Vertices that close ``path`` over the nearer pole: the one that encloses less area.

    The area north of the path is the integral of (1 - sin lat) over the longitude.
    """
    sines = np.sin(np.radians(lat))
    balance = np.sum(shorter * (sines[:-1] + sines[1:])) * np.sign(shorter.sum())
    pole = 90.0 if balance >= 0 else -90.0
    back = np.linspace(path[-1, 0], path[0, 0], 5)
    return np.concatenate([np.column_stack([back, np.full(5, pole)]), path[:1]])
