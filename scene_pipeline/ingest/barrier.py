"""The page barrier: all work of a page is durable before its token moves.

One transaction takes the checkpoint by compare-and-swap, so that a stale retry loses before it
writes anything, then writes the segment (put if absent, named by its digest), the registry, raw
versions, receipts and quarantine, and moves the token with its commit. A kill at any point
leaves either the whole page or, at the most, a segment that no row names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from scene_pipeline.errors import CheckpointLostError
from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.checkpoints import (
    Checkpoint,
    lock_checkpoint,
    select_checkpoint,
    write_checkpoint,
)
from scene_pipeline.ingest.landing import (
    Arrival,
    Landed,
    Receipts,
    find_news,
    land,
    select_receipts,
)
from scene_pipeline.ingest.pager import ItemId, close_window, turn_page
from scene_pipeline.ingest.pages import PreparedPage
from scene_pipeline.ingest.region import write_segment_row
from scene_pipeline.ingest.registry import lock_region
from scene_pipeline.ingest.rescan import settle_absent
from scene_pipeline.ingest.routing import select_generation
from scene_pipeline.ingest.sources.base import Declaration, Page
from scene_pipeline.lake.segments import write_segment
from scene_pipeline.scenes.item import scenes_to_table
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import transact

if TYPE_CHECKING:
    from scene_pipeline.lake.store import ObjectStore

__all__ = ["Committed", "commit_page"]


@dataclass(frozen=True, slots=True)
class Committed:
    """What a page's commit did, and the checkpoint that it left.

    ``ended``: the page was the traversal's last. ``complete``: its window needs no other pass.
    ``tombstones``: Items found gone by a second exact rescan.
    """

    checkpoint: Checkpoint
    landed: Landed
    ended: bool
    complete: bool
    tombstones: int


def commit_page(
    engine: sa.Engine,
    store: ObjectStore,
    *,
    stored: Checkpoint,
    current: Checkpoint,
    page: Page,
    prepared: PreparedPage,
    declaration: Declaration,
    first: datetime,
    hold: bool,
    now: datetime,
) -> Committed:
    """Promote one page, whole or not at all.

    ``stored`` is the checkpoint as it was read, ``current`` the position from which the page was
    fetched (another one, where the page begins a traversal). Raises `CheckpointLostError` where
    the checkpoint or the grid has moved, and `SourceFaultError` where the page breaks the
    contract; nothing at all is written then.
    """

    def work(connection: sa.Connection) -> Committed:
        lock_checkpoint(connection, stored)
        _require_routing(connection, stored, prepared)
        receipts = select_receipts(connection, stored.region, stored.stream, prepared)
        moved = turn_page(
            current,
            page,
            ids=prepared.ids,
            new_ids=prepared.ids - _find_seen(receipts, current),
            repeated=_is_visited(connection, current, page.next_token),
            now=now,
        )
        news = find_news(prepared, receipts)
        segment = None
        if news:
            table = scenes_to_table([landing.scene for landing in news])
            segment = write_segment(store, stored.region, table)
        counters = lock_region(
            connection, stored.region, arrivals=1, traversals=int(current.traversal is None)
        )
        _require_routing(connection, stored, prepared)
        traversal = counters.traversals if moved.traversal is None else moved.traversal
        moved = replace(moved, generation=stored.generation + 1, traversal=traversal)
        _write_visit(connection, moved, current.token)
        if segment is not None:
            write_segment_row(
                connection,
                stored.region,
                segment,
                stream=stored.stream,
                routing=prepared.routing,
                now=now,
            )
        landed = land(
            connection,
            Arrival(
                region=stored.region,
                stream=stored.stream,
                number=counters.arrivals,
                at=now,
                marks={stored.lane: traversal},
                page=moved.pages,
                window=moved.window,
                bound=_select_bound(connection, moved),
                hold=hold,
            ),
            prepared=prepared,
            receipts=receipts,
            news=news,
            segment=segment.digest if segment else None,
        )
        complete, tombstones = False, 0
        if page.next_token is None:
            held = _count_held(connection, stored)
            closing = close_window(moved, declaration, held=held, first=first, now=now)
            complete = closing.complete
            if closing.complete and closing.exact and stored.lane == "rescan":
                tombstones = settle_absent(connection, moved, now=now)
            moved = closing.checkpoint
        write_checkpoint(connection, moved)
        _count_page(connection, stored, landed, now)
        return Committed(moved, landed, page.next_token is None, complete, tombstones)

    return transact(engine, work)


def _require_routing(connection: sa.Connection, stored: Checkpoint, prepared: PreparedPage) -> None:
    newest = select_generation(connection, stored.region)
    if newest != prepared.routing:
        raise _lost(
            stored, f"its Items were placed by grid {prepared.routing}, now {newest} is in force"
        )


def _lost(stored: Checkpoint, why: str) -> CheckpointLostError:
    return CheckpointLostError(
        f"a page of {stored.stream} is out of date: {why}",
        where=f"stream {stored.stream}, lane {stored.lane}",
        next_step="nothing was written; the page is fetched again",
    )


def _find_seen(receipts: Receipts, current: Checkpoint) -> set[ItemId]:
    """Items that this traversal has seen already."""
    if current.traversal is None:
        return set()
    return {
        item
        for item, versions in receipts.items()
        if any(getattr(row, current.lane) == current.traversal for row in versions.values())
    }


def _visit(checkpoint: Checkpoint, token: str | None) -> dict[str, Any]:
    return {
        "region": checkpoint.region,
        "stream": checkpoint.stream,
        "lane": checkpoint.lane,
        "traversal": checkpoint.traversal,
        "request": sha256((token or "").encode("utf-8", "surrogatepass")).hexdigest(),
    }


def _is_visited(connection: sa.Connection, current: Checkpoint, token: str | None) -> bool:
    if token is None or current.traversal is None:
        return False
    column = t.visited.c
    visit = _visit(current, token)
    return bool(
        connection.execute(
            sa.select(sa.exists().where(*(column[name] == value for name, value in visit.items())))
        ).scalar()
    )


def _write_visit(connection: sa.Connection, moved: Checkpoint, token: str | None) -> None:
    """Remember the request that this page answers; the traversals before it are forgotten."""
    column = t.visited.c
    if moved.pages == 1:
        connection.execute(
            t.visited.delete().where(
                column.region == moved.region,
                column.stream == moved.stream,
                column.lane == moved.lane,
            )
        )
    connection.execute(t.visited.insert().values(**_visit(moved, token)))


def _select_bound(connection: sa.Connection, moved: Checkpoint) -> Bound | None:
    """What the stream had certified before this page."""
    if moved.lane == "forward":
        return moved.bound
    forward = select_checkpoint(
        connection, region=moved.region, stream=moved.stream, lane="forward", scope=moved.scope
    )
    return forward.bound if forward else None


def _count_held(connection: sa.Connection, stored: Checkpoint) -> int:
    column = t.quarantine.c
    return int(
        connection.execute(
            sa.select(sa.func.count()).where(
                column.region == stored.region,
                column.stream == stored.stream,
                column.state == "held",
            )
        ).scalar_one()
    )


def _count_page(
    connection: sa.Connection, stored: Checkpoint, landed: Landed, now: datetime
) -> None:
    column = t.streams.c
    quarantined = sum(landed.quarantined.values())
    is_new = landed.landed + landed.outside + quarantined > 0
    values: Mapping[str, Any] = {
        "pages": column.pages + 1,
        "landed": column.landed + landed.landed,
        "outside": column.outside + landed.outside,
        "quarantined": column.quarantined + quarantined,
        "last_page_at": now,
        **({"last_new_at": now} if is_new else {}),
    }
    connection.execute(
        t.streams.update()
        .where(column.region == stored.region, column.stream == stored.stream)
        .values(**values)
    )
