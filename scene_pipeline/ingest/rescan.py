"""What a finished exact rescan says of the Items that it did not see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa

from scene_pipeline.ingest.checkpoints import Checkpoint
from scene_pipeline.ingest.pager import ItemId
from scene_pipeline.ingest.registry import select_items, settle, upsert
from scene_pipeline.state import tables as t
from scene_pipeline.state.keysets import match_keys

__all__ = ["settle_absent"]

# Exact rescans in a row without an Item, after which it is gone.
RESCANS_TO_TOMBSTONE = 2


def settle_absent(connection: sa.Connection, ended: Checkpoint, *, now: datetime) -> int:
    """Count the absences of the rescan ``ended``; returns how many Items became tombstones.

    An Item is absent when its coordinate is in the window, this stream has delivered it in such
    a window before, and no version of it came in this traversal. It is gone when every stream
    that ever delivered it has missed it often enough. Callers hold the region's lock.
    """
    absent = _select_absent(connection, ended)
    if not absent:
        return 0
    column = t.receipts.c
    for among in match_keys(column.collection, column.item_id, absent):
        connection.execute(
            t.receipts.update()
            .where(column.region == ended.region, column.stream == ended.stream, among)
            .values(missed=column.missed + 1)
        )
    gone = absent - _select_alive(connection, ended.region, absent)
    before = select_items(connection, ended.region, gone)
    after = {item: replace(each, tombstoned_at=now) for item, each in before.items()}
    settle(connection, ended.region, before=before, after=after, now=now)
    for among in match_keys(column.collection, column.item_id, gone):
        connection.execute(
            t.receipts.update()
            .where(column.region == ended.region, among)
            .values(outcome="vanished")
        )
    upsert(
        connection,
        t.violations,
        [
            {
                "region": ended.region,
                "stream": ended.stream,
                "collection": each.collection,
                "item_id": each.item_id,
                "digest": each.digest,
                "kind": "vanished",
                "acquired_at": each.acquired_at,
                "bound_value": ended.window.end if ended.window else now,
                "seen_at": now,
            }
            for each in before.values()
        ],
    )
    return len(gone)


def _select_absent(connection: sa.Connection, ended: Checkpoint) -> set[ItemId]:
    if ended.window is None:
        return set()
    items, receipt = t.items.c, t.receipts.c
    delivered = sa.select(receipt.region).where(
        receipt.region == items.region,
        receipt.stream == ended.stream,
        receipt.collection == items.collection,
        receipt.item_id == items.item_id,
    )
    rows = connection.execute(
        sa.select(items.collection, items.item_id).where(
            items.region == ended.region,
            items.day.between(ended.window.start.date(), ended.window.end.date()),
            items.acquired_at >= ended.window.start,
            items.acquired_at < ended.window.end,
            items.tombstoned_at.is_(None),
            sa.exists(delivered.where(receipt.stray.is_(False))),
            ~sa.exists(delivered.where(receipt.rescan == ended.traversal)),
        )
    )
    return {(row.collection, row.item_id) for row in rows}


def _select_alive(connection: sa.Connection, region: str, wanted: Iterable[ItemId]) -> set[ItemId]:
    """Those of ``wanted`` that some stream has not missed often enough."""
    column = t.receipts.c
    alive: set[ItemId] = set()
    for among in match_keys(column.collection, column.item_id, set(wanted)):
        rows = connection.execute(
            sa.select(column.collection, column.item_id)
            .distinct()
            .where(column.region == region, among, column.missed < RESCANS_TO_TOMBSTONE)
        )
        alive.update((row.collection, row.item_id) for row in rows)
    return alive
