"""Footprints: published geometry to valid lon/lat MultiPolygons, then to pieces of tiles.

`repair_footprints` works in lon/lat and is idempotent. `project_footprints` clips to the grid's
latitudes first (EPSG:3857 of latitude 90 is a finite 242,528,680 m, so nothing infinite betrays
it), `cut_to_boxes` makes the pieces. All take and return numpy arrays of shapely geometries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import shapely

from scene_pipeline.scenes import mercator
from scene_pipeline.scenes.polygons import (
    COLLECTION,
    MULTIPOLYGON,
    POLYGON,
    are_convex,
    are_valid,
    build_multipolygons,
    keep_polygons,
    make_valid,
    to_multipolygons,
)
from scene_pipeline.scenes.wrap import WrapRepair, wrap_polygons

__all__ = [
    "FootprintFault",
    "FootprintRepair",
    "Repaired",
    "cut_to_boxes",
    "project_footprints",
    "repair_and_project",
    "repair_footprints",
]

FootprintFault = Literal[
    "geometry null",
    "geometry empty",
    "not polygonal",
    "coordinates not finite",
    "latitude out of range",
    "longitude out of range",
    "no area",
    "area over bound",
]
FootprintRepair = Literal["height dropped", "other parts dropped", "made valid"] | WrapRepair

# Below this a piece is the rounding of an edge that two tiles share.
SLIVER_M2 = 1.0
_MAX_LONGITUDE = 540.0
_KM2_PER_SQUARE_DEGREE = (np.pi / 180 * 6371.0088) ** 2


@dataclass(frozen=True, slots=True)
class Repaired:
    """``geometry[i]``: a valid lon/lat MultiPolygon within [-180, 180] by [-90, 90], or None.

    ``repairs[i]`` names what was mended; ``reasons[i]`` is set exactly where the geometry is None.
    """

    geometry: Any
    repairs: list[tuple[FootprintRepair, ...]]
    reasons: list[FootprintFault | None]


def repair_footprints(geometries: Any, *, max_area_km2: float | None = None) -> Repaired:
    """Repair a whole array of lon/lat geometries; the result of each depends on it alone.

    Drops Z, reads what crosses ±180° or goes round a pole (`wrap_polygons`), makes valid what is
    not, keeps polygons. ``max_area_km2`` rejects larger footprints (sphere of mean radius).
    """
    repaired = _repair(geometries, max_area_km2)
    return replace(repaired, geometry=to_multipolygons(repaired.geometry))


def repair_and_project(geometries: Any) -> Repaired:
    """`repair_footprints`, then `project_footprints`, at a third of their cost.

    Nine footprints in ten are polygons within the grid's square that are convex when projected:
    nothing can be wrong with them, so only the others take the long way.
    """
    shapes = np.array(geometries, dtype=object)
    plain = (shapely.get_type_id(shapes) == POLYGON) & ~shapely.has_z(shapes)
    bounds = shapely.bounds(shapes)
    square = (180.0, mercator.MAX_LATITUDE)
    plain &= ((bounds[:, :2] >= np.negative(square)) & (bounds[:, 2:] <= square)).all(axis=1)
    plain &= bounds[:, 2] - bounds[:, 0] <= 180

    plain = np.flatnonzero(plain)
    lonlat, owner = shapely.get_coordinates(shapes[plain], return_index=True)
    projected = np.full(len(shapes), None, dtype=object)
    done, projected[plain] = _project_convex(lonlat, owner, len(plain))
    rest = np.setdiff1d(np.arange(len(shapes)), plain[done], assume_unique=True)
    mended = _repair(shapes[rest], None)
    projected[rest] = project_footprints(mended.geometry)
    repairs: list[tuple[FootprintRepair, ...]] = [()] * len(shapes)
    reasons: list[FootprintFault | None] = [None] * len(shapes)
    for index, found, reason in zip(rest, mended.repairs, mended.reasons, strict=True):
        repairs[index], reasons[index] = found, reason
    return Repaired(projected, repairs, reasons)


def _repair(geometries: Any, max_area_km2: float | None) -> Repaired:
    """`repair_footprints`, but single polygons stay Polygons."""
    shapes = np.array(geometries, dtype=object)
    reasons: list[FootprintFault | None] = [None] * len(shapes)
    repairs: list[tuple[FootprintRepair, ...]] = [()] * len(shapes)

    def reject(mask: Any, reason: FootprintFault) -> None:
        for index in np.flatnonzero(mask & ~shapely.is_missing(shapes)):
            shapes[index], reasons[index] = None, reason

    def note(mask: Any, repair: FootprintRepair) -> None:
        for index in np.flatnonzero(mask):
            repairs[index] += (repair,)

    for index in np.flatnonzero(shapely.is_missing(shapes)):
        reasons[index] = "geometry null"
    reject(shapely.is_empty(shapes), "geometry empty")

    high = shapely.has_z(shapes) | shapely.has_m(shapes)
    if high.any():
        shapes[high] = shapely.force_2d(shapes[high])
        note(high, "height dropped")
    kinds = shapely.get_type_id(shapes)
    mixed = kinds == COLLECTION
    if mixed.any():
        shapes[mixed] = [keep_polygons(shape) for shape in shapes[mixed]]
        note(mixed, "other parts dropped")
    reject(~np.isin(kinds, (POLYGON, MULTIPOLYGON, COLLECTION)), "not polygonal")
    reject(mixed & shapely.is_empty(shapes), "not polygonal")

    xy, owner = shapely.get_coordinates(shapes, return_index=True)
    infinite = ~np.isfinite(xy).all(axis=1)
    if infinite.any():
        reject(np.isin(np.arange(len(shapes)), owner[infinite]), "coordinates not finite")
    west, south, east, north = shapely.bounds(shapes).T
    reject((south < -90) | (north > 90), "latitude out of range")
    reject((west < -_MAX_LONGITUDE) | (east > _MAX_LONGITUDE), "longitude out of range")

    wide = np.flatnonzero((west < -180) | (east > 180) | (east - west > 180))
    wide = wide[~shapely.is_missing(shapes[wide])]
    if len(wide):
        shapes[wide], found = wrap_polygons(shapes[wide])
        for index, names in zip(wide, found, strict=True):
            repairs[index] += names
    if len(wide) or any(reasons):
        xy, owner = shapely.get_coordinates(shapes, return_index=True)
    broken = ~are_valid(shapes, xy, owner) & ~shapely.is_missing(shapes)
    if broken.any():
        shapes[broken] = make_valid(shapes[broken])
        note(broken, "made valid")
    reject(~(shapely.area(shapes) > 0), "no area")
    if max_area_km2 is not None:
        # On the plane every footprint is at least as large as on the sphere.
        suspect = np.flatnonzero(shapely.area(shapes) * _KM2_PER_SQUARE_DEGREE > max_area_km2)
        area = mercator.lonlat_area_km2(shapes[suspect])
        reject(np.isin(np.arange(len(shapes)), suspect[area > max_area_km2]), "area over bound")
    return Repaired(shapes, repairs, reasons)


def project_footprints(footprints: Any) -> Any:
    """Repaired lon/lat polygons as MultiPolygons in EPSG:3857, within the grid's latitudes.

    None stays None; a footprint wholly beyond becomes None.
    """
    shapes = np.array(footprints, dtype=object)
    _, south, _, north = shapely.bounds(shapes).T
    limit = mercator.MAX_LATITUDE
    beyond = (south < -limit) | (north > limit)
    if beyond.any():
        inside = shapely.box(-180, -limit, 180, limit)
        clipped = shapely.intersection(shapes[beyond], inside)
        shapes[beyond] = to_multipolygons([keep_polygons(shape) for shape in clipped])
    lonlat, owner = shapely.get_coordinates(shapes, return_index=True)
    convex, result = _project_convex(lonlat, owner, len(shapes))
    # Straight lines bend between the two planes, so that a narrow footprint can cross itself.
    others = np.flatnonzero(~convex & ~shapely.is_missing(shapes))
    bent = shapely.transform(shapes[others], mercator.project)
    broken = ~shapely.is_valid(bent)
    bent[broken] = make_valid(bent[broken])
    result[others] = to_multipolygons(bent)
    return result


def _project_convex(lonlat: Any, owner: Any, count: int) -> tuple[Any, Any]:
    """Which of ``count`` rings are convex when projected, and those as MultiPolygons."""
    xy = mercator.project(lonlat)
    convex = are_convex(xy, owner, count)
    rows = convex[owner]
    result = np.full(count, None, dtype=object)
    result[convex] = build_multipolygons(xy[rows], owner[rows])
    return convex, result


def cut_to_boxes(projected: Any, boxes: Any) -> Any:
    """The piece of each footprint inside its box (EPSG:3857), or None where no area is left.

    ``boxes`` is an array of box polygons, one for each footprint, or one for all.
    """
    shapes = np.array(projected, dtype=object)
    boxes = np.broadcast_to(np.asarray(boxes, dtype=object), shapes.shape)
    bounds, limits = shapely.bounds(shapes), shapely.bounds(boxes)
    within = (bounds[:, :2] >= limits[:, :2]) & (bounds[:, 2:] <= limits[:, 2:])
    across = ~within.all(axis=1) & ~shapely.is_missing(shapes)
    if across.any():
        pieces = shapely.intersection(shapes[across], boxes[across])
        mixed = shapely.get_type_id(pieces) == COLLECTION
        pieces[mixed] = [keep_polygons(piece) for piece in pieces[mixed]]
        pieces[shapely.area(pieces) < SLIVER_M2] = None
        shapes[across] = to_multipolygons(pieces)
    return shapes
