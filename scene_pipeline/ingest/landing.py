"""Landing prepared Items in a transaction: receipts, winning versions, quarantine, violations.

A receipt says what became of one version of one Item from one stream. A version that has its
receipt is known: it changes nothing when it comes again, in whatever order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.checkpoints import Window
from scene_pipeline.ingest.pager import ItemId
from scene_pipeline.ingest.pages import Landing, PreparedPage, Unusable
from scene_pipeline.ingest.registry import Registered, register, select_items, settle, upsert
from scene_pipeline.state import tables as t
from scene_pipeline.state.keysets import match_keys

__all__ = ["Arrival", "Landed", "Receipts", "find_news", "land", "select_receipts"]

# Receipts of a page's Items: by Item, then by digest.
Receipts = Mapping[ItemId, Mapping[str, Any]]

_KNOWN = ("landed", "outside")


@dataclass(frozen=True, slots=True)
class Arrival:
    """How Items come: from which stream, when, in which order, under which proven bound.

    ``marks``: the traversal that saw them, by lane. ``window``: which coordinates were asked
    for. ``bound``: what the stream had certified before. ``hold``: an unusable Item holds the
    stream until an operator decides.
    """

    region: str
    stream: str
    number: int
    at: datetime
    marks: Mapping[str, int] = field(default_factory=dict)
    page: int | None = None
    window: Window | None = None
    bound: Bound | None = None
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Landed:
    """Counts of distinct versions: ``known`` ones came again, ``older`` ones lost to the winner.

    ``superseded``: Items that a reprocessed twin has now replaced. ``late``: versions behind the
    stream's own bound.
    """

    landed: int
    outside: int
    known: int
    older: int
    superseded: int
    late: int
    quarantined: Mapping[str, int]


def select_receipts(
    connection: sa.Connection, region: str, stream: str, prepared: PreparedPage
) -> Receipts:
    """The stream's receipts of a page's Items, whatever their versions."""
    column = t.receipts.c
    found: dict[ItemId, dict[str, Any]] = {}
    for among in match_keys(column.collection, column.item_id, prepared.ids):
        for row in connection.execute(
            sa.select(t.receipts).where(column.region == region, column.stream == stream, among)
        ):
            found.setdefault((row.collection, row.item_id), {})[row.digest] = row
    return found


def find_news(prepared: PreparedPage, receipts: Receipts) -> list[Landing]:
    """The landings that have no receipt as scenes yet: what a segment must hold."""
    return [
        landing
        for landing in prepared.landings
        if (row := receipts.get(landing.item, {}).get(landing.scene.digest)) is None
        or row.outcome not in _KNOWN
    ]


def land(
    connection: sa.Connection,
    arrival: Arrival,
    *,
    prepared: PreparedPage,
    receipts: Receipts,
    news: list[Landing],
    segment: str | None,
) -> Landed:
    """Store what `prepared` comes to; ``segment`` holds at least its ``news`` (`find_news`).

    The caller holds the region's lock. Raises nothing of its own.
    """
    before = select_items(connection, arrival.region, prepared.ids)
    after, older = _choose_versions(news, before, arrival, segment)
    late = _record_late(connection, arrival, before, after)
    superseded = settle(connection, arrival.region, before=before, after=after, now=arrival.at)
    strange = [each for each in prepared.unusable if each.digest not in receipts.get(each.item, {})]
    _write_receipts(connection, arrival, prepared, receipts)
    _write_quarantine(connection, arrival, strange)
    if news:
        _close_quarantine(connection, arrival, news)
    outcomes = Counter(landing.outcome for landing in news)
    return Landed(
        landed=outcomes["landed"],
        outside=outcomes["outside"],
        known=len(prepared.landings) - len(news) + len(prepared.unusable) - len(strange),
        older=older,
        superseded=superseded,
        late=late,
        quarantined=Counter(each.reason for each in strange),
    )


def _choose_versions(
    news: list[Landing],
    before: Mapping[ItemId, Registered],
    arrival: Arrival,
    segment: str | None,
) -> tuple[dict[ItemId, Registered], int]:
    """The Items whose registered version changes, and how many news lost to an existing one."""
    after: dict[ItemId, Registered] = {}
    older = 0
    for landing in news:
        item = landing.item
        rival = after.get(item, before.get(item))
        new = register(
            landing, segment=segment or "", stream=arrival.stream, arrival=arrival.number
        )
        if rival is None or rival.tombstoned_at is not None:
            after[item] = new
        elif rival.digest == new.digest:
            continue  # another stream brought the same version first
        elif new.rank >= rival.rank:
            after[item] = new
        else:
            older += 1
    return after, older


def _record_late(
    connection: sa.Connection,
    arrival: Arrival,
    before: Mapping[ItemId, Registered],
    after: Mapping[ItemId, Registered],
) -> int:
    """Record what came, or changed, behind the bound that the declaration had given."""
    bound = arrival.bound
    if bound is None:
        return 0
    rows = [
        {
            "region": arrival.region,
            "stream": arrival.stream,
            "collection": each.collection,
            "item_id": each.item_id,
            "digest": each.digest,
            "kind": "changed" if each.item in before else "late",
            "acquired_at": each.acquired_at,
            "bound_value": bound.value,
            "seen_at": arrival.at,
        }
        for each in after.values()
        if each.acquired_at < bound.value
    ]
    upsert(connection, t.violations, rows)
    return len(rows)


def _write_receipts(
    connection: sa.Connection, arrival: Arrival, prepared: PreparedPage, receipts: Receipts
) -> None:
    window = arrival.window
    versions = [
        (
            each.item,
            each.scene.digest,
            each.outcome,
            window is None or not window.start <= each.scene.acquired_at < window.end,
        )
        for each in prepared.landings
    ]
    versions += [(each.item, each.digest, "quarantined", True) for each in prepared.unusable]
    rows = []
    for item, digest, outcome, stray in versions:
        known = receipts.get(item, {}).get(digest)
        marks = {
            lane: arrival.marks.get(lane, getattr(known, lane, None))
            for lane in ("forward", "rescan")
        }
        rows.append(
            {
                "region": arrival.region,
                "stream": arrival.stream,
                "collection": item[0],
                "item_id": item[1],
                "digest": digest,
                "outcome": known.outcome if known and known.outcome in _KNOWN else outcome,
                "first_at": known.first_at if known else arrival.at,
                **marks,
                "missed": 0,
                "stray": stray and (known is None or known.stray),
            }
        )
    changes = ("outcome", "forward", "rescan", "missed", "stray")
    upsert(connection, t.receipts, rows, changes)


def _write_quarantine(connection: sa.Connection, arrival: Arrival, strange: list[Unusable]) -> None:
    rows = [
        {
            "region": arrival.region,
            "stream": arrival.stream,
            "collection": each.item[0],
            "item_id": each.item[1],
            "digest": each.digest,
            "state": "held" if arrival.hold else "quarantined",
            "reason": each.reason,
            "explanation": each.explanation,
            "item": each.text,
            "traversal": max(arrival.marks.values(), default=None),
            "page": arrival.page,
            "first_at": arrival.at,
            "decided_at": None,
            "note": None,
        }
        for each in strange
    ]
    upsert(connection, t.quarantine, rows)


def _close_quarantine(connection: sa.Connection, arrival: Arrival, news: list[Landing]) -> None:
    """An Item whose usable version has landed waits no longer."""
    column = t.quarantine.c
    for among in match_keys(column.collection, column.item_id, {landing.item for landing in news}):
        connection.execute(
            t.quarantine.update()
            .where(
                column.region == arrival.region,
                column.stream == arrival.stream,
                column.state.in_(("quarantined", "held")),
                among,
            )
            .values(state="replaced", decided_at=arrival.at, note="a usable version has landed")
        )
