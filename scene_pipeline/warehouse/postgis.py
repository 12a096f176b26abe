"""The PostGIS warehouse: one partition replaced in one transaction, by any number of writers.

Why the table is right under concurrency, at READ COMMITTED:

- An advisory lock on (schema, region, key) lets one transaction at a time replace a partition, so
  its delete sees what the other committed.
- ``partition_versions`` refuses a lower raw version under that lock.
- Two partitions of different days can hold one Item, when it has moved. A transaction that brings
  Items which its partition did not hold takes, at its end, a lock of the whole region for the few
  milliseconds of one question: does another day hold one of my Items? Whoever is second sees the
  rows of the first. Items that were there already have no rows elsewhere, by induction.
"""

from __future__ import annotations

import hashlib
import struct
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from itertools import islice
from typing import Any

import psycopg
import pyarrow as pa
from sqlalchemy.engine import URL

from scene_pipeline.errors import MigrationError, ScenePipelineError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.schema import GEOMETRY
from scene_pipeline.warehouse.encode import copy_rows
from scene_pipeline.warehouse.faults import (
    passes_by_itself,
    retry_within,
    translate_error,
)
from scene_pipeline.warehouse.port import PartitionRows, Replaced, TableVersion
from scene_pipeline.warehouse.rows import (
    TABLE_COLUMNS,
    MovedRow,
    build_rows,
    check_rows,
    describe_place,
    refuse_older_items,
    refuse_older_version,
    require_count,
)
from scene_pipeline.warehouse.session import Session
from scene_pipeline.warehouse.statements import LOCK, build_statements
from scene_pipeline.warehouse.tables import REVISION

__all__ = ["PostGISWarehouse"]

# A backend caches 64 subtransactions; beyond them every reader has to look up which are done.
_KEYS_A_TRANSACTION = 60
_KEYS_A_QUERY = 5000


