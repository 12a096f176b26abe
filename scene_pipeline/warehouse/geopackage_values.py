"""Values between Arrow and the GeoPackage's columns.

The standard's DATETIME ends at the millisecond. What is finer goes to the column `microseconds`,
as JSON by column name, so that other programs see the standard's form and nothing is lost.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from scene_pipeline.scenes.schema import BBOX, GEOMETRY, STORAGE_SRID
from scene_pipeline.warehouse.rows import GEOMETRY_COLUMN, TABLE_COLUMNS

__all__ = [
    "MICROSECONDS",
    "STORED_COLUMNS",
    "decode_rows",
    "encode_rows",
    "format_instant",
    "parse_published",
]

MICROSECONDS = "microseconds"
STORED_COLUMNS = (
    *(GEOMETRY_COLUMN if column is GEOMETRY else column.name for column in TABLE_COLUMNS),
    MICROSECONDS,
)
# GeoPackage binary, section 2.1.3: magic, version 0, flags (little-endian, xy envelope), SRID.
_BLOB_HEADER = struct.Struct("<2sBBi4d")
_FLAGS = 0b0000_0011


def encode_rows(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows in `SCENE_COLUMNS` as tuples in the order of `STORED_COLUMNS`."""
    finer: list[dict[str, int]] = [{} for _ in range(rows.num_rows)]
    columns: list[Sequence[Any]] = []
    for column in TABLE_COLUMNS:
        values: list[Any] = rows[column.name].to_pylist()
        if column is GEOMETRY:
            values = _encode_geometry(values, rows[BBOX.name])
        elif pa.types.is_date(column.type):
            values = [value.isoformat() for value in values]
        elif pa.types.is_timestamp(column.type):
            for at, value in enumerate(values):
                if value is not None and value.microsecond % 1000:
                    finer[at][column.name] = value.microsecond % 1000
            values = [None if value is None else format_instant(value) for value in values]
        elif pa.types.is_list(column.type):
            values = [json.dumps(value) for value in values]
        columns.append(values)
    columns.append([json.dumps(each) if each else None for each in finer])
    return zip(*columns, strict=True)


def _encode_geometry(wkb: Sequence[bytes], bbox: pa.ChunkedArray) -> list[bytes]:
    sides = bbox.combine_chunks().flatten()
    envelopes = zip(*(sides[side].to_pylist() for side in (0, 2, 1, 3)), strict=True)
    return [
        _BLOB_HEADER.pack(b"GP", 0, _FLAGS, STORAGE_SRID, *envelope) + body
        for envelope, body in zip(envelopes, wkb, strict=True)
    ]


def decode_rows(stored: Sequence[tuple[Any, ...]]) -> Mapping[str, Sequence[Any]]:
    """Columns of `TABLE_COLUMNS` from rows in the order of `STORED_COLUMNS`."""
    *columns, finer = zip(*stored, strict=True) if stored else [()] * len(STORED_COLUMNS)
    decoded: dict[str, Sequence[Any]] = {}
    for column, values in zip(TABLE_COLUMNS, columns, strict=True):
        if column is GEOMETRY:
            decoded[column.name] = [value[_BLOB_HEADER.size :] for value in values]
        elif pa.types.is_date(column.type):
            decoded[column.name] = [date.fromisoformat(value) for value in values]
        elif pa.types.is_timestamp(column.type):
            decoded[column.name] = [
                _parse_instant(value, rest, column.name)
                for value, rest in zip(values, finer, strict=True)
            ]
        elif pa.types.is_list(column.type):
            decoded[column.name] = [json.loads(value) for value in values]
        else:
            decoded[column.name] = values
    return decoded


def format_instant(instant: datetime) -> str:
    """The standard's form, floored to milliseconds."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def parse_published(updated: str | None, created: str | None, finer: str | None) -> datetime | None:
    """When a stored row was published: ``updated_at``, else ``created_at``, else None."""
    return _parse_instant(updated, finer, "updated_at") or _parse_instant(
        created, finer, "created_at"
    )


def _parse_instant(text: str | None, finer: str | None, name: str) -> datetime | None:
    if text is None:
        return None
    rest = json.loads(finer).get(name, 0) if finer else 0
    return datetime.fromisoformat(text) + timedelta(microseconds=rest)
