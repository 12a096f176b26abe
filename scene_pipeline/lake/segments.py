"""Segments of the raw lake: one page of whole Items, named by the digest of its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa

from scene_pipeline.errors import LakeFileError
from scene_pipeline.lake.geoparquet import FileInfo, decode_geoparquet, encode_geoparquet
from scene_pipeline.lake.layout import segment_path
from scene_pipeline.lake.store import ObjectStore

__all__ = ["SegmentRef", "read_segment", "write_segment"]


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A stored segment: sha256 of its bytes, its size, and its rows by day."""

    digest: str
    rows: int
    bytes: int
    days: Mapping[date, int]


def write_segment(store: ObjectStore, region: str, table: pa.Table) -> SegmentRef:
    """Store ``table`` (`RAW_COLUMNS`, as `scenes_to_table` makes it) if it is not there yet."""
    content = encode_geoparquet(table, FileInfo("segment", region))
    digest = hashlib.sha256(content).hexdigest()
    store.write_new(segment_path(region, digest), content)
    counted = table.group_by("acq_date").aggregate([([], "count_all")])
    days = dict(zip(counted["acq_date"].to_pylist(), counted["count_all"].to_pylist(), strict=True))
    return SegmentRef(digest, table.num_rows, len(content), dict(sorted(days.items())))


def read_segment(
    store: ObjectStore, region: str, digest: str, *, columns: Sequence[str] | None = None
) -> pa.Table:
    """The segment's rows (all of `RAW_COLUMNS`, or ``columns``), its bytes checked.

    Raises `LakeFileError` where it is missing (expired, or swept) or its bytes have changed.
    """
    path = segment_path(region, digest)
    where = store.address(path)
    try:
        content = store.read(path)
    except FileNotFoundError:
        raise LakeFileError(
            "a raw segment is missing", where=where, next_step="re-ingest the stream's window"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise LakeFileError(
            f"a raw segment is damaged: its bytes have digest {found}",
            where=where,
            next_step="restore the file, or re-ingest the stream's window",
        )
    return decode_geoparquet(content, where=where, kind="segment", columns=columns)[1]
