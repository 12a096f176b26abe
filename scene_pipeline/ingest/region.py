"""What every part of ingest works on: one region's database, store, definition and grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING

import sqlalchemy as sa

from scene_pipeline.ingest.registry import upsert
from scene_pipeline.ingest.sources.base import Area
from scene_pipeline.lake.segments import SegmentRef
from scene_pipeline.lake.store import open_store
from scene_pipeline.scenes.definition import define_scenes
from scene_pipeline.scenes.grid import TileGrid, read_area
from scene_pipeline.scenes.keys import SceneDefinition
from scene_pipeline.settings import Settings
from scene_pipeline.state import tables as t

if TYPE_CHECKING:
    from scene_pipeline.lake.store import ObjectStore

__all__ = ["Region", "open_region"]


def read_clock() -> datetime:
    """Now, aware UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Region:
    """Where streams are ingested to. ``routing``: the generation by which Items are placed.

    ``first``: where every stream's history starts.
    """

    engine: sa.Engine
    store: ObjectStore
    definition: SceneDefinition
    grid: TileGrid
    area: Area
    routing: int
    first: datetime
    clock: Callable[[], datetime] = read_clock


def open_region(
    settings: Settings,
    engine: sa.Engine,
    *,
    routing: int = 0,
    clock: Callable[[], datetime] = read_clock,
) -> Region:
    """The region that the settings describe; ``routing`` is filled in by `epochs.reconcile`."""
    definition, grid = define_scenes(settings)
    return Region(
        engine=engine,
        store=open_store(settings.lake, settings.s3),
        definition=definition,
        grid=grid,
        area=read_area(settings.area),
        routing=routing,
        first=datetime.combine(settings.start_date, time(), UTC),
        clock=clock,
    )


def write_segment_row(
    connection: sa.Connection,
    region: str,
    segment: SegmentRef,
    *,
    stream: str,
    routing: int,
    now: datetime,
) -> None:
    """Make a stored segment visible."""
    days = list(segment.days)
    row = {
        "region": region,
        "digest": segment.digest,
        "stream": stream,
        "rows": segment.rows,
        "bytes": segment.bytes,
        "first_day": min(days),
        "last_day": max(days),
        "routing": routing,
        "committed_at": now,
        "expired_at": None,
    }
    # Two streams can bring the same page: the segment keeps the generation that placed it.
    upsert(connection, t.segments, [row], ("expired_at",))
