"""The one schema of a scene, used by the lake, the table and the docs.

`SCENE_COLUMNS` is what an analyst sees in a GeoParquet file and in the table. `RAW_COLUMNS` is
what a raw segment holds of each Item beside the whole Item itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = [
    "BBOX",
    "GEOMETRY",
    "RAW_COLUMNS",
    "SCENE_COLUMNS",
    "SCHEMA_VERSION",
    "STORAGE_SRID",
    "Column",
    "arrow_schema",
]

SCHEMA_VERSION = "1"
STORAGE_SRID = 3857

_INSTANT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow type, whether it may be null, where it comes from."""

    name: str
    type: Any
    nullable: bool
    doc: str


# Where the partition puts a scene.
_PLACE = (
    Column("region", pa.string(), False, "region of the settings"),
    Column("tile", pa.string(), False, "tile key of the grid, z-x-y"),
    Column("acq_date", pa.date32(), False, "UTC day of acquired_at"),
)

# What the Item says.
_ITEM = (
    Column("collection", pa.string(), False, "Item `collection`"),
    Column("item_id", pa.string(), False, "Item `id`"),
    Column("acquired_at", _INSTANT, False, "`datetime`, else `start_datetime`; floored to us"),
    Column("start_at", _INSTANT, True, "`start_datetime`"),
    Column("end_at", _INSTANT, True, "`end_datetime`"),
    Column("created_at", _INSTANT, True, "`created`"),
    Column("updated_at", _INSTANT, True, "`updated`"),
    Column("platform", pa.string(), True, "`platform`"),
    Column("constellation", pa.string(), True, "`constellation`"),
    Column("grid_code", pa.string(), True, "`grid:code`, or MGRS or WRS forms that precede it"),
    Column("gsd_m", pa.float64(), True, "`gsd`, metres"),
    Column("cloud_cover_pct", pa.float64(), True, "`eo:cloud_cover`, percent"),
    Column("sun_elevation_deg", pa.float64(), True, "`view:sun_elevation`, degrees"),
    Column("off_nadir_deg", pa.float64(), True, "`view:off_nadir`, degrees"),
    Column("processing_baseline", pa.string(), True, "`processing:version` or its older forms"),
    Column("item_href", pa.string(), True, "href of the Item's `self` link"),
    Column("properties", pa.string(), False, "JSON of the other properties, hrefs under `assets`"),
)

# What the pipeline says of this piece of the footprint.
_PIECE = (
    Column("repairs", pa.list_(pa.string()), False, "what was mended in the footprint"),
    Column("area_share", pa.float64(), False, "this piece's share of the whole footprint's area"),
    Column("raw_seq", pa.int64(), False, "raw version of the partition"),
)

GEOMETRY = Column("geometry", pa.binary(), False, "MultiPolygon piece in the tile, EPSG:3857, WKB")
BBOX = Column(
    "bbox",
    pa.struct([pa.field(side, pa.float64(), False) for side in ("xmin", "ymin", "xmax", "ymax")]),
    False,
    "bounds of geometry, EPSG:3857 metres (GeoParquet covering)",
)

SCENE_COLUMNS: tuple[Column, ...] = (*_PLACE, *_ITEM, *_PIECE, GEOMETRY, BBOX)

RAW_COLUMNS: tuple[Column, ...] = (
    Column("acq_date", pa.date32(), False, "UTC day of acquired_at"),
    *_ITEM,
    Column("digest", pa.string(), False, "sha256 of the Item's canonical JSON"),
    Column("item", pa.string(), False, "the whole Item, JSON"),
    Column("geometry", pa.binary(), False, "footprint as published, lon/lat (OGC:CRS84), WKB"),
)


def arrow_schema(columns: tuple[Column, ...]) -> Any:
    """The `pyarrow.Schema` of ``columns``, in their order."""
    return pa.schema([pa.field(c.name, c.type, c.nullable) for c in columns])
