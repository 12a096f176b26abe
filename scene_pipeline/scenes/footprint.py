"""Footprints: published geometry to valid lon/lat MultiPolygons, then to pieces of tiles.

`repair_footprints` works in lon/lat and is idempotent. `project_footprints` clips to the grid's
latitudes first (EPSG:3857 of latitude 90 is a finite 242,528,680 m, so nothing infinite betrays
it), `cut_to_boxes` makes the pieces. All take and return numpy arrays of shapely geometries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import shapely

from scene_pipeline.scenes import mercator
from scene_pipeline.scenes.polygons import keep_polygons, make_valid, to_multipolygons
from scene_pipeline.scenes.wrap import WrapRepair, wrap_polygons

__all__ = [
    "FootprintFault",
    "FootprintRepair",
    "Repaired",
    "cut_to_boxes",
    "project_footprints",
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
FootprintRepair = (
    Literal["height dropped", "other parts dropped", "empty parts dropped", "made valid"]
    | WrapRepair
)

# Below this a piece is the rounding of an edge that two tiles share.
SLIVER_M2 = 1.0
_MAX_LONGITUDE = 540.0
_KM2_PER_SQUARE_DEGREE = (np.pi / 180 * 6371.0088) ** 2
_POLYGON, _MULTIPOLYGON, _COLLECTION = 3, 6, 7


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

    Drops Z, reads what crosses ±180° or a pole (`wrap_polygons`), makes valid what is not, keeps
    polygons. ``max_area_km2`` rejects larger footprints (sphere of mean radius).
    """
    shapes = np.array(geometries, dtype=object)
    reasons: list[FootprintFault | None] = [None] * len(shapes)
    repairs: list[list[FootprintRepair]] = [[] for _ in shapes]

    def reject(mask: Any, reason: FootprintFault) -> None:
        for index in np.flatnonzero(mask & (shapes != None)):  # noqa: E711 - elementwise
            shapes[index], reasons[index] = None, reason

    def note(mask: Any, repair: FootprintRepair) -> None:
        for index in np.flatnonzero(mask):
            repairs[index].append(repair)

    for index in np.flatnonzero(shapely.is_missing(shapes)):
        reasons[index] = "geometry null"
    reject(shapely.is_empty(shapes), "geometry empty")

    high = shapely.has_z(shapes) | shapely.has_m(shapes)
    if np.any(high):
        shapes[high] = shapely.force_2d(shapes[high])
        note(high, "height dropped")
    kinds = shapely.get_type_id(shapes)
    mixed = kinds == _COLLECTION
    if np.any(mixed):
        shapes[mixed] = [keep_polygons(shape) for shape in shapes[mixed]]
        note(mixed, "other parts dropped")
        reject(shapely.is_empty(shapes), "not polygonal")
    reject(~np.isin(kinds, (_POLYGON, _MULTIPOLYGON, _COLLECTION)), "not polygonal")

    coordinates, owner = shapely.get_coordinates(shapes, return_index=True)
    finite = np.isfinite(coordinates).all(axis=1)
    if not finite.all():
        reject(_mark(owner[~finite], len(shapes)), "coordinates not finite")
    west, south, east, north = shapely.bounds(shapes).T
    with np.errstate(invalid="ignore"):
        reject((south < -90) | (north > 90), "latitude out of range")
        reject((west < -_MAX_LONGITUDE) | (east > _MAX_LONGITUDE), "longitude out of range")
        wide = (west < -180) | (east > 180) | (east - west > 180)

    for index in np.flatnonzero(wide & (shapes != None)):  # noqa: E711 - elementwise
        shapes[index], found = wrap_polygons(shapes[index])
        repairs[index] += found
    broken = (shapes != None) & ~shapely.is_valid(shapes)  # noqa: E711 - elementwise
    if np.any(broken):
        shapes[broken] = [keep_polygons(shape) for shape in make_valid(shapes[broken])]
        note(broken, "made valid")

    before = shapes.copy()
    shapes = to_multipolygons(shapes)
    for index in np.flatnonzero((before != None) & (shapes == None)):  # noqa: E711 - elementwise
        reasons[index] = "no area"
    if max_area_km2 is not None:
        # On the plane every footprint is at least as large as on the sphere.
        suspect = np.flatnonzero(shapely.area(shapes) * _KM2_PER_SQUARE_DEGREE > max_area_km2)
        for index, area in zip(suspect, mercator.lonlat_area_km2(shapes[suspect]), strict=True):
            if area > max_area_km2:
                shapes[index], reasons[index] = None, "area over bound"
    return Repaired(shapes, [tuple(found) for found in repairs], reasons)


def _mark(positions: Any, length: int) -> Any:
    mask = np.zeros(length, dtype=bool)
    mask[positions] = True
    return mask


def project_footprints(footprints: Any) -> Any:
    """Repaired lon/lat footprints in EPSG:3857, without what lies beyond the grid's latitudes.

    None stays None; a footprint wholly beyond becomes None.
    """
    shapes = np.array(footprints, dtype=object)
    bounds = shapely.bounds(shapes)
    limit = mercator.MAX_LATITUDE
    with np.errstate(invalid="ignore"):
        beyond = (bounds[:, 1] < -limit) | (bounds[:, 3] > limit)
    if np.any(beyond):
        inside = shapely.box(-180, -limit, 180, limit)
        shapes[beyond] = [
            keep_polygons(shape) for shape in shapely.intersection(shapes[beyond], inside)
        ]
    shapes = shapely.transform(shapes, mercator.project)
    # Straight lines bend between the two planes, so that a narrow footprint can cross itself.
    broken = (shapes != None) & ~shapely.is_valid(shapes)  # noqa: E711 - elementwise
    if np.any(broken):
        shapes[broken] = [keep_polygons(shape) for shape in make_valid(shapes[broken])]
    return to_multipolygons(shapes)


def cut_to_boxes(projected: Any, boxes: Any) -> Any:
    """The piece of each footprint inside its box (EPSG:3857), or None where no area is left.

    ``boxes`` is an array of box polygons, one for each footprint, or one for all.
    """
    shapes = np.array(projected, dtype=object)
    boxes = np.broadcast_to(np.asarray(boxes, dtype=object), shapes.shape)
    bounds, limits = shapely.bounds(shapes), shapely.bounds(boxes)
    with np.errstate(invalid="ignore"):
        inside = (bounds[:, :2] >= limits[:, :2]).all(axis=1) & (
            bounds[:, 2:] <= limits[:, 2:]
        ).all(axis=1)
    across = (shapes != None) & ~inside  # noqa: E711 - elementwise
    if np.any(across):
        shapes[across] = shapely.intersection(shapes[across], boxes[across])
        mixed = shapely.get_type_id(shapes) == _COLLECTION
        shapes[mixed] = [keep_polygons(shape) for shape in shapes[mixed]]
        shapes[across & (shapely.area(shapes) < SLIVER_M2)] = None
    return to_multipolygons(shapes)
