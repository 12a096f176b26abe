"""Raw scenes of one partition key to the rows that analysts read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from scene_pipeline.errors import DataError
from scene_pipeline.scenes.footprint import (
    FootprintFault,
    FootprintRepair,
    cut_to_boxes,
    repair_and_project,
)
from scene_pipeline.scenes.grid import TileGrid
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.mercator import ground_area_m2
from scene_pipeline.scenes.schema import BBOX, GEOMETRY, SCENE_COLUMNS, arrow_schema

__all__ = ["BuiltPartition", "build_bbox", "build_partition", "empty_partition"]


Bounds = tuple[float, float, float, float]
_CHUNK_ROWS = 8192


@dataclass(frozen=True, slots=True)
class BuiltPartition:
    """One partition, ready to write.

    ``rows`` is a table in `SCENE_COLUMNS` in the order of a space-filling curve. ``counts``:
    ``scenes`` read, ``rows`` written, ``repaired`` of them, ``outside`` the tile after the cut.
    ``bounds`` are (xmin, ymin, xmax, ymax) of all pieces, EPSG:3857 metres, None without rows.
    """

    rows: pa.Table
    counts: Mapping[str, int]
    bounds: Bounds | None


def empty_partition() -> BuiltPartition:
    """A partition in which no scene was acquired: no rows, every column with its type."""
    counts = {"scenes": 0, "rows": 0, "repaired": 0, "outside": 0}
    return BuiltPartition(arrow_schema(SCENE_COLUMNS).empty_table(), MappingProxyType(counts), None)


def build_partition(
    raw: pa.Table,
    *,
    key: PartitionKey,
    grid: TileGrid,
    region: str,
    raw_seq: int,
) -> BuiltPartition:
    """Repair, project and cut the scenes of one key.

    ``raw`` has `RAW_COLUMNS` (``item`` and ``digest`` may be missing), each Item once. Raises
    `DataError` that names key and Item where a landed scene cannot be treated: another day, an
    Item twice, or a footprint that ingest would have refused.
    """
    if raw.num_rows == 0:
        return empty_partition()
    _check_scenes(raw, key)
    tile = grid.bounds(key.tile)
    pieces = _make_pieces(raw, tile)
    for row, reason in enumerate(pieces.reasons):
        if reason is not None:
            raise _fault(raw, row, key, f"its footprint cannot be used: {reason}")
    order = _curve_order(raw, pieces.bounds, tile)
    bounds = pieces.bounds[order]
    made: dict[str, Any] = {
        "region": pa.repeat(region, len(order)),
        "tile": pa.repeat(key.tile, len(order)),
        "repairs": pa.array([pieces.repairs[row] for row in order], pa.list_(pa.string())),
        "area_share": pieces.shares[order],
        "raw_seq": pa.repeat(pa.scalar(raw_seq, pa.int64()), len(order)),
        "geometry": pa.array(pieces.wkb[order], GEOMETRY.type),
        "bbox": _make_bbox(bounds),
    }
    taken = raw.select([c.name for c in SCENE_COLUMNS if c.name not in made]).take(order)
    rows = pa.table(
        [made[c.name] if c.name in made else taken[c.name] for c in SCENE_COLUMNS],
        schema=arrow_schema(SCENE_COLUMNS),
    )
    counts = {
        "scenes": raw.num_rows,
        "rows": len(order),
        "repaired": sum(bool(pieces.repairs[row]) for row in order),
        "outside": raw.num_rows - len(order),
    }
    return BuiltPartition(rows, MappingProxyType(counts), _enclose(bounds))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Scenes' pieces in a tile: WKB and bounds (None and NaN where none is left), share, repairs.

    ``reasons`` is set where a footprint cannot be used.
    """

    wkb: Any
    bounds: Any
    shares: Any
    repairs: list[tuple[FootprintRepair, ...]]
    reasons: list[FootprintFault | None]


