"""Generations of the tile grid, and the re-assignment of the raw lake to a new one.

A changed grid opens a new generation: new pages are placed by it at once, and the segments
placed by an earlier one are re-assigned one by one. Until all are, no frontier is published for
it, so that certificates of two generations never meet.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import shapely
import sqlalchemy as sa

from scene_pipeline.ingest.checkpoints import fingerprint
from scene_pipeline.ingest.pages import has_day, place_footprints
from scene_pipeline.ingest.registry import lock_region, select_items, settle
from scene_pipeline.lake.segments import read_segment
from scene_pipeline.scenes.footprint import repair_footprints
from scene_pipeline.scenes.keys import SceneDefinition
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import reading, transact

if TYPE_CHECKING:
    from scene_pipeline.lake.store import ObjectStore
    from scene_pipeline.scenes.grid import TileGrid

__all__ = ["read_removed_tiles", "reassign_segment"]


def read_removed_tiles(engine: sa.Engine, definition: SceneDefinition) -> frozenset[str]:
    """Tiles of earlier generations that ``definition`` has no more."""
    with reading(engine) as connection:
        rows = connection.execute(
            sa.select(t.routings.c.tiles).where(t.routings.c.region == definition.region)
        )
        earlier = {tile for row in rows for tile in row.tiles.split()}
    return frozenset(earlier - set(definition.tiles))


def fingerprint_grid(definition: SceneDefinition) -> str:
    """Tells two grids apart: what the tiles are, and which days exist."""
    days = (definition.start.isoformat(), str(definition.end))
    return fingerprint(definition.grid, *days, *definition.tiles)


_NEWEST = sa.select(sa.func.max(t.routings.c.generation)).where(
    t.routings.c.region == sa.bindparam("region")
)


def select_generation(connection: sa.Connection, region: str) -> int:
    """The newest generation; 0 for a region that never ingested."""
    return connection.execute(_NEWEST, {"region": region}).scalar() or 0


def count_unassigned(connection: sa.Connection, region: str, generation: int) -> int:
    """Segments whose Items are still placed by an earlier generation."""
    column = t.segments.c
    return int(
        connection.execute(
            sa.select(sa.func.count()).where(
                column.region == region, column.routing < generation, column.expired_at.is_(None)
            )
        ).scalar_one()
    )


def reassign_segment(
    engine: sa.Engine,
    store: ObjectStore,
    *,
    definition: SceneDefinition,
    grid: TileGrid,
    generation: int,
    now: datetime,
) -> bool:
    """Place one segment's Items by ``generation``; False where none is left to do.

    One bounded step: a kill between two steps loses nothing, and two processes may take turns.
    """
    column = t.segments.c
    region = definition.region
    with reading(engine) as connection:
        digest = connection.execute(
            sa.select(column.digest)
            .where(
                column.region == region,
                column.routing < generation,
                column.expired_at.is_(None),
            )
            .limit(1)
        ).scalar()
    if digest is None:
        return False
    tiles = _place_segment(store, definition, grid, digest)

    def work(connection: sa.Connection) -> None:
        lock_region(connection, region)
        if select_generation(connection, region) != generation:
            return
        here = sa.select(t.items.c.collection, t.items.c.item_id).where(
            t.items.c.region == region, t.items.c.segment == digest
        )
        before = select_items(connection, region, [(c, i) for c, i in connection.execute(here)])
        after = {item: replace(each, tiles=tiles[each.digest]) for item, each in before.items()}
        settle(connection, region, before=before, after=after, now=now)
        connection.execute(
            t.segments.update()
            .where(column.region == region, column.digest == digest)
            .values(routing=generation)
        )

    transact(engine, work)
    return True


def _place_segment(
    store: ObjectStore, definition: SceneDefinition, grid: TileGrid, digest: str
) -> dict[str, str]:
    """Space-separated tiles of each version in a segment, by the version's digest."""
    table = read_segment(
        store, definition.region, digest, columns=["acq_date", "digest", "geometry"]
    )
    shapes = shapely.from_wkb(table["geometry"].to_numpy(zero_copy_only=False))
    placed = place_footprints(repair_footprints(np.asarray(shapes, dtype=object)).geometry, grid)
    return {
        version: " ".join(tiles) if has_day(definition, day) else ""
        for version, day, tiles in zip(
            table["digest"].to_pylist(), table["acq_date"].to_pylist(), placed, strict=True
        )
    }
