"""The embedded warehouse: one GeoPackage, which QGIS and GDAL open as it is.

Plain ``sqlite3`` against OGC 12-128r18 (GeoPackage 1.4): GDAL would cost a second of imports and
offers no transaction over a delete and an insert. There is no R-tree, because its triggers call
functions that plain SQLite lacks, and no `current_scenes`, because uniting pieces needs them too.
The rollback journal is left as it is: a write-ahead log would make the one file three.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from scene_pipeline.errors import ScenePipelineError, TableMismatchError, WarehouseUnavailableError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.warehouse.geopackage_ddl import create_tables
from scene_pipeline.warehouse.geopackage_values import (
    STORED_COLUMNS,
    decode_rows,
    encode_rows,
    format_instant,
    parse_published,
)
from scene_pipeline.warehouse.port import PartitionRows, Replaced, TableVersion
from scene_pipeline.warehouse.rows import (
    MovedRow,
    build_rows,
    check_rows,
    describe_place,
    refuse_older_items,
    refuse_older_version,
    require_count,
)

__all__ = ["GeoPackageWarehouse"]

_KEYS_A_QUERY = 5000
_KEYS_A_TRANSACTION = 200

_NAMES = ", ".join(f'"{name}"' for name in STORED_COLUMNS)
_READ = (
    f"SELECT {_NAMES} FROM scene_footprints WHERE region = ? AND acq_date = ? AND tile = ?"
    " ORDER BY collection, item_id"
)
_INSERT = f"INSERT INTO scene_footprints ({_NAMES}) VALUES ({', '.join('?' * len(STORED_COLUMNS))})"
_DELETE = "DELETE FROM scene_footprints WHERE region = ? AND acq_date = ? AND tile = ?"
_COUNT = "SELECT count(*) FROM scene_footprints WHERE region = ? AND acq_date = ? AND tile = ?"
_VERSION = "SELECT raw_seq FROM partition_versions WHERE region = ? AND acq_date = ? AND tile = ?"
_SET_VERSION = (
    "INSERT OR REPLACE INTO partition_versions"
    " (region, acq_date, tile, raw_seq, row_count, replaced_at) VALUES (?, ?, ?, ?, ?, ?)"
)
_MOVED = """
SELECT o.acq_date, o.tile, o.collection, o.item_id, o.updated_at, o.created_at, o.microseconds,
       n.updated_at, n.created_at, n.microseconds
FROM scene_footprints n CROSS JOIN scene_footprints o
  ON o.region = n.region AND o.collection = n.collection AND o.item_id = n.item_id
