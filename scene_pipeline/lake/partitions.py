"""Partitions of one region in the lake: a GeoParquet file for each key."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Literal

import pyarrow as pa

from scene_pipeline.errors import LakeFileError, StaleVersionError
from scene_pipeline.lake.geoparquet import (
    Box,
    FileInfo,
    decode_geoparquet,
    encode_geoparquet,
    footer_bytes,
    read_info,
)
from scene_pipeline.lake.layout import partition_path
from scene_pipeline.lake.store import ObjectStore
from scene_pipeline.scenes.grid import Area, project_area
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.rows import PartitionRows
from scene_pipeline.scenes.schema import SCENE_COLUMNS, arrow_schema

__all__ = ["PartitionLake", "StoredVersion", "Written"]

ASSET = "scene_footprints"
# Holds the footer of a partition of up to 300,000 rows, so that one request reads it.
_FOOTER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Written:
    """What one write put where; ``path`` is the full address."""

    path: str
    rows: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """Raw version and row count of a stored partition."""

    raw_seq: int
    rows: int


class PartitionLake:
    """Reads and replaces the partitions of ``region``, whole or not at all.

    ``threads`` read at once where many keys are asked for: it hides the store's latency.
    """

    def __init__(self, store: ObjectStore, region: str, *, threads: int = 1) -> None:
        self.store = store
        self.region = region
        self.threads = threads

    def path(self, key: PartitionKey) -> str:
        """The partition's path in the store."""
        return partition_path(self.region, ASSET, key)

    def write(self, key: PartitionKey, rows: pa.Table, *, raw_seq: int) -> Written:
        """Replace the partition by ``rows`` (`SCENE_COLUMNS`); the same version again is fine.

        Raises `StaleVersionError` where a higher ``raw_seq`` is stored. The check and the write
        are two requests: the caller holds the key's claim.
        """
        start = time.perf_counter()
        try:
            stored = self.read_version(key)
        except LakeFileError:
            stored = None  # nothing can be read of it: writing it again is how it is mended
        if stored is not None and stored.raw_seq > raw_seq:
            raise StaleVersionError(
                f"raw version {stored.raw_seq} is stored, {raw_seq} is older",
                where=f"partition {key}, {self.store.address(self.path(key))}",
                next_step="nothing to do: the newer data stays",
            )
        info = FileInfo("partition", self.region, str(key), raw_seq)
        content = encode_geoparquet(rows, info)
        self.store.write(self.path(key), content)
        seconds = time.perf_counter() - start
        return Written(self.store.address(self.path(key)), rows.num_rows, len(content), seconds)

    def read(self, key: PartitionKey, *, columns: Sequence[str] | None = None) -> PartitionRows:
        """The partition; raises `LakeFileError` where it is missing, foreign or another key's."""
        found = self._read(key, columns=columns)
        if found is None:
            raise _missing([key], self.region)
        return found

    def read_version(self, key: PartitionKey) -> StoredVersion | None:
        """What is stored of ``key``, or None; reads the footer alone."""
        path = self.path(key)
        try:
            tail = self.store.read(path, last=_FOOTER_BYTES)
            if (needed := footer_bytes(tail)) > len(tail):
                tail = self.store.read(path, last=needed)
        except FileNotFoundError:
            return None
        where = self.store.address(path)
        info, rows = read_info(tail, where=where)
        return StoredVersion(self._check(info, key, where), rows)

    def read_day(self, day: date, tiles: Iterable[str]) -> pa.Table:
        """All rows of one UTC day in ``tiles``; a tile without a file has none."""
        return self.read_many([PartitionKey(day, tile) for tile in tiles], missing="skip")

    def read_many(
        self,
        keys: Sequence[PartitionKey],
        *,
        missing: Literal["fail", "skip"] = "fail",
        columns: Sequence[str] | None = None,
        area: Area | None = None,
    ) -> pa.Table:
        """The rows of many keys as one table, in the order of ``keys``.

        ``area`` keeps the pieces whose bbox meets it: (west, south, east, north) in lon/lat
        degrees, west > east crosses the antimeridian. Raises `LakeFileError` naming the keys
        without a file, unless they are skipped.
        """
        boxes = None if area is None else project_area(area)
        read = partial(self._read, columns=columns, boxes=boxes)
        if self.threads > 1 and len(keys) > 1:
            with ThreadPoolExecutor(self.threads) as pool:
                found = list(pool.map(read, keys))
        else:
            found = [read(key) for key in keys]
        absent = [key for key, partition in zip(keys, found, strict=True) if partition is None]
        if absent and missing == "fail":
            raise _missing(absent, self.region)
        tables = [partition.rows for partition in found if partition is not None]
        if not tables:
            empty = arrow_schema(SCENE_COLUMNS).empty_table()
            return empty if columns is None else empty.select(list(columns))
        return pa.concat_tables(tables)

    def _read(
        self,
        key: PartitionKey,
        *,
        columns: Sequence[str] | None = None,
        boxes: Sequence[Box] | None = None,
    ) -> PartitionRows | None:
        path = self.path(key)
        try:
            content = self.store.read(path)
        except FileNotFoundError:
            return None
        where = self.store.address(path)
        info, rows = decode_geoparquet(content, where=where, columns=columns, boxes=boxes)
        return PartitionRows(key, rows, self._check(info, key, where))

    def delete(self, key: PartitionKey) -> None:
        """Remove the partition's file; absent is fine."""
        self.store.delete(self.path(key))

    def _check(self, info: FileInfo, key: PartitionKey, where: str) -> int:
        if (info.region, info.key) != (self.region, str(key)) or info.raw_seq is None:
            raise LakeFileError(
                f"lake file refused: it holds {info.region}/{info.key}, not {self.region}/{key}",
                where=where,
                next_step="build its key again: `backfill launch --states all --keys …`",
            )
        return info.raw_seq


def _missing(keys: Sequence[PartitionKey], region: str) -> LakeFileError:
    some = ", ".join(map(str, keys[:5])) + (" …" if len(keys) > 5 else "")
    return LakeFileError(
        f"no lake file for {len(keys)} partition(s): {some}",
        where=f"region {region}",
        next_step="materialize them first: scene-pipeline backfill launch",
    )
