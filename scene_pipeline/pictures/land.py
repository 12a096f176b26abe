"""Land for the ground of a map, from a file that travels with the package: no network.

``land.parquet`` is Natural Earth's 1:10m land (public domain), made by ``infra/build_land.py``.
It is for pictures alone: coasts are half a kilometre coarse.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any, Literal

import numpy as np
import shapely

from scene_pipeline.scenes import mercator

__all__ = ["WORLD", "Bounds", "Projection", "read_land", "shift_east"]

Bounds = tuple[float, float, float, float]
Projection = Literal["mercator", "degrees"]

# Width of the world: EPSG:3857 metres, and degrees.
WORLD: dict[Projection, float] = {"mercator": 2 * mercator.HALF_WORLD_M, "degrees": 360.0}
_UNITS_PER_DEG = 200


def shift_east(geometries: Any, distance: float) -> Any:
    """``geometries`` moved by ``distance`` in x; an array stays an array."""
    return shapely.transform(geometries, lambda xy: np.add(xy, (distance, 0.0)))


def read_land(bounds: Bounds, projection: Projection = "mercator") -> Any:
    """Polygons of land cut to ``bounds``, both in ``projection``'s units.

    ``bounds`` may reach beyond the antimeridian on either side: the world repeats there.
    """
    polygons, tree = _load(projection)
    world = WORLD[projection]
    west, south, east, north = bounds
    found = []
    for turn in range(int(np.floor(west / world + 0.5)), int(np.ceil(east / world + 0.5))):
        shift = turn * world
        window = (west - shift, south, east - shift, north)
        cut = shapely.clip_by_rect(polygons[tree.query(shapely.box(*window))], *window)
        cut = cut[~shapely.is_empty(cut)]
        found.append(shift_east(cut, shift))
    return np.concatenate(found) if found else np.array([], dtype=object)


@lru_cache(maxsize=2)
def _load(projection: Projection) -> tuple[Any, Any]:
    import pyarrow.parquet as pq

    with resources.files("scene_pipeline.pictures").joinpath("land.parquet").open("rb") as file:
        table = pq.read_table(file).combine_chunks()
    lon, lat = (table[name].chunk(0) for name in ("lon", "lat"))
    units = np.column_stack([column.flatten().flatten().to_numpy() for column in (lon, lat)])
    offsets = (lon.flatten().offsets.to_numpy(), lon.offsets.to_numpy())
    points = units / _UNITS_PER_DEG
    if projection == "mercator":
        points = mercator.project(points)
    polygons = shapely.from_ragged_array(shapely.GeometryType.POLYGON, points, offsets)
    return polygons, shapely.STRtree(polygons)