WHERE n.region = ? AND n.acq_date = ? AND n.tile = ? AND o.acq_date <> n.acq_date
"""
_DELETE_MOVED = (
    "DELETE FROM scene_footprints"
    " WHERE region = ? AND acq_date = ? AND tile = ? AND collection = ? AND item_id = ?"
)
_SUBTRACT = (
    "UPDATE partition_versions SET row_count = row_count - ?"
    " WHERE region = ? AND acq_date = ? AND tile = ?"
)
_TOUCH = (
    "UPDATE gpkg_contents SET last_change = ?, min_x = NULL, min_y = NULL, max_x = NULL,"
    " max_y = NULL WHERE table_name = 'scene_footprints'"
)
_KEYS_AS_ROWS = (
    "(SELECT json_extract(value, '$[0]') AS acq_date, json_extract(value, '$[1]') AS tile"
    " FROM json_each(?))"
)


class GeoPackageWarehouse:
    """One region's partitions in a GeoPackage; one writer at a time, the others wait.

    ``deadline_s`` bounds the wait for another process's transaction.
    """

    def __init__(self, path: Path, *, region: str, deadline_s: float) -> None:
        self.path = path
        self.region = region
        self._deadline_s = deadline_s

    def __repr__(self) -> str:
        return f"GeoPackageWarehouse({str(self.path)!r}, region={self.region!r})"

    def replace(self, partition: PartitionRows) -> Replaced:
        """See `Warehouse.replace`."""
        rows = check_rows(partition, region=self.region)
        began = time.perf_counter()
        with self._transaction(describe_place(self.region, partition.key)) as connection:
            waited = time.perf_counter() - began
            deleted = self._write(connection, partition, rows)
        seconds = time.perf_counter() - began
        return Replaced(partition.key, deleted, rows.num_rows, seconds, waited)

    def replace_many(
        self, partitions: Iterable[PartitionRows]
    ) -> Iterator[Replaced | tuple[PartitionKey, Exception]]:
        """See `Warehouse.replace_many`; a savepoint a key, and one wait for the disk for many."""
        remaining = iter(partitions)
        while chunk := list(islice(remaining, _KEYS_A_TRANSACTION)):
            try:
                with self._transaction(f"{len(chunk)} partitions of {self.region}") as connection:
                    outcomes = [self._replace_in_savepoint(connection, one) for one in chunk]
            except ScenePipelineError as error:
                outcomes = [(partition.key, error) for partition in chunk]
            yield from outcomes

    def _replace_in_savepoint(
        self, connection: sqlite3.Connection, partition: PartitionRows
    ) -> Replaced | tuple[PartitionKey, Exception]:
        began = time.perf_counter()
        connection.execute("SAVEPOINT one_key")
        try:
            with self._translating(describe_place(self.region, partition.key)):
                rows = check_rows(partition, region=self.region)
                deleted = self._write(connection, partition, rows)
        except ScenePipelineError as error:
            connection.execute("ROLLBACK TO one_key")
            return partition.key, error
        finally:
            connection.execute("RELEASE one_key")
        return Replaced(partition.key, deleted, rows.num_rows, time.perf_counter() - began)

    def remove_before(self, day: date) -> int:
        """See `Warehouse.remove_before`; one transaction, because nobody else writes."""
        earlier = (self.region, day.isoformat())
        removed = 0
        with self._transaction(f"rows before {day} of region {self.region}") as connection:
            for table in ("partition_versions", "scene_footprints"):
                statement = f"DELETE FROM {table} WHERE region = ? AND acq_date < ?"
                removed = connection.execute(statement, earlier).rowcount
            connection.execute(_TOUCH, (format_instant(datetime.now(UTC)),))
        return removed

    def read(self, key: PartitionKey) -> pa.Table:
        """See `Warehouse.read`."""
        stored = self._select(_READ, self._place(key), describe_place(self.region, key))
        return build_rows(decode_rows(stored))

    def read_versions(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, TableVersion]:
        """See `Warehouse.read_versions`."""
        query = (
            f"SELECT v.acq_date, v.tile, v.raw_seq, v.row_count FROM {_KEYS_AS_ROWS} k"
            " CROSS JOIN partition_versions v"
            " ON v.region = ? AND v.acq_date = k.acq_date AND v.tile = k.tile"
        )
        return {
            PartitionKey(date.fromisoformat(day), tile): TableVersion(raw_seq, rows)
            for day, tile, raw_seq, rows in self._select_by_keys(query, keys)
        }

    def count_rows(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """See `Warehouse.count_rows`."""
        query = (
            f"SELECT k.acq_date, k.tile, count(*) FROM {_KEYS_AS_ROWS} k"
            " CROSS JOIN scene_footprints s"
            " ON s.region = ? AND s.acq_date = k.acq_date AND s.tile = k.tile GROUP BY 1, 2"
        )
        counted = {
            PartitionKey(date.fromisoformat(day), tile): rows
            for day, tile, rows in self._select_by_keys(query, keys)
        }
        return {key: counted.get(key, 0) for key in keys}

    def _select_by_keys(self, query: str, keys: Sequence[PartitionKey]) -> Iterator[Any]:
        for start in range(0, len(keys), _KEYS_A_QUERY):
            chunk = keys[start : start + _KEYS_A_QUERY]
            listed = json.dumps([[key.day.isoformat(), key.tile] for key in chunk])
            where = f"{len(keys)} partitions of region {self.region}"
            yield from self._select(query, (listed, self.region), where)

    def _place(self, key: PartitionKey) -> tuple[str, str, str]:
        return self.region, key.day.isoformat(), key.tile

    def _write(
        self, connection: sqlite3.Connection, partition: PartitionRows, rows: pa.Table
    ) -> int:
        place = self._place(partition.key)
        stored = connection.execute(_VERSION, place).fetchone()
        if stored:
            refuse_older_version(stored[0], partition, region=self.region)
        deleted = connection.execute(_DELETE, place).rowcount
        connection.executemany(_INSERT, encode_rows(rows))
        (found,) = connection.execute(_COUNT, place).fetchone()
        require_count(found, rows.num_rows, region=self.region, key=partition.key)
        self._take_from_other_days(connection, partition.key)
        now = format_instant(datetime.now(UTC))
        connection.execute(_SET_VERSION, (*place, partition.raw_seq, rows.num_rows, now))
        connection.execute(_TOUCH, (now,))
        return deleted

    def _take_from_other_days(self, connection: sqlite3.Connection, key: PartitionKey) -> None:
        moved = []
        for day, tile, collection, item_id, *times in connection.execute(_MOVED, self._place(key)):
            theirs, ours = parse_published(*times[:3]), parse_published(*times[3:])
            is_newer = theirs is not None and ours is not None and theirs > ours
            moved.append(MovedRow(date.fromisoformat(day), tile, collection, item_id, is_newer))
        refuse_older_items(moved, key, region=self.region)
        for row in moved:
            place = self._place(PartitionKey(row.day, row.tile))
            connection.execute(_DELETE_MOVED, (*place, row.collection, row.item_id))
        for other, taken in Counter(PartitionKey(row.day, row.tile) for row in moved).items():
            connection.execute(_SUBTRACT, (taken, *self._place(other)))

    @contextmanager
    def _transaction(self, where: str) -> Iterator[sqlite3.Connection]:
        """Committed at the end of the block, or rolled back; creates the file if need be."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._connection(where) as connection:
            # IMMEDIATE takes the write lock now: two readers that both turn into writers would
            # fail at once instead of waiting.
            connection.execute("BEGIN IMMEDIATE")
            try:
                create_tables(connection)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite ends it itself when the disk is full
                    connection.execute("ROLLBACK")
                raise

    def _select(self, query: str, parameters: tuple[str, ...], where: str) -> list[Any]:
        if not self.path.exists() or not self.path.stat().st_size:
            return []  # nothing was ever written; a read creates nothing
        with self._connection(where) as connection:
            return connection.execute(query, parameters).fetchall()

    @contextmanager
    def _connection(self, where: str) -> Iterator[sqlite3.Connection]:
        with self._translating(where):
            connection = sqlite3.connect(self.path, timeout=self._deadline_s, isolation_level=None)
            try:
                yield connection
            finally:
                connection.close()

    @contextmanager
    def _translating(self, where: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise WarehouseUnavailableError(
                f"{self.path}: {error}",
                where=where,
                next_step=f"another writer held the file for over {self._deadline_s:g} s, or it"
                " cannot be written; nothing was changed",
            ) from error
        except sqlite3.DatabaseError as error:
            raise TableMismatchError(
                f"{self.path}: {error}",
                where=where,
                next_step="rebuild the partition; if the file is no GeoPackage of ours, move it",
            ) from error
