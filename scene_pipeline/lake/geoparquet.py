"""GeoParquet 1.1 files of one pinned schema: encode, decode, read by box.

https://geoparquet.org/releases/v1.1.0/. The footer carries, beside ``geo``, the key
``scene_pipeline`` with what the file is (`FileInfo`), so that a foreign file is told apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scene_pipeline.errors import LakeFileError
from scene_pipeline.scenes.schema import (
    RAW_COLUMNS,
    SCENE_COLUMNS,
    SCHEMA_VERSION,
    Column,
    arrow_schema,
)

__all__ = [
    "FileInfo",
    "FileKind",
    "decode_geoparquet",
    "encode_geoparquet",
    "read_info",
]

FileKind = Literal["partition", "segment"]

_COLUMNS: dict[str, tuple[Column, ...]] = {"partition": SCENE_COLUMNS, "segment": RAW_COLUMNS}
_CRS: dict[str, str] = {"partition": "EPSG:3857", "segment": "OGC:CRS84"}
_OWN_KEY = b"scene_pipeline"
ROW_GROUP_ROWS = 8192

# Few values in many rows: a dictionary is smaller and costs little. Elsewhere it is built in vain.
_DICTIONARIES = (
    "region",
    "tile",
    "collection",
    "platform",
    "constellation",
    "grid_code",
    "processing_baseline",
    "repairs.list.element",
)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What a lake file is: its kind, region, and for a partition its key and raw version."""

    kind: FileKind
    region: str
    key: str | None = None
    raw_seq: int | None = None
    schema_version: str = SCHEMA_VERSION


def encode_geoparquet(table: pa.Table, info: FileInfo) -> bytes:
    """The bytes of a GeoParquet 1.1 file; ``table`` has the columns of its kind exactly."""
    columns = _COLUMNS[info.kind]
    schema = arrow_schema(columns)
    if not table.schema.equals(schema):
        table = table.select(schema.names).cast(schema)
    metadata = {
        b"geo": json.dumps(_geo_metadata(info.kind, table)).encode(),
        _OWN_KEY: json.dumps(asdict(info)).encode(),
    }
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema.with_metadata(metadata),
        compression="zstd",
        use_dictionary=[c for c in _DICTIONARIES if c.partition(".")[0] in schema.names],
        write_statistics=True,
    ) as writer:
        writer.write_table(table.replace_schema_metadata(metadata), row_group_size=ROW_GROUP_ROWS)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@lru_cache(maxsize=2)
def _projjson(crs: str) -> dict[str, Any]:
    import pyproj

    document: dict[str, Any] = pyproj.CRS(crs).to_json_dict()
    return document


def _geo_metadata(kind: FileKind, table: pa.Table) -> dict[str, Any]:
    geometry: dict[str, Any] = {
        "encoding": "WKB",
        "geometry_types": ["MultiPolygon"] if kind == "partition" else [],
        "crs": _projjson(_CRS[kind]),
        "edges": "planar",
    }
    if kind == "partition":
        sides = ("xmin", "ymin", "xmax", "ymax")
        geometry["covering"] = {"bbox": {side: ["bbox", side] for side in sides}}
        if table.num_rows:
            box = table["bbox"].combine_chunks()
            geometry["bbox"] = [
                (pc.min if side.endswith("min") else pc.max)(box.field(side)).as_py()
                for side in sides
            ]
    return {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": geometry}}


def read_info(content: bytes, *, where: str) -> tuple[FileInfo, int]:
    """What a file is and how many rows it has; ``content`` may be its last bytes alone.

    Raises `LakeFileError` naming ``where`` for a foreign, damaged or differently versioned file.
    """
    info, file = _open(content, where)
    return info, file.metadata.num_rows


def _open(content: bytes, where: str) -> tuple[FileInfo, pq.ParquetFile]:
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        own = (file.metadata.metadata or {}).get(_OWN_KEY)
    except pa.ArrowException as error:
        raise _refuse(f"not a whole Parquet file: {error}", where) from None
    if own is None:
        raise _refuse("a Parquet file that this project did not write", where)
    try:
        info = FileInfo(**json.loads(own))
    except (TypeError, ValueError) as error:
        raise _refuse(f"its {_OWN_KEY.decode()} metadata is unreadable: {error}", where) from None
    if info.schema_version != SCHEMA_VERSION or info.kind not in _COLUMNS:
        raise _refuse(
            f"a {info.kind} of schema version {info.schema_version}, not {SCHEMA_VERSION}", where
        )
    return info, file


def _refuse(what: str, where: str) -> LakeFileError:
    return LakeFileError(
        f"lake file refused: {what}",
        where=where,
        next_step="remove the file and materialize its key again",
    )


def decode_geoparquet(
    content: bytes,
    *,
    where: str,
    kind: FileKind = "partition",
    columns: Sequence[str] | None = None,
) -> tuple[FileInfo, pa.Table]:
    """Rows (all columns of the kind, or ``columns``) and what the file is.

    Raises `LakeFileError` naming ``where``: not Parquet, damaged, not ours, another kind or
    schema.
    """
    info, file = _open(content, where)
    if info.kind != kind:
        raise _refuse(f"a {info.kind} where a {kind} is due", where)
    schema = arrow_schema(_COLUMNS[kind])
    if not file.schema_arrow.equals(schema, check_metadata=False):
        raise _refuse("its columns are not those of the schema", where)
    try:
        table = file.read(columns=list(columns) if columns is not None else None, use_threads=False)
    except pa.ArrowException as error:
        raise _refuse(f"damaged: {error}", where) from None
    return info, table.replace_schema_metadata(None)
