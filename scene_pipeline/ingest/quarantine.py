"""Unusable Items: seen, released by an operator, or tried again with today's code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import sqlalchemy as sa

from scene_pipeline.ingest.landing import Arrival, find_news, land, select_receipts
from scene_pipeline.ingest.pages import PreparedPage, prepare_page
from scene_pipeline.ingest.region import Region, write_segment_row
from scene_pipeline.ingest.registry import lock_region
from scene_pipeline.lake.segments import write_segment
from scene_pipeline.scenes.item import HALF_EARTH_KM2, scenes_to_table
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import reading, transact

__all__ = [
    "QuarantinedItem",
    "count_quarantine",
    "list_quarantine",
    "release_quarantine",
    "retry_quarantine",
]

QuarantineState = Literal["quarantined", "held", "released", "replaced"]
OPEN: tuple[QuarantineState, ...] = ("quarantined", "held")


@dataclass(frozen=True, slots=True)
class QuarantinedItem:
    """An unusable Item, whole; ``page`` is the page of ``traversal`` that brought it.

    ``held``: its stream waits for an operator. ``replaced``: a usable version has landed.
    """

    stream: str
    collection: str
    item_id: str
    digest: str
    state: QuarantineState
    reason: str
    explanation: str
    item: str
    traversal: int | None
    page: int | None
    first_at: datetime
    note: str | None


def list_quarantine(
    engine: sa.Engine,
    region: str,
    *,
    stream: str | None = None,
    reason: str | None = None,
    item_id: str | None = None,
    states: Iterable[QuarantineState] = OPEN,
    limit: int = 1000,
) -> list[QuarantinedItem]:
    """Items in quarantine, oldest first."""
    names = QuarantinedItem.__slots__
    query = sa.select(*(t.quarantine.c[name] for name in names)).where(
        *_choose(region, stream, reason, item_id, states)
    )
    ordered = query.order_by(t.quarantine.c.first_at, t.quarantine.c.item_id).limit(limit)
    with reading(engine) as connection:
        return [QuarantinedItem(*row) for row in connection.execute(ordered)]


def count_quarantine(engine: sa.Engine, region: str) -> Mapping[tuple[str, str], int]:
    """Open Items by (stream, reason)."""
    column = t.quarantine.c
    query = sa.select(column.stream, column.reason, sa.func.count()).where(
        *_choose(region, None, None, None, OPEN)
    )
    with reading(engine) as connection:
        rows = connection.execute(query.group_by(column.stream, column.reason))
        return {(stream, reason): count for stream, reason, count in rows}


def release_quarantine(
    engine: sa.Engine,
    region: str,
    *,
    note: str,
    now: datetime,
    stream: str | None = None,
    reason: str | None = None,
    item_id: str | None = None,
) -> int:
    """Accept that these Items never land; a stream that they held moves on with its next run."""
    statement = (
        t.quarantine.update()
        .where(*_choose(region, stream, reason, item_id, OPEN))
        .values(state="released", decided_at=now, note=note)
    )
    return transact(engine, lambda connection: connection.execute(statement).rowcount)


def retry_quarantine(
    region: Region,
    *,
    stream: str | None = None,
    reason: str | None = None,
    item_id: str | None = None,
    max_area_km2: Mapping[str, float] | None = None,
) -> tuple[int, int]:
    """Parse these Items again: (how many landed or are outside, how many are still unusable).

    ``max_area_km2``: the bound of footprints by stream.
    """
    bounds = max_area_km2 or {}
    name = region.definition.region
    waiting = list_quarantine(
        region.engine, name, stream=stream, reason=reason, item_id=item_id, limit=100_000
    )
    landed = 0
    for each in waiting:
        prepared = prepare_page(
            [json.loads(each.item)] if each.item.startswith("{") else [],
            definition=region.definition,
            grid=region.grid,
            routing=region.routing,
            collection=each.collection,
            now=region.clock(),
            max_area_km2=bounds.get(each.stream, HALF_EARTH_KM2),
        )
        if prepared.landings:
            _land(region, each, prepared)
            landed += 1
    return landed, len(waiting) - landed


def _land(region: Region, each: QuarantinedItem, prepared: PreparedPage) -> None:
    name, now = region.definition.region, region.clock()
    table = scenes_to_table([landing.scene for landing in prepared.landings])

    def work(connection: sa.Connection) -> None:
        segment = write_segment(region.store, name, table)
        counters = lock_region(connection, name, arrivals=1)
        receipts = select_receipts(connection, name, each.stream, prepared)
        news = find_news(prepared, receipts)
        if news:
            write_segment_row(
                connection, name, segment, stream=each.stream, routing=prepared.routing, now=now
            )
        arrival = Arrival(region=name, stream=each.stream, number=counters.arrivals, at=now)
        land(
            connection,
            arrival,
            prepared=prepared,
            receipts=receipts,
            news=news,
            segment=segment.digest,
        )
        column = t.quarantine.c
        connection.execute(
            t.quarantine.update()
            .where(
                column.region == name,
                column.stream == each.stream,
                column.collection == each.collection,
                column.item_id == each.item_id,
                column.digest == each.digest,
            )
            .values(state="replaced", decided_at=now, note="landed when it was tried again")
        )

    transact(region.engine, work)


def _choose(
    region: str,
    stream: str | None,
    reason: str | None,
    item_id: str | None,
    states: Iterable[QuarantineState],
) -> list[sa.ColumnElement[bool]]:
    column = t.quarantine.c
    chosen: list[sa.ColumnElement[bool]] = [column.region == region, column.state.in_(states)]
    for name, value in (("stream", stream), ("reason", reason), ("item_id", item_id)):
        if value is not None:
            chosen.append(column[name] == value)
    return chosen
