"""Polygons on the cylinder: what a ring means at ±180° and round a pole, cut to [-180, 180].

A ring is a closed path on the cylinder of longitudes. Followed along the shorter way between its
vertices, it either comes back to its start (and bounds a region somewhere) or has gone round a
pole. That depends on the steps between vertices alone, so winding, start vertex and a shift by
360° change nothing. Lines are straight in lon/lat (RFC 7946, section 3.1.1).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import shapely

from scene_pipeline.scenes.polygons import keep_polygons, make_valid

__all__ = ["WrapRepair", "wrap_polygons"]

WrapRepair = Literal[
    "closed over pole", "split at antimeridian", "longitudes wrapped", "made valid"
]


def wrap_polygons(shapes: Any) -> tuple[Any, list[tuple[WrapRepair, ...]]]:
    """Polygons or MultiPolygons (array) within [-180, 180], and what that took for each.

    What needs nothing comes back as it is: a footprint that is split already, or a band round the
    world.
    """
    parts, owner = shapely.get_parts(shapes, return_index=True)
    rings, part = shapely.get_rings(parts, return_index=True)
    regions, ring_repairs = _wrap_rings(rings)

    shells = np.flatnonzero(np.diff(part, prepend=-1))
    holes = np.setdiff1d(np.arange(len(rings)), shells)
    wrapped = regions[shells]
    for index in np.unique(part[holes]):
        voids = regions[holes[part[holes] == index]]
        wrapped[index] = shapely.difference(wrapped[index], shapely.union_all(voids))

    repairs: list[dict[WrapRepair, None]] = [{} for _ in shapes]
    for index, names in zip(owner[part], ring_repairs, strict=True):
        repairs[index].update(dict.fromkeys(names))
    result = np.array(shapes, dtype=object)
    first = np.searchsorted(owner, np.arange(len(shapes) + 1))
    changed = [index for index, found in enumerate(repairs) if found]
    for index in changed:
        pieces = wrapped[first[index] : first[index + 1]]
        alone = len(pieces) == 1
        result[index] = pieces[0] if alone else keep_polygons(shapely.union_all(pieces))
    # Unrolling adds and takes whole turns, which rounds the last digit at the edge.
    result[changed] = shapely.transform(result[changed], _clamp)
    return result, [tuple(found) for found in repairs]


def _clamp(xy: Any) -> Any:
    return np.column_stack([np.clip(xy[:, 0], -180, 180), xy[:, 1]])


def _wrap_rings(rings: Any) -> tuple[Any, list[list[WrapRepair]]]:
    """The region inside each ring, in [-180, 180], and what that took."""
    xy, ring = shapely.get_coordinates(rings, return_index=True)
    first = np.flatnonzero(np.diff(ring, prepend=-1))
    last = np.append(first[1:], len(xy)) - 1
    steps = np.where(np.diff(ring) == 0, np.diff(xy[:, 0]), 0.0)
    # Whole turns to add to each vertex, so that every step goes the shorter way.
    turns = np.concatenate([[0.0], np.cumsum(-np.round(steps / 360))])
    turns -= turns[first][ring]
    unrolled = np.column_stack([xy[:, 0] + 360 * turns, xy[:, 1]])
    paths = np.split(unrolled, first[1:])
    literal = _are_literal(rings, paths, np.abs(steps), ring[:-1])
    turns[literal[ring]] = 0
    unrolled[literal[ring]] = xy[literal[ring]]

    regions: Any = shapely.polygons(shapely.linearrings(unrolled, indices=ring))
    polar = turns[last] != 0
    for index in np.flatnonzero(polar):
        regions[index] = shapely.polygons(_close_over_pole(paths[index]))
    broken = ~shapely.is_valid(regions)
    regions[broken] = make_valid(regions[broken])

    turned: Any = np.bincount(ring, weights=turns != 0, minlength=len(rings)) > 0
    regions, folded, split = _fold(regions, polar)
    repairs: list[list[WrapRepair]] = [[] for _ in rings]
    for index in np.flatnonzero(turned | folded):
        if polar[index]:
            repairs[index].append("closed over pole")
        else:
            repairs[index].append("split at antimeridian" if split[index] else "longitudes wrapped")
        if broken[index]:
            repairs[index].append("made valid")
    return regions, repairs


def _are_literal(rings: Any, paths: list[Any], lengths: Any, ring: Any) -> Any:
    """Whether the longitudes mean what they say, instead of the shorter way between vertices.

    A step of more than half a turn crosses the antimeridian. A step of a whole turn is either a
    parallel from end to end (a band, a closed cap) or no step at all (+180 written as -180).
    """
    across = (lengths > 180) & (lengths < 360)
    literal = np.bincount(ring, weights=across, minlength=len(rings)) == 0
    whole = np.bincount(ring, weights=lengths >= 360, minlength=len(rings)) > 0
    for index in np.flatnonzero(literal & whole):
        path = paths[index]
        if path[0, 0] == path[-1, 0]:
            literal[index] = shapely.area(shapely.polygons(path)) == 0
        else:
            literal[index] = shapely.area(shapely.polygons(rings[index])) > 0
    return literal


def _close_over_pole(path: Any) -> Any:
    """``path``, which advances by whole turns, closed over the pole that encloses less area.

    The area north of it is the integral of (1 - sin lat) over the longitude.
    """
    sines = np.sin(np.radians(path[:, 1]))
    advance = path[-1, 0] - path[0, 0]
    balance = np.sum(np.diff(path[:, 0]) * (sines[:-1] + sines[1:])) * np.sign(advance)
    pole = 90.0 if balance >= 0 else -90.0
    return np.concatenate([path, [(path[-1, 0], pole), (path[0, 0], pole)], path[:1]])


def _fold(regions: Any, polar: Any) -> tuple[Any, Any, Any]:
    """Regions of any longitudes brought into [-180, 180]; which were outside, which were cut."""
    west, _, east, _ = shapely.bounds(regions).T
    empty = shapely.is_empty(regions)
    low = np.where(empty, 0, np.floor((west + 180) / 360)).astype(int)
    high = np.where(empty, 0, np.ceil((east + 180) / 360) - 1).astype(int)
    outside = (low != 0) | (high != 0)
    pieces: list[Any] = []
    owners: list[Any] = []
    for turn in range(low.min(initial=0), high.max(initial=0) + 1):
        here = np.flatnonzero(outside & (low <= turn) & (turn <= high))
        # No edge of the result is longer than half a turn, so reading it again changes nothing.
        cut = shapely.intersection(
            shapely.segmentize(regions[here], 90),
            shapely.box(360 * turn - 180, -90, 360 * turn + 180, 90),
        )
        parts, part = shapely.get_parts(_shift(cut, -360 * turn), return_index=True)
        solid = shapely.area(parts) > 0
        pieces.append(parts[solid])
        owners.append(here[part[solid]])
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    found, position = np.unique(owner[order], return_inverse=True)
    result = regions.copy()
    result[found] = shapely.multipolygons(np.concatenate(pieces)[order], indices=position)
    # Only a region that is a whole turn wide meets itself.
    for index in np.flatnonzero(outside & (polar | (east - west > 360))):
        result[index] = keep_polygons(shapely.union_all(shapely.get_parts(result[index])))
    return result, outside, high > low


def _shift(shapes: Any, degrees: float) -> Any:
    return shapely.transform(shapes, lambda xy: xy + np.array([degrees, 0.0]))
