"""Retention: whole days are given up, and say so ever after; and what nothing refers to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date, datetime, timedelta

import sqlalchemy as sa

from scene_pipeline.errors import DataError
from scene_pipeline.ingest.registry import lock_region
from scene_pipeline.lake.layout import segment_path
from scene_pipeline.lake.store import ObjectStore, StoredObject
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import reading, transact

__all__ = [
    "close_rows",
    "expire_raw",
    "find_orphans",
    "first_kept_raw_day",
    "first_kept_row_day",
    "orphans_until",
    "read_needed_day",
    "read_retention",
    "read_segment_paths",
    "require_kept_rows",
]

# A page's file is written before its commit: what is younger may be one that is being committed.
_GRACE = timedelta(days=1)


def first_kept_raw_day(
    covered: date | None, *, raw_days: int, rescan_days: int, needed: date | None
) -> date | None:
    """The first day whose raw scenes stay; None: nothing is given up.

    ``covered`` is the newest covered day. The window that rescans compare with stays, and so
    does everything from ``needed`` on: the oldest day that something is yet to be made of.
    """
    if covered is None or raw_days == 0:
        return None
    first = covered - timedelta(days=max(raw_days, rescan_days) - 1)
    return first if needed is None else min(first, needed)


def first_kept_row_day(covered: date | None, *, table_months: int) -> date | None:
    """The first day of the oldest month whose rows stay, the covered day's month being one."""
    if covered is None or table_months == 0:
        return None
    months = covered.year * 12 + covered.month - table_months
    return date(months // 12, months % 12 + 1, 1)


def read_retention(engine: sa.Engine, region: str) -> tuple[date | None, date | None]:
    """The first days whose raw scenes and whose rows were kept so far."""
    column = t.regions.c
    with reading(engine) as connection:
        row = connection.execute(
            sa.select(column.raw_from, column.rows_from).where(column.region == region)
        ).one_or_none()
    return (row.raw_from, row.rows_from) if row else (None, None)


def read_needed_day(engine: sa.Engine, region: str) -> date | None:
    """The oldest day that changed since it was built, or that a new grid has yet to place."""
    dirty, segment, routing = t.reopened.c, t.segments.c, t.routings.c
    newest = (
        sa.select(sa.func.max(routing.generation)).where(routing.region == region).scalar_subquery()
    )
    queries = (
        sa.select(sa.func.min(dirty.day)).where(dirty.region == region),
        sa.select(sa.func.min(segment.first_day)).where(
            segment.region == region, segment.routing < newest, segment.expired_at.is_(None)
        ),
    )
    with reading(engine) as connection:
        days = [connection.execute(query).scalar() for query in queries]
    return min((day for day in days if day is not None), default=None)


def expire_raw(
    engine: sa.Engine, store: ObjectStore, region: str, *, before: date, now: datetime
) -> int:
    """Remove the raw scenes of the days before ``before``; returns how many segments are gone.

    Receipts and the registry stay, so that nothing comes twice. The days are closed before a
    file is deleted: a reader is refused by name, never given less than there was. A segment that
    also holds a kept day stays.
    """
    column = t.segments.c

    def work(connection: sa.Connection) -> list[str]:
        kept = lock_region(connection, region).raw_from
        connection.execute(
            t.regions.update()
            .where(t.regions.c.region == region)
            .values(raw_from=max(before, kept or before))
        )
        gone = connection.execute(
            t.segments.update()
            .where(column.region == region, column.last_day < before, column.expired_at.is_(None))
            .values(expired_at=now)
            .returning(column.digest)
        )
        return list(gone.scalars())

    digests = transact(engine, work)
    for digest in digests:
        store.delete(segment_path(region, digest))
    return len(digests)


def close_rows(engine: sa.Engine, region: str, *, before: date) -> None:
    """From now on the table takes no rows of the days before ``before``."""

    def work(connection: sa.Connection) -> None:
        kept = lock_region(connection, region).rows_from
        connection.execute(
            t.regions.update()
            .where(t.regions.c.region == region)
            .values(rows_from=max(before, kept or before))
        )

    transact(engine, work)


def require_kept_rows(rows_from: date | None, day: date, *, region: str) -> None:
    """Raise `DataError` for a day whose rows were removed: putting some back would be a lie."""
    if rows_from is not None and day < rows_from:
        raise DataError(
            f"the rows of {day} were removed: retention keeps them from {rows_from}",
            where=f"region {region}",
            next_step="its GeoParquet files are still there; read those",
        )


def orphans_until(engine: sa.Engine, region: str) -> datetime | None:
    """The instant before which a file that no page refers to will never be referred to.

    A page's file is written first. If the process is killed then, the next ingest brings the
    same page, and with it, often, the same file. So every member must have moved on since; None
    where one never has.
    """
    column = t.streams.c
    with reading(engine) as connection:
        moved: list[datetime | None] = list(
            connection.execute(
                sa.select(column.last_page_at).where(
                    column.region == region, column.state == "member"
                )
            ).scalars()
        )
    known = [at for at in moved if at is not None]
    return min(known) - _GRACE if known and len(known) == len(moved) else None


def find_orphans(
    found: Iterable[StoredObject], kept: Collection[str], *, before: datetime
) -> list[StoredObject]:
    """Raw segments outside ``kept`` (paths), temporary files and probes, older than ``before``."""
    return [
        each
        for each in found
        if each.modified_at < before and each.path not in kept and _is_ours(each.path)
    ]


def _is_ours(path: str) -> bool:
    _, folder, *_ = (*path.split("/"), "")
    name = path.rpartition("/")[2]
    is_segment = folder == "raw" and name.endswith(".parquet")
    is_unfinished = name.startswith(".") and name.endswith(".part")
    return is_segment or is_unfinished or folder.startswith("doctor-")


def read_segment_paths(engine: sa.Engine, region: str) -> set[str]:
    """Paths of the segments that pages refer to."""
    column = t.segments.c
    with reading(engine) as connection:
        digests = connection.execute(
            sa.select(column.digest).where(column.region == region, column.expired_at.is_(None))
        ).scalars()
        return {segment_path(region, digest) for digest in digests}
