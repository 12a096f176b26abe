"""GeoParquet 1.1 files of one pinned schema: encode, decode, read by box.

https://geoparquet.org/releases/v1.1.0/. The footer carries, beside ``geo``, the key
``scene_pipeline`` with what the file is (`FileInfo`), so that a foreign file is told apart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scene_pipeline.errors import DataError, LakeFileError
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
    "footer_bytes",
    "read_info",
]

FileKind = Literal["partition", "segment"]
Box = tuple[float, float, float, float]

_COLUMNS: dict[str, tuple[Column, ...]] = {"partition": SCENE_COLUMNS, "segment": RAW_COLUMNS}
_CRS: dict[str, str] = {"partition": "EPSG:3857", "segment": "OGC:CRS84"}
_OWN_KEY = b"scene_pipeline"
# What pyarrow raises on damaged bytes, by where the damage is.
_DAMAGE = (OSError, ValueError, KeyError, pa.ArrowException)
_SIDES = ("xmin", "ymin", "xmax", "ymax")

# Few values in many rows: a dictionary is smaller and costs little. Elsewhere it is built in vain.
_DICTIONARIES = (
    "region",
    "tile",
    "acq_date",
    "collection",
    "platform",
    "constellation",
    "grid_code",
    "gsd_m",
    "cloud_cover_pct",
    "processing_baseline",
    "raw_seq",
    "repairs.list.element",
)
# Least and greatest of these would be as long as a row and prune nothing.
_WITHOUT_STATISTICS = {"properties", "item", "geometry", "repairs"}
# Small enough that a box in a big partition skips most of it, not so small that footers grow.
_ROW_GROUP_ROWS = 16_384
_ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What a lake file is: its kind, region, and for a partition its key and raw version."""

    kind: FileKind
    region: str
    key: str | None = None
    raw_seq: int | None = None
    schema_version: str = SCHEMA_VERSION


def encode_geoparquet(table: pa.Table, info: FileInfo) -> bytes:
    """The bytes of a GeoParquet 1.1 file.

    ``table`` has the columns of its kind, rows in the order to keep. Raises `DataError` where a
    column is missing, does not fit its type, or is null where the schema forbids it.
    """
    schema = arrow_schema(_COLUMNS[info.kind])
    table = _fit(table, schema)
    metadata = {
        b"geo": json.dumps(_geo_metadata(info.kind, table), separators=(",", ":")),
        _OWN_KEY: json.dumps(asdict(info), separators=(",", ":")),
    }
    # Row groups of one size: a remainder of few rows would cost a reader as much as a whole one.
    groups = max(1, round(table.num_rows / _ROW_GROUP_ROWS))
    sink = pa.BufferOutputStream()
    written: list[pq.FileMetaData] = []
    pq.write_table(
        table.replace_schema_metadata(metadata),
        sink,
        row_group_size=max(1, math.ceil(table.num_rows / groups)),
        compression="zstd",
        compression_level=_ZSTD_LEVEL,
        use_dictionary=[name for name in _DICTIONARIES if name.partition(".")[0] in schema.names],
        write_statistics=_statistics_of(schema),
        write_page_checksum=True,
        metadata_collector=written,
    )
    if [file.num_rows for file in written] != [table.num_rows]:
        raise DataError(f"{table.num_rows} rows went in, the file's footer says otherwise")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    fitted = table
    try:
        if not table.schema.equals(schema):
            fitted = table.select(schema.names).cast(schema)
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise DataError(f"the rows do not fit the schema: {error}") from None
    for field, column in zip(schema, fitted.columns, strict=True):
        if not field.nullable and column.null_count:
            raise DataError(f"column {field.name} has {column.null_count} null(s)")
    return fitted


@lru_cache(maxsize=2)
def _statistics_of(schema: pa.Schema) -> list[str]:
    """The leaf columns whose least and greatest value are kept for each row group."""
    names = [field.name for field in schema if field.name not in _WITHOUT_STATISTICS]
    return [
        leaf
        for name in names
        for leaf in ([f"bbox.{side}" for side in _SIDES] if name == "bbox" else [name])
    ]


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
        geometry["covering"] = {"bbox": {side: ["bbox", side] for side in _SIDES}}
        if table.num_rows:
            box = table["bbox"].combine_chunks()
            geometry["bbox"] = [
                (pc.min if side.endswith("min") else pc.max)(box.field(side)).as_py()
                for side in _SIDES
            ]
    return {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": geometry}}


def read_info(content: bytes, *, where: str) -> tuple[FileInfo, int]:
    """What a file is and how many rows it has; ``content`` may be its last bytes alone.

    Raises `LakeFileError` naming ``where`` for a foreign, damaged or differently versioned file.
    """
    info, file, _ = _open(content, where)
    return info, file.metadata.num_rows


def footer_bytes(tail: bytes) -> int:
    """How many last bytes hold a Parquet file's footer, as its last eight say."""
    return int.from_bytes(tail[-8:-4], "little") + 8


def _open(content: bytes, where: str) -> tuple[FileInfo, pq.ParquetFile, pa.Schema]:
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        own = (file.metadata.metadata or {}).get(_OWN_KEY)
        schema = file.schema_arrow
    except _DAMAGE as error:
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
    return info, file, schema


def _refuse(what: str, where: str) -> LakeFileError:
    return LakeFileError(
        f"lake file refused: {what}",
        where=where,
        next_step="build its key again: `backfill launch --states all --keys …`",
    )


def decode_geoparquet(
    content: bytes,
    *,
    where: str,
    kind: FileKind = "partition",
    columns: Sequence[str] | None = None,
    boxes: Sequence[Box] | None = None,
) -> tuple[FileInfo, pa.Table]:
    """What the file is, and its rows: all columns of the kind or ``columns``, in the file's order.

    ``boxes`` (EPSG:3857 metres) keeps the rows whose bbox meets one of them, borders included,
    and reads only the row groups that can hold such rows. Raises `LakeFileError` naming
    ``where``: not Parquet, damaged, not ours, another kind or schema.
    """
    info, file, stored = _open(content, where)
    if info.kind != kind:
        raise _refuse(f"a {info.kind} where a {kind} is due", where)
    schema = arrow_schema(_COLUMNS[kind])
    if not stored.equals(schema, check_metadata=False):
        raise _refuse("its columns are not those of the schema", where)
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    try:
        if boxes is None:
            table = file.read(columns=wanted.names, use_threads=False)
        else:
            table = _fragment(content).to_table(
                columns=wanted.names, filter=_meets(boxes), use_threads=False
            )
    except _DAMAGE as error:
        raise _refuse(f"damaged: {error}", where) from None
    # Parquet adds its own field ids to the types.
    return info, pa.Table.from_arrays(table.columns, schema=wanted)


def _fragment(content: bytes) -> Any:
    """A file whose row groups are skipped where their statistics rule a filter out."""
    import pyarrow.dataset

    options = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    file_format = pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=options)
    return file_format.make_fragment(pa.BufferReader(content))


def _meets(boxes: Sequence[Box]) -> pc.Expression:
    """Rows whose bbox meets one of the boxes."""
    xmin, ymin, xmax, ymax = (pc.field("bbox", side) for side in _SIDES)
    found = pc.scalar(False)
    for box in boxes:
        found |= (xmin <= box[2]) & (xmax >= box[0]) & (ymin <= box[3]) & (ymax >= box[1])
    return found
