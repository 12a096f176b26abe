"""What must hold of every partition's rows, whoever made them.

The body of a run holds a partition to these laws before it is stored; asset checks hold what is
stored to them again.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from scene_pipeline.scenes.keys import PartitionKey

__all__ = ["LAWS", "LawName", "find_violations"]

LawName = Literal["in_its_partition", "inside_tile", "unique_items", "valid_geometry"]
LAWS: tuple[LawName, ...] = get_args(LawName)

# Cutting rounds coordinates by parts of a nanometre; a real overhang is metres.
_TOLERANCE_M = 1e-3
_MULTIPOLYGON = 6


def find_violations(
    rows: pa.Table, *, key: PartitionKey, region: str, bounds: tuple[float, float, float, float]
) -> dict[LawName, list[str]]:
    """The Items of ``rows`` (`schema.SCENE_COLUMNS`) that break each law, by law; empty is right.

    ``bounds`` are the tile's, EPSG:3857 metres.
    """
    if rows.num_rows == 0:
        return {}
    names = pc.binary_join_element_wise(rows["collection"], rows["item_id"], "/")
    items = np.array(names.to_pylist(), dtype=object)
    pieces = shapely.from_wkb(rows["geometry"].to_numpy())
    corners = shapely.bounds(pieces)
    west, south, east, north = bounds
    low = np.array([west, south]) - _TOLERANCE_M
    high = np.array([east, north]) + _TOLERANCE_M
    elsewhere = pc.or_(
        pc.not_equal(rows["acq_date"], pa.scalar(key.day, pa.date32())),
        pc.or_(pc.not_equal(rows["tile"], key.tile), pc.not_equal(rows["region"], region)),
    )
    counts = dict(zip(*np.unique(items, return_counts=True), strict=True))
    broken: dict[LawName, Any] = {
        "in_its_partition": elsewhere.to_numpy(),
        # Negated so that the bounds of an empty piece, which are NaN, count as outside.
        "inside_tile": ~((corners[:, :2] >= low) & (corners[:, 2:] <= high)).all(axis=1),
        "unique_items": np.array([counts[item] > 1 for item in items]),
        "valid_geometry": (shapely.get_type_id(pieces) != _MULTIPOLYGON)
        | shapely.is_empty(pieces)
        | ~shapely.is_valid(pieces),
    }
    return {law: sorted(set(items[wrong])) for law, wrong in broken.items() if wrong.any()}