class PostGISWarehouse:
    """One region's partitions in one schema of a PostGIS database.

    A process is one writer: its threads take turns at one connection (`session`). ``reader_url``
    serves the reads, so that checks need no writer's place; None reads as the writer.
    """

    def __init__(
        self,
        url: URL,
        *,
        schema: str,
        region: str,
        deadline_s: float,
        reader_url: URL | None = None,
    ) -> None:
        self.region = region
        self.schema = schema
        self._url = url
        self._deadline_s = deadline_s
        self._sql = build_statements(schema)
        self._writer = Session(url, deadline_s=deadline_s)
        self._reader = Session(reader_url, deadline_s=deadline_s) if reader_url else self._writer
        self._is_checked = False
        for session in {self._writer, self._reader}:
            weakref.finalize(self, session.close)

    def __repr__(self) -> str:
        shown = self._url.render_as_string(hide_password=True)
        return f"PostGISWarehouse({shown!r}, schema={self.schema!r}, region={self.region!r})"

    def replace(self, partition: PartitionRows) -> Replaced:
        """See `Warehouse.replace`."""
        rows = check_rows(partition, region=self.region)
        where = describe_place(self.region, partition.key)
        began = time.perf_counter()

        def attempt() -> int:
            with self._transaction(self._writer, where) as connection:
                deleted, has_newcomers = self._write(connection, partition, rows)
                if has_newcomers:
                    self._lock(connection, None)
                    self._take_from_other_days(connection, partition.key)
                return deleted

        deleted, waited = retry_within(self._deadline_s, attempt, where=where)
        seconds = time.perf_counter() - began
        return Replaced(partition.key, deleted, rows.num_rows, seconds, waited)

    def replace_many(
        self, partitions: Iterable[PartitionRows]
    ) -> Iterator[Replaced | tuple[PartitionKey, Exception]]:
        """See `Warehouse.replace_many`; a savepoint a key, sorted keys, few transactions."""
        remaining = iter(partitions)
        while chunk := list(islice(remaining, _KEYS_A_TRANSACTION)):
            yield from self._replace_chunk(sorted(chunk, key=lambda partition: partition.key))

    def _replace_chunk(
        self, chunk: list[PartitionRows]
    ) -> Iterator[Replaced | tuple[PartitionKey, Exception]]:
        where = f"{len(chunk)} partitions of region {self.region}"
        outcomes: list[Replaced | tuple[PartitionKey, Exception] | None]
        to_check: list[PartitionKey] = []
        try:
            with self._transaction(self._writer, where) as connection:
                outcomes = [self._replace_in_savepoint(connection, one, to_check) for one in chunk]
                if to_check:
                    self._lock(connection, None)
                    if any(self._find_moved(connection, key) for key in to_check):
                        raise _MovedItemError
        except (psycopg.Error, _MovedItemError):
            # The transaction is gone as a whole, whatever the reason: each key tells its own.
            outcomes = [None] * len(chunk)
        for one, outcome in zip(chunk, outcomes, strict=True):
            if outcome is not None:
                yield outcome
                continue
            try:
                yield self.replace(one)
            except ScenePipelineError as error:
                yield one.key, error

    def _replace_in_savepoint(
        self, connection: psycopg.Connection, partition: PartitionRows, to_check: list[PartitionKey]
    ) -> Replaced | tuple[PartitionKey, Exception] | None:
        """The key's outcome if the transaction commits; None: try it again on its own.

        Adds the key to ``to_check`` if it has newcomers.
        """
        began = time.perf_counter()
        where = describe_place(self.region, partition.key)
        try:
            rows = check_rows(partition, region=self.region)
            with connection.transaction():
                deleted, has_newcomers = self._write(connection, partition, rows)
        except ScenePipelineError as error:
            return partition.key, error
        except psycopg.Error as error:
            if connection.closed:
                raise
            if passes_by_itself(error):
                return None
            return partition.key, translate_error(error, where=where)
        if has_newcomers:
            to_check.append(partition.key)
        return Replaced(partition.key, deleted, rows.num_rows, time.perf_counter() - began)

    def _write(
        self, connection: psycopg.Connection, partition: PartitionRows, rows: pa.Table
    ) -> tuple[int, bool]:
        """Lock, compare versions, delete, copy, count.

        Returns how many rows were deleted, and whether the new rows hold Items that were not
        among them: only those can have rows in another day.
        """
        place = self._place(partition.key)
        version = {"raw_seq": partition.raw_seq, "row_count": rows.num_rows}
        self._lock(connection, partition.key)
        if connection.execute(self._sql.store_version, {**place, **version}).fetchone() is None:
            (stored,) = connection.execute(self._sql.read_version, place).fetchone() or (0,)
            refuse_older_version(stored, partition, region=self.region)
        gone = connection.execute(self._sql.delete, place).fetchall()
        copied = copy_rows(connection, rows, schema=self.schema)
        require_count(copied, rows.num_rows, region=self.region, key=partition.key)
        items = zip(rows["collection"].to_pylist(), rows["item_id"].to_pylist(), strict=True)
        return len(gone), not set(items).issubset(gone)

    def _lock(self, connection: psycopg.Connection, key: PartitionKey | None) -> None:
        """Hold the key's lock (None: the region's) until the transaction ends."""
        connection.execute(LOCK, lock_numbers(self.schema, self.region, key))

    def _find_moved(self, connection: psycopg.Connection, key: PartitionKey) -> list[MovedRow]:
        """Rows of other days that hold Items of ``key``; normally there are none."""
        found = connection.execute(self._sql.find_moved, self._place(key))
        return [MovedRow(*row) for row in found]

    def _take_from_other_days(self, connection: psycopg.Connection, key: PartitionKey) -> None:
        # Again until there is none: a row that another transaction replaces meanwhile is gone
        # when its turn comes, and its successor shows only in a new snapshot.
        while moved := self._find_moved(connection, key):
            refuse_older_items(moved, key, region=self.region)
            for other in sorted({PartitionKey(row.day, row.tile) for row in moved}):
                there = [row for row in moved if (row.day, row.tile) == (other.day, other.tile)]
                items = {
                    "collections": [row.collection for row in there],
                    "items": [row.item_id for row in there],
                }
                place = self._place(other)
                # The version first, as every writer of that partition does.
                connection.execute(self._sql.hold_version, place)
                taken = connection.execute(self._sql.delete_items, {**place, **items}).rowcount
                # It no longer holds what its version says; the row count shows it.
                connection.execute(self._sql.subtract, {**place, "taken": taken})

    def remove_before(self, day: date) -> int:
        """See `Warehouse.remove_before`."""
        where = f"rows before {day} of region {self.region}"
        asked = {"region": self.region, "before": day}

        def attempt(query: str) -> int:
            with self._transaction(self._writer, where) as connection:
                return connection.execute(query, asked).rowcount

        def run(query: str) -> int:
            return retry_within(self._deadline_s, lambda: attempt(query), where=where)[0]

        removed = 0
        while month := run(self._sql.delete_month):
            removed += month
        run(self._sql.forget_before)
        return removed

    def read(self, key: PartitionKey) -> pa.Table:
        """See `Warehouse.read`."""
        where = describe_place(self.region, key)
        stored = self._select(self._sql.read, self._place(key), where=where)
        values = zip(*stored, strict=True) if stored else [()] * len(TABLE_COLUMNS)
        named = dict(zip((column.name for column in TABLE_COLUMNS), values, strict=True))
        wkb = [bytes.fromhex(text) for text in named[GEOMETRY.name]]
        return build_rows({**named, GEOMETRY.name: wkb})

    def read_versions(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, TableVersion]:
        """See `Warehouse.read_versions`."""
        return {
            PartitionKey(day, tile): TableVersion(raw_seq, rows)
            for day, tile, raw_seq, rows in self._select_by_keys(self._sql.read_versions, keys)
        }

    def count_rows(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """See `Warehouse.count_rows`."""
        counted = {
            PartitionKey(day, tile): rows
            for day, tile, rows in self._select_by_keys(self._sql.count_rows, keys)
        }
        return {key: counted.get(key, 0) for key in keys}

    def _select_by_keys(self, query: str, keys: Sequence[PartitionKey]) -> Iterator[Any]:
        where = f"{len(keys)} partitions of region {self.region}"
        for start in range(0, len(keys), _KEYS_A_QUERY):
            chunk = keys[start : start + _KEYS_A_QUERY]
            asked = {"days": [key.day for key in chunk], "tiles": [key.tile for key in chunk]}
            yield from self._select(query, {"region": self.region, **asked}, where=where)

    def _select(self, query: str, parameters: dict[str, Any], *, where: str) -> Sequence[Any]:
        def attempt() -> Sequence[Any]:
            with self._transaction(self._reader, where) as connection:
                return connection.execute(query, parameters).fetchall()

        return retry_within(self._deadline_s, attempt, where=where)[0]

    def _place(self, key: PartitionKey) -> dict[str, Any]:
        return {"region": self.region, "day": key.day, "tile": key.tile}

    @contextmanager
    def _transaction(self, session: Session, where: str) -> Iterator[psycopg.Connection]:
        with session.transaction() as connection:
            if not self._is_checked:
                _require_revision(connection, self._sql.revision, schema=self.schema, where=where)
                self._is_checked = True
            yield connection


def _require_revision(
    connection: psycopg.Connection, query: str, *, schema: str, where: str
) -> None:
    row = connection.execute(query, ()).fetchone()
    if row != (REVISION,):
        raise MigrationError(
            f"schema {schema} is at revision {row[0] if row else None}, this version needs"
            f" {REVISION}",
            where=where,
            next_step="run `scene-pipeline migrate` as the schema's owner",
        )


def lock_numbers(schema: str, region: str, key: PartitionKey | None) -> tuple[int, int]:
    """Two signed 32-bit numbers, the same in every process and version of Python."""
    name = "\0".join((schema, region, str(key) if key else "")).encode()
    first, second = struct.unpack(">ii", hashlib.sha256(name).digest()[:8])
    return first, second


class _MovedItemError(Exception):
    """An Item of the batch has rows in another day: its key is better replaced on its own."""
