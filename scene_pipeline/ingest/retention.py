"""Retention of the raw lake: whole days are given up, and say so ever after."""

from __future__ import annotations

from datetime import date, datetime

import sqlalchemy as sa

from scene_pipeline.ingest.registry import lock_region
from scene_pipeline.lake.layout import segment_path
from scene_pipeline.lake.store import ObjectStore
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import transact

__all__ = ["expire_raw"]


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