def _cut_chunk(wkb: Any, tile: Bounds) -> _Pieces:
    repaired = repair_and_project(shapely.from_wkb(wkb))
    pieces = cut_to_boxes(repaired.geometry, shapely.box(*tile))
    whole = ground_area_m2(repaired.geometry)
    shares = ground_area_m2(pieces) / np.where(whole > 0, whole, 1)
    bounds = shapely.bounds(pieces)
    return _Pieces(shapely.to_wkb(pieces), bounds, shares, repaired.repairs, repaired.reasons)


def _make_pieces(raw: pa.Table, tile: Bounds) -> _Pieces:
    """Some thousand scenes at a time: geometries take ten times the memory of their WKB."""
    column = raw["geometry"]
    chunks = (
        column.slice(first, _CHUNK_ROWS).to_numpy(zero_copy_only=False)
        for first in range(0, len(column), _CHUNK_ROWS)
    )
    parts = [_cut_chunk(chunk, tile) for chunk in chunks]
    return _Pieces(
        wkb=np.concatenate([part.wkb for part in parts]),
        bounds=np.concatenate([part.bounds for part in parts]),
        shares=np.concatenate([part.shares for part in parts]),
        repairs=[found for part in parts for found in part.repairs],
        reasons=[reason for part in parts for reason in part.reasons],
    )


def _enclose(bounds: Any) -> Bounds | None:
    if len(bounds) == 0:
        return None
    (xmin, ymin), (xmax, ymax) = bounds[:, :2].min(axis=0), bounds[:, 2:].max(axis=0)
    return float(xmin), float(ymin), float(xmax), float(ymax)


def build_bbox(shapes: Any) -> pa.StructArray:
    """The covering column of an array of geometries."""
    return _make_bbox(shapely.bounds(shapes).reshape(-1, 4))


def _make_bbox(bounds: Any) -> pa.StructArray:
    sides = [pa.array(side) for side in bounds.T]
    return pa.StructArray.from_arrays(sides, fields=list(BBOX.type))


def _check_scenes(raw: pa.Table, key: PartitionKey) -> None:
    for row, day in enumerate(raw["acq_date"].to_pylist()):
        if day != key.day:
            raise _fault(raw, row, key, f"it was acquired on another day, {day}")
    seen: set[tuple[str, str]] = set()
    names = zip(raw["collection"].to_pylist(), raw["item_id"].to_pylist(), strict=True)
    for row, name in enumerate(names):
        if name in seen:
            raise _fault(raw, row, key, "it is there twice")
        seen.add(name)


def _fault(raw: pa.Table, row: int, key: PartitionKey, what: str) -> DataError:
    item = f"{raw['collection'][row].as_py()}/{raw['item_id'][row].as_py()}"
    return DataError(
        f"scene {item} cannot be treated: {what}",
        where=f"partition {key}",
        next_step="the raw lake holds what ingest accepted; re-ingest the Item or its stream",
    )


def _curve_order(raw: pa.Table, bounds: Any, tile: Bounds) -> Any:
    """Rows that have a piece, along a Z-order curve of the pieces' centres, then by name.

    Neighbours on the ground come to share row groups, whose statistics then prune.
    """
    kept = np.flatnonzero(~np.isnan(bounds[:, 0]))
    low, high = np.array(tile[:2]), np.array(tile[2:])
    centres = (bounds[kept, :2] + bounds[kept, 2:]) / 2
    cells = np.clip((centres - low) / (high - low) * 2**16, 0, 2**16 - 1).astype(np.uint64)
    code = _spread_bits(cells[:, 0]) | (_spread_bits(cells[:, 1]) << np.uint64(1))
    names = raw.select(["collection", "item_id"]).take(kept).append_column("code", pa.array(code))
    keys = [(name, "ascending") for name in ("code", "collection", "item_id")]
    return kept[pc.sort_indices(names, sort_keys=keys).to_numpy()]


def _spread_bits(numbers: Any) -> Any:
    """Sixteen bits to every second of 32, to be interleaved."""
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        numbers = (numbers | (numbers << np.uint64(shift))) & np.uint64(mask)
    return numbers
