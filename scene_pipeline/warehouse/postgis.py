"""The PostGIS warehouse: one partition replaced in one transaction, by any number of writers.

Why the table is right under concurrency, at READ COMMITTED:

- An advisory lock on (schema, region, key) lets one transaction at a time replace a partition, so
  its delete sees what the other committed.
- ``partition_versions`` refuses a lower raw version under that lock.
- Two partitions of different days can hold one Item, when it has moved. Before it commits, each
  transaction takes a lock of the whole region for the few milliseconds of one question: does any
  other day hold one of my Items? Whoever is second sees the first one's rows.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import psycopg
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.engine import URL

from scene_pipeline.errors import MigrationError, ScenePipelineError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.schema import GEOMETRY
from scene_pipeline.warehouse.encode import copy_rows
from scene_pipeline.warehouse.faults import (
    database_error_of,
    passes_by_itself,
    retry_within,
    translate_error,
)
from scene_pipeline.warehouse.port import PartitionRows, Replaced, TableVersion
from scene_pipeline.warehouse.rows import (
    GEOMETRY_COLUMN,
    TABLE_COLUMNS,
    MovedRow,
    build_rows,
    check_rows,
    describe_place,
    refuse_older_items,
    refuse_older_version,
    require_count,
)
from scene_pipeline.warehouse.tables import REVISION, build_tables

__all__ = ["PostGISWarehouse"]

# A backend caches 64 subtransactions; beyond them every reader has to look up which are done.
_KEYS_A_TRANSACTION = 60
_KEYS_A_QUERY = 5000
_CONNECT_ARGS = {
    "application_name": "scene-pipeline",
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


class PostGISWarehouse:
    """One region's partitions in one schema of a PostGIS database.

    A process is one writer: its threads take turns. A connection lasts for one transaction, since
    the role's limit is meant to count writers at work and not idle pools. ``reader_url`` serves
    the reads, so that checks need no writer's place; None reads as the writer.
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
        self._tables = build_tables(schema)
        self._writer = _create_engine(url)
        self._reader = _create_engine(reader_url) if reader_url else self._writer
        self._turn = threading.Lock()
        self._is_checked = False

    def __repr__(self) -> str:
        shown = self._url.render_as_string(hide_password=True)
        return f"PostGISWarehouse({shown!r}, schema={self.schema!r}, region={self.region!r})"

    def replace(self, partition: PartitionRows) -> Replaced:
        """See `Warehouse.replace`."""
        rows = check_rows(partition, region=self.region)
        where = describe_place(self.region, partition.key)
        began = time.perf_counter()

        def attempt() -> int:
            with self._transaction(where) as connection:
                deleted = self._write(connection, partition, rows)
                self._lock(connection, None)
                self._take_from_other_days(connection, partition.key)
                return deleted

        with self._turn:
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
        outcomes: list[Replaced | tuple[PartitionKey, Exception] | None]
        try:
            with self._turn, self._transaction(f"{len(chunk)} partitions") as connection:
                outcomes = [self._replace_in_savepoint(connection, one) for one in chunk]
                self._lock(connection, None)
                for one, outcome in zip(chunk, outcomes, strict=True):
                    if isinstance(outcome, Replaced) and self._find_moved(connection, one.key):
                        raise _MovedMeanwhileError
        except (psycopg.Error, sa.exc.DBAPIError, _MovedMeanwhileError):
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
        self, connection: sa.Connection, partition: PartitionRows
    ) -> Replaced | tuple[PartitionKey, Exception] | None:
        """The key's outcome if the transaction commits; None: try it again on its own."""
        began = time.perf_counter()
        where = describe_place(self.region, partition.key)
        try:
            rows = check_rows(partition, region=self.region)
            with connection.begin_nested():
                deleted = self._write(connection, partition, rows)
                self._take_from_other_days(connection, partition.key)
        except ScenePipelineError as error:
            return partition.key, error
        except (psycopg.Error, sa.exc.DBAPIError) as error:
            cause = database_error_of(error)
            if cause is None or connection.invalidated or connection.closed:
                raise
            if passes_by_itself(cause):
                return None
            return partition.key, translate_error(cause, where=where)
        return Replaced(partition.key, deleted, rows.num_rows, time.perf_counter() - began)

    def _write(self, connection: sa.Connection, partition: PartitionRows, rows: pa.Table) -> int:
        """Lock, compare versions, delete, copy, count; returns the rows deleted."""
        key, footprints = partition.key, self._tables.footprints
        self._lock(connection, key)
        self._store_version(connection, partition, rows.num_rows)
        here = self._is_here(footprints, key)
        deleted = connection.execute(sa.delete(footprints).where(here)).rowcount
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)  # noqa: S101 - the engine is ours
        copied = copy_rows(driver, rows, footprints)
        require_count(copied, rows.num_rows, region=self.region, key=key)
        found = connection.scalar(sa.select(sa.func.count()).select_from(footprints).where(here))
        require_count(found or 0, rows.num_rows, region=self.region, key=key)
        return deleted

    def _lock(self, connection: sa.Connection, key: PartitionKey | None) -> None:
        """Hold the key's lock (None: the region's) until the transaction ends."""
        numbers = lock_numbers(self.schema, self.region, key)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(*numbers)))

    def _store_version(
        self, connection: sa.Connection, partition: PartitionRows, row_count: int
    ) -> None:
        versions = self._tables.versions
        insert = pg.insert(versions).values(
            region=self.region,
            acq_date=partition.key.day,
            tile=partition.key.tile,
            raw_seq=partition.raw_seq,
            row_count=row_count,
        )
        changed = {name: insert.excluded[name] for name in ("raw_seq", "row_count")}
        upsert = insert.on_conflict_do_update(
            constraint=versions.primary_key,
            set_={**changed, "replaced_at": sa.func.now()},
            where=versions.c.raw_seq <= insert.excluded.raw_seq,
        ).returning(versions.c.raw_seq)
        if connection.scalar(upsert) is not None:
            return
        here = self._is_here(versions, partition.key)
        stored = connection.scalar(sa.select(versions.c.raw_seq).where(here))
        refuse_older_version(int(stored or 0), partition, region=self.region)

    def _find_moved(self, connection: sa.Connection, key: PartitionKey) -> list[MovedRow]:
        """Rows of other days that hold Items of ``key``; normally there are none."""
        new, other = self._tables.footprints.alias("new"), self._tables.footprints.alias("other")
        is_same_item = sa.and_(
            other.c.region == new.c.region,
            other.c.collection == new.c.collection,
            other.c.item_id == new.c.item_id,
            other.c.acq_date != new.c.acq_date,
        )
        is_newer = sa.func.coalesce(other.c.updated_at > new.c.updated_at, sa.false())
        columns = other.c.acq_date, other.c.tile, other.c.collection, other.c.item_id, is_newer
        query = sa.select(*columns).select_from(new).join(other, is_same_item)
        return [MovedRow(*row) for row in connection.execute(query.where(self._is_here(new, key)))]

    def _take_from_other_days(self, connection: sa.Connection, key: PartitionKey) -> None:
        moved = self._find_moved(connection, key)
        refuse_older_items(moved, key, region=self.region)
        footprints, versions = self._tables.footprints, self._tables.versions
        for row in moved:
            connection.execute(
                sa.delete(footprints).where(
                    self._is_here(footprints, PartitionKey(row.day, row.tile)),
                    footprints.c.collection == row.collection,
                    footprints.c.item_id == row.item_id,
                )
            )
        for place, taken in sorted(
            Counter(PartitionKey(row.day, row.tile) for row in moved).items()
        ):
            connection.execute(
                sa.update(versions)
                .where(self._is_here(versions, place))
                .values(row_count=versions.c.row_count - taken)
            )

    def read(self, key: PartitionKey) -> pa.Table:
        """See `Warehouse.read`."""
        footprints = self._tables.footprints
        # As text: properties in full and geometry as hexadecimal EWKB, without a PostGIS function
        # that would have to be found on some search path.
        columns = [
            sa.type_coerce(footprints.c[GEOMETRY_COLUMN], sa.Text).label(GEOMETRY.name)
            if column is GEOMETRY
            else sa.cast(footprints.c.properties, sa.Text).label(column.name)
            if column.name == "properties"
            else footprints.c[column.name]
            for column in TABLE_COLUMNS
        ]
        query = (
            sa.select(*columns)
            .where(self._is_here(footprints, key))
            .order_by(footprints.c.collection.collate("C"), footprints.c.item_id.collate("C"))
        )
        stored = self._select(query, where=describe_place(self.region, key))
        values = zip(*stored, strict=True) if stored else [()] * len(TABLE_COLUMNS)
        named = dict(zip((column.name for column in TABLE_COLUMNS), values, strict=True))
        wkb = [bytes.fromhex(text) for text in named[GEOMETRY.name]]
        return build_rows({**named, GEOMETRY.name: wkb})

    def read_versions(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, TableVersion]:
        """See `Warehouse.read_versions`."""
        versions = self._tables.versions
        query = sa.select(
            versions.c.acq_date, versions.c.tile, versions.c.raw_seq, versions.c.row_count
        )
        return {
            PartitionKey(day, tile): TableVersion(raw_seq, rows)
            for day, tile, raw_seq, rows in self._select_by_keys(query, versions, keys)
        }

    def count_rows(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """See `Warehouse.count_rows`."""
        footprints = self._tables.footprints
        place = footprints.c.acq_date, footprints.c.tile
        query = sa.select(*place, sa.func.count()).group_by(*place)
        counted = {
            PartitionKey(day, tile): rows
            for day, tile, rows in self._select_by_keys(query, footprints, keys)
        }
        return {key: counted.get(key, 0) for key in keys}

    def _select_by_keys(
        self, query: sa.Select[tuple[object, ...]], table: sa.Table, keys: Sequence[PartitionKey]
    ) -> Iterator[sa.Row[tuple[object, ...]]]:
        for start in range(0, len(keys), _KEYS_A_QUERY):
            chunk = keys[start : start + _KEYS_A_QUERY]
            asked = (
                sa.func.unnest(
                    sa.bindparam("days", [key.day for key in chunk], pg.ARRAY(sa.Date)),
                    sa.bindparam("tiles", [key.tile for key in chunk], pg.ARRAY(sa.Text)),
                )
                .table_valued("day", "tile", name="asked")
                .render_derived()
            )
            chosen = query.join_from(
                table, asked, sa.and_(table.c.acq_date == asked.c.day, table.c.tile == asked.c.tile)
            ).where(table.c.region == self.region)
            yield from self._select(chosen, where=f"{len(keys)} partitions of {self.region}")

    def _select(
        self, query: sa.Select[tuple[object, ...]], *, where: str
    ) -> Sequence[sa.Row[tuple[object, ...]]]:
        def attempt() -> Sequence[sa.Row[tuple[object, ...]]]:
            with self._reader.connect() as connection:
                return connection.execute(query).all()

        return retry_within(self._deadline_s, attempt, where=where)[0]

    def _is_here(self, table: sa.FromClause, key: PartitionKey) -> sa.ColumnElement[bool]:
        return sa.and_(
            table.c.region == self.region,
            table.c.acq_date == key.day,
            table.c.tile == key.tile,
        )

    @contextmanager
    def _transaction(self, where: str) -> Iterator[sa.Connection]:
        """Committed at the end of the block, or rolled back; waits for locks up to the deadline."""
        with self._writer.begin() as connection:
            limit = f"{int(self._deadline_s * 1000)}ms"
            connection.execute(sa.select(sa.func.set_config("lock_timeout", limit, True)))
            if not self._is_checked:
                self._require_revision(connection, where)
            yield connection

    def _require_revision(self, connection: sa.Connection, where: str) -> None:
        found = connection.scalar(sa.select(self._tables.revision.c.version_num))
        if found != REVISION:
            raise MigrationError(
                f"schema {self.schema} is at revision {found}, this version needs {REVISION}",
                where=where,
                next_step="run `scene-pipeline migrate` as the schema's owner",
            )
        self._is_checked = True


class _MovedMeanwhileError(Exception):
    """An Item of the batch turned up in another day, committed by another writer meanwhile."""


def lock_numbers(schema: str, region: str, key: PartitionKey | None) -> tuple[int, int]:
    """Two signed 32-bit numbers, the same in every process and version of Python."""
    name = "\0".join((schema, region, str(key) if key else "")).encode()
    first, second = struct.unpack(">ii", hashlib.sha256(name).digest()[:8])
    return first, second


def _create_engine(url: URL) -> sa.Engine:
    return sa.create_engine(
        url, poolclass=sa.NullPool, connect_args=_CONNECT_ARGS, use_native_hstore=False
    )
