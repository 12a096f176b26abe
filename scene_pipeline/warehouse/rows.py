"""What a warehouse demands of a partition's rows, and how rows read back take their form.

Shared by every adapter, so that PostGIS and GeoPackage refuse the same things by the same words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from scene_pipeline.errors import StaleVersionError, TableMismatchError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.schema import BBOX, GEOMETRY, SCENE_COLUMNS, STORAGE_SRID, arrow_schema
from scene_pipeline.warehouse.port import PartitionRows

__all__ = [
    "GEOMETRY_COLUMN",
    "TABLE_COLUMNS",
    "MovedRow",
    "build_rows",
    "check_rows",
    "describe_place",
    "refuse_older_items",
    "refuse_older_version",
    "require_count",
]

# The table has no bbox column: its geometry column carries and indexes bounds already.
TABLE_COLUMNS = tuple(column for column in SCENE_COLUMNS if column is not BBOX)
GEOMETRY_COLUMN = "geom"

_MULTIPOLYGON_PREFIX = b"\x01\x06\x00\x00\x00"  # little-endian WKB, type 6, no Z, no SRID flag
_EMPTY_WKB_BYTES = 9
_REBUILD = "rebuild the partition from raw, then write it again"


@dataclass(frozen=True, slots=True)
class MovedRow:
    """A stored row of an Item that is being written under another day.

    ``is_newer``: it was published (``updated_at``, else ``created_at``) after the row being
    written, both known.
    """

    day: date
    tile: str
    collection: str
    item_id: str
    is_newer: bool


def describe_place(region: str, key: PartitionKey) -> str:
    """The second line of every error about a partition."""
    return f"partition {key} of region {region}"


def check_rows(partition: PartitionRows, *, region: str) -> pa.Table:
    """The rows in `SCENE_COLUMNS`, or `TableMismatchError` for what no column would accept.

    Refused: another schema, a null where none may be, rows of another partition or raw version,
    a geometry that is not a 2D MultiPolygon, is empty, or declares an SRID of its own.
    """
    rows: pa.Table = partition.rows
    where = describe_place(region, partition.key)
    for column in SCENE_COLUMNS:
        index = rows.schema.get_field_index(column.name)
        found = rows.schema.field(index).type if index >= 0 else None
        if found != column.type:
            raise TableMismatchError(
                f"column {column.name} is {found or 'missing'}, the schema says {column.type}",
                where=where,
                next_step=_REBUILD,
            )
        if not column.nullable and rows[column.name].null_count:
            raise TableMismatchError(
                f"column {column.name} holds {rows[column.name].null_count} nulls",
                where=where,
                next_step=_REBUILD,
            )
    expected: Mapping[str, object] = {
        "region": region,
        "acq_date": partition.key.day,
        "tile": partition.key.tile,
        "raw_seq": partition.raw_seq,
    }
    for name, value in expected.items():
        if rows.num_rows and not pc.all(pc.equal(rows[name], value)).as_py():
            strays = sorted(map(str, set(pc.unique(rows[name]).to_pylist()) - {value}))
            raise TableMismatchError(
                f"{name} must be {value} in every row, found {', '.join(strays[:3])}",
                where=where,
                next_step=_REBUILD,
            )
    _check_geometry(rows, where)
    return rows.select([column.name for column in SCENE_COLUMNS])


def _check_geometry(rows: pa.Table, where: str) -> None:
    geometry = rows[GEOMETRY.name]
    fits = pc.and_(
        pc.equal(pc.binary_slice(geometry, 0, 5), _MULTIPOLYGON_PREFIX),
        pc.greater(pc.binary_length(geometry), _EMPTY_WKB_BYTES),
    )
    if pc.all(fits).as_py() is not False:  # None: there are no rows
        return
    misfit = pc.index(fits, False).as_py()
    raise TableMismatchError(
        f"geometry of Item {rows['item_id'][misfit]} is {_describe_wkb(geometry[misfit].as_py())}",
        where=where,
        next_step=f"the column takes 2D MultiPolygons in EPSG:{STORAGE_SRID} as plain WKB alone",
    )


def _describe_wkb(wkb: bytes) -> str:
    import shapely

    try:
        shape = shapely.from_wkb(wkb)
    except shapely.errors.GEOSException:
        return "not WKB"
    parts = ["an empty" if shape.is_empty else "a", "3D" * shape.has_z, shape.geom_type]
    srid = shapely.get_srid(shape)
    parts += [f"of SRID {srid}" * bool(srid), "in big-endian order" * (wkb[0] == 0)]
    return " ".join(filter(None, parts))


def refuse_older_version(stored: int, partition: PartitionRows, *, region: str) -> None:
    """Raise `StaleVersionError` where the table holds a higher raw version."""
    if stored > partition.raw_seq:
        raise StaleVersionError(
            f"raw version {partition.raw_seq} would overwrite {stored} in the table",
            where=describe_place(region, partition.key),
            next_step="read the partition's newest lake file; nothing was changed",
        )


def refuse_older_items(moved: Iterable[MovedRow], key: PartitionKey, *, region: str) -> None:
    """Raise `StaleVersionError` where another day holds a newer version of an Item.

    An Item that moves day bumps the raw version of both, so the caller's file is out of date;
    writing it would take the Item away from the day where it belongs.
    """
    for row in moved:
        if row.is_newer:
            raise StaleVersionError(
                f"Item {row.collection}/{row.item_id} has moved to {row.day}, in a newer version",
                where=describe_place(region, key),
                next_step="rebuild the partition from its newest raw version; nothing was changed",
            )


def require_count(found: int, expected: int, *, region: str, key: PartitionKey) -> None:
    """Raise `TableMismatchError` unless the table took every row."""
    if found != expected:
        raise TableMismatchError(
            f"the table holds {found} rows where the file has {expected}",
            where=describe_place(region, key),
            next_step="look for triggers or policies on the table; nothing was changed",
        )


def build_rows(columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """A table in `SCENE_COLUMNS` from stored values: geometry as WKB, bbox computed from it.

    ``properties`` comes back in canonical JSON: a database may store it re-ordered.
    """
    import shapely

    shapes = shapely.from_wkb(list(columns[GEOMETRY.name]))
    bounds = shapely.bounds(shapes).reshape(-1, 4)
    sides = [pa.array(bounds[:, side], pa.float64()) for side in range(4)]
    arrays = {
        **{c.name: pa.array(columns[c.name], c.type) for c in TABLE_COLUMNS},
        GEOMETRY.name: pa.array(shapely.to_wkb(shapes, include_srid=False), pa.binary()),
        BBOX.name: pa.StructArray.from_arrays(sides, fields=list(BBOX.type)),
        "properties": pa.array(map(_canonical, columns["properties"]), pa.string()),
    }
    return pa.table(arrays, schema=arrow_schema(SCENE_COLUMNS))


def _canonical(text: str) -> str:
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
