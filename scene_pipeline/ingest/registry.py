"""The registry of Items: which version wins, where it is placed, which raw versions move.

`settle` is the one place where the raw state of a region changes. Whatever the cause (a page, a
tombstone, a changed grid, a retried Item), it gets the Items as they shall be, finds what that
means for their reprocessed twins, and bumps the raw version of exactly the (day, tile)s whose
scenes change: the old and the new place of an Item that moved. Callers hold the region's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from scene_pipeline.errors import UsageError
from scene_pipeline.ingest.checkpoints import row_bound
from scene_pipeline.ingest.pager import ItemId
from scene_pipeline.ingest.pages import Landing
from scene_pipeline.scenes.precedence import VersionRank, choose_winner, version_rank
from scene_pipeline.state import tables as t
from scene_pipeline.state.keysets import match_keys, split_rows

__all__ = ["Registered", "lock_region", "register", "select_items", "settle", "upsert"]


# Day and tile: a plain tuple, because a page has hundreds and a `PartitionKey` costs ten times it.
Place = tuple[date, str]


@dataclass(frozen=True, slots=True)
class Registered:
    """The winning version of an Item, and its place. Satisfies `precedence.Ranked`."""

    collection: str
    item_id: str
    digest: str
    segment: str
    stream: str
    day: date
    tiles: str
    acquired_at: datetime
    updated_at: datetime | None
    created_at: datetime | None
    platform: str | None
    grid_code: str | None
    processing_baseline: str | None
    arrival: int
    twin: str | None
    superseded: bool = False
    tombstoned_at: datetime | None = None

    @property
    def item(self) -> ItemId:
        """(Collection, id)."""
        return self.collection, self.item_id

    @property
    def rank(self) -> VersionRank:
        """Order among the versions of this Item."""
        return version_rank(self, self.arrival)

    @property
    def places(self) -> frozenset[Place]:
        """The partitions that hold it: none while it is superseded or gone."""
        if self.superseded or self.tombstoned_at is not None:
            return frozenset()
        return frozenset((self.day, tile) for tile in self.tiles.split())


_FIELDS = attrgetter(*Registered.__slots__)


def register(landing: Landing, *, segment: str, stream: str, arrival: int) -> Registered:
    """A landing as the registry would hold it, were it to win."""
    scene = landing.scene
    return Registered(
        collection=scene.collection,
        item_id=scene.item_id,
        digest=scene.digest,
        segment=segment,
        stream=stream,
        day=scene.acq_date,
        tiles=" ".join(landing.tiles),
        acquired_at=scene.acquired_at,
        updated_at=scene.updated_at,
        created_at=scene.created_at,
        platform=scene.platform,
        grid_code=scene.grid_code,
        processing_baseline=scene.processing_baseline,
        arrival=arrival,
        twin=landing.twin,
    )


def lock_region(connection: sa.Connection, region: str, **counters: int) -> Any:
    """Serialise with every other change of this region until the commit.

    Adds to the region's counters, and returns its row. Raises `UsageError` for a region that
    was never ingested.
    """
    column = t.regions.c
    values = {name: column[name] + amount for name, amount in counters.items()}
    row = connection.execute(
        t.regions.update()
        .where(column.region == region)
        .values(values or {"arrivals": column.arrivals})
        .returning(*column)
    ).one_or_none()
    if row is None:
        raise UsageError(
            f"region {region} has no streams yet", next_step="run `scene-pipeline ingest run` first"
        )
    return row


def select_items(
    connection: sa.Connection, region: str, wanted: Iterable[ItemId]
) -> dict[ItemId, Registered]:
    """The registered ones of ``wanted``."""
    column = t.items.c
    found: dict[ItemId, Registered] = {}
    for among in match_keys(column.collection, column.item_id, set(wanted)):
        rows = connection.execute(sa.select(t.items).where(column.region == region, among))
        found.update((each.item, each) for each in map(_from_row, rows))
    return found


def settle(
    connection: sa.Connection,
    region: str,
    *,
    before: Mapping[ItemId, Registered],
    after: Mapping[ItemId, Registered],
    now: datetime,
) -> int:
    """Make the registry hold ``after`` where it held ``before``.

    ``before`` has those of ``after`` that are registered already. Returns how many Items a twin
    has now superseded.
    """
    before, after = _settle_twins(connection, region, before, after)
    changed = [item for item, new in after.items() if before.get(item) != new]
    if not changed:
        return 0
    touched: set[Place] = set()
    gone: list[dict[str, Any]] = []
    come: list[dict[str, Any]] = []
    for item in changed:
        old, new = before.get(item), after[item]
        old_places = old.places if old else frozenset()
        touched |= (
            old_places ^ new.places if old and old.digest == new.digest else old_places | new.places
        )
        gone += (_place_row(region, new, place) for place in old_places - new.places)
        come += (_place_row(region, new, place) for place in new.places - old_places)
    upsert(connection, t.items, [_item_row(region, after[item]) for item in sorted(changed)])
    if gone:
        place = t.placements
        keys = [c == sa.bindparam(f"b_{c.name}") for c in place.primary_key.columns]
        bound = [{f"b_{name}": value for name, value in row.items()} for row in gone]
        connection.execute(place.delete().where(*keys), bound)
    if come:
        connection.execute(t.placements.insert(), come)
    _bump(connection, region, touched, now)
    return sum(
        after[item].superseded and not (item in before and before[item].superseded)
        for item in changed
    )


def _settle_twins(
    connection: sa.Connection,
    region: str,
    before: Mapping[ItemId, Registered],
    after: Mapping[ItemId, Registered],
) -> tuple[dict[ItemId, Registered], dict[ItemId, Registered]]:
    """Extend both sides by the twins whose `superseded` the change decides anew."""
    before, after = dict(before), dict(after)
    groups = sorted(
        {each.twin for each in (*before.values(), *after.values()) if each.twin is not None}
    )
    if not groups:
        return before, after
    column = t.items.c
    for part in split_rows(groups):
        rows = connection.execute(
            sa.select(t.items).where(column.region == region, column.twin.in_(part))
        )
        for twin in map(_from_row, rows):
            before.setdefault(twin.item, twin)
            after.setdefault(twin.item, twin)
    rivals: dict[str, list[Registered]] = {}
    for each in after.values():
        if each.twin is not None and each.tombstoned_at is None:
            rivals.setdefault(each.twin, []).append(each)
    for twins in rivals.values():
        twins.sort(key=lambda each: each.item)
        winner = choose_winner([(each, each.arrival) for each in twins])
        for position, each in enumerate(twins):
            after[each.item] = replace(each, superseded=position != winner)
    for item, each in after.items():
        if each.twin is None and each.superseded:
            after[item] = replace(each, superseded=False)
    return before, after


def _bump(connection: sa.Connection, region: str, touched: Iterable[Place], now: datetime) -> None:
    """Move the raw versions on, and reopen those partitions that are already covered."""
    keys = sorted(touched)
    if not keys:
        return
    versions = t.raw_versions.c
    rows = [{"region": region, "day": day, "tile": tile, "raw_seq": 1} for day, tile in keys]
    upsert(connection, t.raw_versions, rows, {"raw_seq": versions.raw_seq + 1})
    published = connection.execute(
        sa.select(t.frontiers.c.bound_value, t.frontiers.c.bound_endpoint).where(
            t.frontiers.c.region == region
        )
    ).first()
    bound = row_bound(published) if published else None
    covered = [key for key in keys if bound is not None and bound.covers_day(key[0])]
    for among in match_keys(versions.day, versions.tile, covered):
        now_at = connection.execute(
            sa.select(versions.day, versions.tile, versions.raw_seq).where(
                versions.region == region, among
            )
        )
        reopened = [
            {"region": region, "day": row.day, "tile": row.tile, "raw_seq": row.raw_seq,
             "since": now}
            for row in now_at
        ]  # fmt: skip
        upsert(connection, t.reopened, reopened, ("raw_seq",))


def upsert(
    connection: sa.Connection,
    table: sa.Table,
    rows: Sequence[Mapping[str, Any]],
    changes: Mapping[str, Any] | Sequence[str] | None = None,
) -> None:
    """Insert ``rows``; where one's key is there, apply ``changes``.

    ``changes``: expressions by column, or columns to overwrite (none: leave the row as it is),
    or None for all of them.
    """
    if not rows:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    key = [column.name for column in table.primary_key.columns]
    if changes is None:
        changes = [name for name in rows[0] if name not in key]
    if not isinstance(changes, Mapping):
        changes = {name: statement.excluded[name] for name in changes}
    upserting = (
        statement.on_conflict_do_update(index_elements=key, set_=changes)
        if changes
        else statement.on_conflict_do_nothing(index_elements=key)
    )
    connection.execute(upserting, list(rows))


def _item_row(region: str, item: Registered) -> dict[str, Any]:
    # `dataclasses.asdict` copies every value deeply: a tenth of an ingest's time.
    return {"region": region, **dict(zip(Registered.__slots__, _FIELDS(item), strict=True))}


def _place_row(region: str, item: Registered, place: Place) -> dict[str, Any]:
    return {
        "region": region,
        "day": place[0],
        "tile": place[1],
        "collection": item.collection,
        "item_id": item.item_id,
    }


def _from_row(row: Any) -> Registered:
    fields = row._asdict()
    del fields["region"]
    return Registered(**fields)
