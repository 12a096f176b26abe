"""EPSG:3857 in closed form, and areas on the sphere.

Forward and inverse are those of EPSG method 1024, Popular Visualisation Pseudo-Mercator (IOGP
373-7-2, section 3.2.1.2): spherical formulas on WGS 84 coordinates. Equal to PROJ's within
nanometres (a test holds it), without its start-up time and its locks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import shapely

__all__ = [
    "HALF_WORLD_M",
    "MAX_LATITUDE",
    "RADIUS_M",
    "ground_area_m2",
    "lonlat_area_km2",
    "project",
    "unproject",
]

RADIUS_M = 6378137.0
HALF_WORLD_M = math.pi * RADIUS_M
# The latitude whose y is HALF_WORLD_M: the square's upper edge.
MAX_LATITUDE = math.degrees(math.atan(math.sinh(math.pi)))
_MEAN_RADIUS_KM = 6371.0088


def project(lonlat: Any) -> Any:
    """Degrees (n, 2) to metres; latitudes within ±MAX_LATITUDE, y clamped to the square."""
    radians = np.radians(lonlat)
    x = RADIUS_M * radians[:, 0]
    y = RADIUS_M * np.arcsinh(np.tan(radians[:, 1]))
    return np.column_stack([x, np.clip(y, -HALF_WORLD_M, HALF_WORLD_M)])


def unproject(xy: Any) -> Any:
    """Metres (n, 2) to degrees."""
    scaled = np.asarray(xy) / RADIUS_M
    return np.degrees(np.column_stack([scaled[:, 0], np.arctan(np.sinh(scaled[:, 1]))]))


def ground_area_m2(geometries: Any) -> Any:
    """Area on a sphere of radius RADIUS_M of EPSG:3857 polygons (array), exact for their edges.

    Straight edges are integrated in that plane, so that the pieces of a cut footprint add up to
    the whole. None has area 0.
    """
    scaled = shapely.transform(geometries, lambda xy: xy / RADIUS_M)
    return RADIUS_M**2 * _solid_angle(scaled, np.tanh, _log_cosh)


def lonlat_area_km2(geometries: Any) -> Any:
    """Area on the sphere of mean radius of lon/lat polygons (array), exact for their edges."""
    radians = shapely.transform(geometries, np.radians)
    return _MEAN_RADIUS_KM**2 * _solid_angle(radians, np.sin, lambda v: -np.cos(v))


def _log_cosh(v: Any) -> Any:
    """The primitive of tanh, up to a constant, without overflow."""
    return np.abs(v) + np.log1p(np.exp(-2 * np.abs(v)))


def _solid_angle(geometries: Any, sine: Any, primitive: Any) -> Any:
    """The integral of sin(lat) over the longitude round every ring (Green's theorem), steradians.

    Coordinates are (longitude, v) with sin(lat) = ``sine(v)``; its mean along a straight edge is
    a difference quotient of its ``primitive``.
    """
    parts, owner = shapely.get_parts(shapely.orient_polygons(geometries), return_index=True)
    rings, part = shapely.get_rings(parts, return_index=True)
    coordinates, ring = shapely.get_coordinates(rings, return_index=True)
    longitude, v = coordinates.T
    step = np.diff(v)
    flat = np.abs(step) < 1e-4  # the quotient would lose more digits than the midpoint does
    mean = np.where(
        flat, sine((v[1:] + v[:-1]) / 2), np.diff(primitive(v)) / np.where(flat, 1.0, step)
    )
    inside = ring[1:] == ring[:-1]  # the step from one ring to the next is no edge
    weights = np.where(inside, np.diff(longitude) * mean, 0.0)
    return np.abs(np.bincount(owner[part[ring[:-1]]], weights=weights, minlength=len(geometries)))
