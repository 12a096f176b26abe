"""How much of each tile one day's footprints cover, and under how much cloud.

Mercator stretches area by 1/cos²(lat): within a tile of zoom 7 the ratio of two Mercator areas
is off by up to a few percent, within one of zoom 1 by a factor. So all areas here are those on
the sphere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import shapely

from scene_pipeline.scenes.grid import TileGrid
from scene_pipeline.scenes.mercator import ground_area_m2

__all__ = ["COVERAGE_COLUMNS", "cover_day"]

COVERAGE_COLUMNS = pa.schema(
    [
        pa.field("tile", pa.string(), nullable=False),
        pa.field("scenes", pa.int64(), nullable=False),
        pa.field("covered_share", pa.float64(), nullable=False),
        pa.field("cloud_cover_pct", pa.float64()),
    ]
)


def cover_day(
    rows: Mapping[str, Any], grid: TileGrid, *, tiles: Sequence[str] | None = None
) -> pa.Table:
    """One row a tile of ``tiles`` (all of the grid where None), in their order.

    ``rows`` maps a tile to its `schema.SCENE_COLUMNS` table of that day; a tile that is absent
    counts as one without scenes. ``covered_share`` is the share of the tile's true area, 0 to 1,
    under at least one footprint. ``cloud_cover_pct`` is the mean over the scenes that state it,
    weighted by the area of their pieces; null where none does.
    """
    chosen = list(grid.keys if tiles is None else tiles)
    columns: dict[str, list[Any]] = {name: [] for name in COVERAGE_COLUMNS.names}
    for tile in chosen:
        table = rows.get(tile)
        pieces = shapely.from_wkb([] if table is None else table["geometry"].to_numpy())
        clouds = np.array(
            [] if table is None else table["cloud_cover_pct"].to_pylist(), dtype=np.float64
        )
        columns["tile"].append(tile)
        columns["scenes"].append(len(pieces))
        columns["covered_share"].append(_covered_share(pieces, grid.bounds(tile)))
        columns["cloud_cover_pct"].append(_weighted_cloud(pieces, clouds))
    return pa.table(columns, schema=COVERAGE_COLUMNS)


def _covered_share(pieces: Any, bounds: tuple[float, float, float, float]) -> float:
    if not len(pieces):
        return 0.0
    covered, whole = ground_area_m2(np.array([shapely.union_all(pieces), shapely.box(*bounds)]))
    return min(float(covered / whole), 1.0)


def _weighted_cloud(pieces: Any, clouds: Any) -> float | None:
    stated = ~np.isnan(clouds)
    if not stated.any():
        return None
    return float(np.average(clouds[stated], weights=ground_area_m2(pieces[stated])))
