"""Reading the raw lake by partition: versions, scenes, and what changed.

The state database says which Items a (day, tile) holds and in which segment each one's winning
version is; segments are read once per batch of neighbouring keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from scene_pipeline.errors import DataError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import reading, transact
from scene_pipeline.state.keysets import match_keys

if TYPE_CHECKING:
    import pyarrow as pa

    from scene_pipeline.lake.store import ObjectStore

__all__ = [
    "RawVersion",
    "clear_reopened",
    "mark_reported",
    "read_raw_scenes",
    "read_raw_versions",
    "read_reopened",
    "read_unreported",
]

# Scenes of one batch of keys: what bounds the memory of a read.
BATCH_SCENES = 4_000


@dataclass(frozen=True, slots=True)
class RawVersion:
    """The raw version of one partition."""

    key: PartitionKey
    raw_seq: int


def read_raw_versions(
    engine: sa.Engine, region: str, keys: Iterable[PartitionKey]
) -> dict[PartitionKey, int]:
    """Raw versions of those ``keys`` that ever held a raw scene; absent means 0."""
    versions = t.raw_versions.c
    found: dict[PartitionKey, int] = {}
    with reading(engine) as connection:
        for among in _among(t.raw_versions, keys):
            rows = connection.execute(
                sa.select(versions.day, versions.tile, versions.raw_seq).where(
                    versions.region == region, among
                )
            )
            found.update({PartitionKey(day, tile): seq for day, tile, seq in rows})
    return found


def _among(table: sa.Table, keys: Iterable[PartitionKey]) -> Iterator[sa.ColumnElement[bool]]:
    return match_keys(table.c.day, table.c.tile, {(key.day, key.tile) for key in keys})


def read_reopened(engine: sa.Engine, region: str, limit: int) -> list[RawVersion]:
    """Covered partitions whose raw scenes changed since they were cleared, oldest first."""
    with reading(engine) as connection:
        rows = connection.execute(
            sa.select(t.reopened)
            .where(t.reopened.c.region == region)
            .order_by(t.reopened.c.since, t.reopened.c.day, t.reopened.c.tile)
            .limit(limit)
        )
        return [RawVersion(PartitionKey(row.day, row.tile), row.raw_seq) for row in rows]


def clear_reopened(engine: sa.Engine, region: str, versions: Iterable[RawVersion]) -> None:
    """Forget partitions that were dealt with at these versions; a newer change stays."""
    rows = [
        {"r": region, "d": each.key.day, "t": each.key.tile, "s": each.raw_seq} for each in versions
    ]
    if not rows:
        return
    dirty = t.reopened.c
    statement = t.reopened.delete().where(
        dirty.region == sa.bindparam("r"),
        dirty.day == sa.bindparam("d"),
        dirty.tile == sa.bindparam("t"),
        dirty.raw_seq <= sa.bindparam("s"),
    )
    transact(engine, lambda connection: connection.execute(statement, rows))


def read_unreported(
    engine: sa.Engine, region: str, *, through_day: date, limit: int
) -> list[RawVersion]:
    """Partitions through ``through_day`` whose newest version Dagster has not been told."""
    versions = t.raw_versions.c
    with reading(engine) as connection:
        rows = connection.execute(
            sa.select(versions.day, versions.tile, versions.raw_seq)
            .where(
                versions.region == region,
                versions.day <= through_day,
                versions.reported_seq < versions.raw_seq,
            )
            .order_by(versions.day, versions.tile)
            .limit(limit)
        )
        return [RawVersion(PartitionKey(row.day, row.tile), row.raw_seq) for row in rows]


def mark_reported(engine: sa.Engine, region: str, versions: Iterable[RawVersion]) -> None:
    """Record that these versions were reported; a higher mark is never lowered."""
    rows = [
        {"r": region, "d": each.key.day, "t": each.key.tile, "s": each.raw_seq} for each in versions
    ]
    if not rows:
        return
    versions_of = t.raw_versions.c
    statement = (
        t.raw_versions.update()
        .where(
            versions_of.region == sa.bindparam("r"),
            versions_of.day == sa.bindparam("d"),
            versions_of.tile == sa.bindparam("t"),
            versions_of.reported_seq < sa.bindparam("s"),
        )
        .values(reported_seq=sa.bindparam("s"))
    )
    transact(engine, lambda connection: connection.execute(statement, rows))


@dataclass(frozen=True, slots=True)
class _Place:
    key: PartitionKey
    item: tuple[str, str]
    digest: str
    segment: str


def read_raw_scenes(
    engine: sa.Engine, store: ObjectStore, region: str, keys: Sequence[PartitionKey]
) -> Iterator[tuple[PartitionKey, int, pa.Table]]:
    """Each key's raw version and winning scenes (`RAW_COLUMNS` without ``item``).

    Keys come in the order of their days and tiles, every one of them: a key without scenes has
    an empty table. Rows and version are of one snapshot. Raises `DataError` where retention has
    removed the raw scenes of a key, and `LakeFileError` for a damaged segment.
    """
    for batch in _batches(engine, region, sorted(set(keys))):
        yield from _read_batch(engine, store, region, batch)


def _batches(
    engine: sa.Engine, region: str, keys: Sequence[PartitionKey]
) -> Iterator[list[PartitionKey]]:
    """Neighbouring keys of at most `BATCH_SCENES` scenes together (or one key of more)."""
    placed = t.placements.c
    counts: dict[PartitionKey, int] = {}
    with reading(engine) as connection:
        for among in _among(t.placements, keys):
            rows = connection.execute(
                sa.select(placed.day, placed.tile, sa.func.count())
                .where(placed.region == region, among)
                .group_by(placed.day, placed.tile)
            )
            counts.update({PartitionKey(day, tile): count for day, tile, count in rows})
    batch: list[PartitionKey] = []
    scenes = 0
    for key in keys:
        count = counts.get(key, 0)
        if batch and scenes + count > BATCH_SCENES:
            yield batch
            batch, scenes = [], 0
        batch.append(key)
        scenes += count
    if batch:
        yield batch


def _read_batch(
    engine: sa.Engine, store: ObjectStore, region: str, keys: Sequence[PartitionKey]
) -> Iterator[tuple[PartitionKey, int, pa.Table]]:
    from scene_pipeline.scenes.schema import RAW_COLUMNS, arrow_schema

    places, versions = _read_places(engine, region, keys)
    scenes = _read_segments(store, region, places)
    rows_of: dict[PartitionKey, list[int]] = {}
    for place in places:
        rows_of.setdefault(place.key, []).append(scenes.row_of[place.item])
    empty = arrow_schema(tuple(c for c in RAW_COLUMNS if c.name != "item")).empty_table()
    for key in keys:
        rows = rows_of.get(key)
        yield key, versions.get(key, 0), scenes.table.take(sorted(rows)) if rows else empty


def _read_places(
    engine: sa.Engine, region: str, keys: Sequence[PartitionKey]
) -> tuple[list[_Place], Mapping[PartitionKey, int]]:
    placed, items = t.placements.c, t.items.c
    versions_of = t.raw_versions.c
    query = (
        sa.select(
            placed.day,
            placed.tile,
            placed.collection,
            placed.item_id,
            items.digest,
            items.segment,
        )
        .join_from(
            t.placements,
            t.items,
            sa.and_(
                items.region == placed.region,
                items.collection == placed.collection,
                items.item_id == placed.item_id,
            ),
        )
        .where(placed.region == region)
    )
    rows: list[Any] = []
    versions: dict[PartitionKey, int] = {}
    with reading(engine) as connection:
        _require_kept(connection, region, min(keys))
        for among in _among(t.placements, keys):
            rows += connection.execute(query.where(among))
        for among in _among(t.raw_versions, keys):
            found = connection.execute(
                sa.select(versions_of.day, versions_of.tile, versions_of.raw_seq).where(
                    versions_of.region == region, among
                )
            )
            versions.update({PartitionKey(day, tile): seq for day, tile, seq in found})
    places = [
        _Place(PartitionKey(r.day, r.tile), (r.collection, r.item_id), r.digest, r.segment)
        for r in rows
    ]
    return places, versions


def _require_kept(connection: sa.Connection, region: str, key: PartitionKey) -> None:
    """Retention removes whole days: an empty answer for one of them would be a lie."""
    query = sa.select(t.regions.c.raw_from).where(t.regions.c.region == region)
    raw_from = connection.execute(query).scalar()
    if raw_from is not None and key.day < raw_from:
        raise DataError(
            f"the raw scenes of {key} were removed: retention keeps them from {raw_from}",
            where=f"region {region}",
            next_step="its file and its rows stay as they are; they cannot be built again",
        )


@dataclass(frozen=True, slots=True)
class _Scenes:
    table: Any
    row_of: Mapping[tuple[str, str], int]


def _read_segments(store: ObjectStore, region: str, places: Sequence[_Place]) -> _Scenes:
    """The rows that ``places`` name, sorted; each segment is read once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from scene_pipeline.lake.segments import read_segment
    from scene_pipeline.scenes.schema import RAW_COLUMNS

    wanted: dict[str, set[str]] = {}
    for place in places:
        wanted.setdefault(place.segment, set()).add(place.digest)
    if not wanted:
        return _Scenes(None, {})
    columns = [column.name for column in RAW_COLUMNS if column.name != "item"]
    parts = []
    for segment in sorted(wanted):
        table = read_segment(store, region, segment, columns=columns)
        chosen = pc.is_in(table["digest"], value_set=pa.array(sorted(wanted[segment])))
        parts.append(table.filter(chosen))
    order = [("acq_date", "ascending"), ("collection", "ascending"), ("item_id", "ascending")]
    scenes = pa.concat_tables(parts).sort_by(order).combine_chunks()
    # By name, not by digest: an Item without a Collection is the same bytes in several of them.
    names = zip(scenes["collection"].to_pylist(), scenes["item_id"].to_pylist(), strict=True)
    return _Scenes(scenes, {name: row for row, name in enumerate(names)})
