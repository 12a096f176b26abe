"""Items back from the rows of a stac-geoparquet file (its specification 1.0 and older writers)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import shapely

__all__ = ["read_items"]

_TOP_LEVEL = ("type", "stac_version", "stac_extensions", "id", "collection", "links", "assets")
_BBOX_SIDES = ("xmin", "ymin", "zmin", "xmax", "ymax", "zmax")


def read_items(path: Path) -> Iterator[Mapping[str, Any]]:
    """Items of a file in row order, a batch in memory at a time."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=500):
            for row in batch.cast(_in_microseconds(batch.schema), safe=False).to_pylist():
                yield _restore_item(row)


def _in_microseconds(schema: Any) -> Any:
    """Python's datetime holds no nanoseconds."""
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz))
        if pa.types.is_timestamp(field.type)
        else field
        for field in schema
    ]
    return pa.schema(fields)


def _restore_item(row: Mapping[str, Any]) -> dict[str, Any]:
    item = {name: _restore(row[name]) for name in _TOP_LEVEL if row.get(name) is not None}
    item["geometry"] = _restore(row.get("geometry"))
    box = row.get("bbox")
    if isinstance(box, Mapping):
        box = [box[side] for side in _BBOX_SIDES if box.get(side) is not None]
    if box:
        item["bbox"] = box
    properties = {
        name: _restore(value)
        for name, value in row.items()
        if name not in {*_TOP_LEVEL, "geometry", "bbox"} and value is not None
    }
    # A null datetime is a statement (an interval follows); a null elsewhere is an absent column.
    properties.setdefault("datetime", None)
    item["properties"] = properties
    return item


def _restore(value: Any) -> Any:
    """JSON again: no nulls that only a common struct type made, text instants, GeoJSON."""
    if isinstance(value, Mapping):
        return {name: _restore(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_restore(part) for part in value]
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return aware.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        try:
            return json.loads(shapely.to_geojson(shapely.from_wkb(value)))
        except shapely.errors.ShapelyError:
            # For the parser to refuse: one bad row does not stop the file.
            return {"type": "WKB", "coordinates": value[:32].hex()}
    return value
