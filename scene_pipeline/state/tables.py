"""Tables of the state database, for SQLite and PostgreSQL alike.

Every table but `throttles` starts with ``region``, so that regions share a database without
meeting. Closed choices stand beside their column.
Instants are stored as UTC ISO 8601 text with microseconds on SQLite and as timestamptz on
PostgreSQL (`Instant`).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from scene_pipeline.state.instant import Instant

__all__ = [
    "checkpoints",
    "claims",
    "epochs",
    "frontier_history",
    "frontiers",
    "gaps",
    "items",
    "members",
    "metadata",
    "placements",
    "plans",
    "quarantine",
    "raw_versions",
    "receipts",
    "regions",
    "reopened",
    "routings",
    "segments",
    "streams",
    "throttles",
    "violations",
    "visited",
]

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)


# A lease by which one run works on a key; expired ones may be taken over.
claims = sa.Table(
    "claims",
    metadata,
    sa.Column("region", sa.String(64), primary_key=True),
    sa.Column("asset", sa.String(64), primary_key=True),
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("tile", sa.String(64), primary_key=True),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("taken_at", Instant, nullable=False),
    sa.Column("expires_at", Instant, nullable=False),
)

# A launched plan: what was asked for, under which definition, so that a later look can audit it.
# Both waves of a launch carry its launch_id. `recorded_at` is set once every run exists and the
# plan is a row of Dagster's Backfills page; until then a sensor or the next launch finishes it.
plans = sa.Table(
    "plans",
    metadata,
    sa.Column("region", sa.String(64), primary_key=True),
    sa.Column("plan_id", sa.String(64), primary_key=True),
    sa.Column("asset", sa.String(64), nullable=False),
    sa.Column("policy", sa.String(32), nullable=False),
    sa.Column("fingerprint", sa.String(32), nullable=False),
    sa.Column("launch_id", sa.String(64), nullable=False),
    sa.Column("wave", sa.SmallInteger, nullable=False),
    sa.Column("launched_by", sa.String(255), nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("recorded_at", Instant, index=True),
    sa.Column("document", sa.Text, nullable=False),
)

# One rate a source: when its next request may start, in seconds since 1970 (arithmetic inside
# one UPDATE on both databases), and how many were made and refused with 429 so far.
# It is the one table without a region: a provider counts requests, not our regions.
throttles = sa.Table(
    "throttles",
    metadata,
    sa.Column("source", sa.String(255), primary_key=True),
    sa.Column("next_at_s", sa.Double, nullable=False),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("refused", sa.BigInteger, nullable=False),
)


def _key(name: str, kind: Any = None) -> sa.Column[Any]:
    return sa.Column(name, kind or sa.String(128), primary_key=True)


def _text(name: str, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=null)


def _at(name: str, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, Instant, nullable=null)


def _count(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0", default=0)


def _table(name: str, *columns: Any) -> sa.Table:
    # Without a rowid, SQLite keeps a row once, in the order of its primary key.
    return sa.Table(name, metadata, *columns, sqlite_with_rowid=False)


# One row a region: its lock (a page's commit and a publication never overlap) and its counters.
regions = _table(
    "regions",
    _key("region"),
    _count("arrivals"),  # pages committed; the order of arrival of versions
    _count("traversals"),  # traversals begun
    sa.Column("raw_from", sa.Date),  # raw scenes of earlier days were removed by retention
    sa.Column("rows_from", sa.Date),  # the table's rows of earlier days, likewise
)

# One enumeration of a source: what became of it, and what it has brought.
streams = _table(
    "streams",
    _key("region"),
    _key("stream"),
    _text("state"),  # member, left, retired
    _text("address"),
    _text("finality"),  # the declared rule, as its certificates quote it
    sa.Column("cadence_hours", sa.Double),
    _at("joined_at"),
    _at("last_page_at", null=True),
    _at("last_new_at", null=True),  # when an unknown Item or version last arrived
    _count("pages"),
    _count("landed"),
    _count("outside"),
    _count("quarantined"),
    _count("lost_swaps"),  # stale retries that lost the compare-and-swap
)

# A stream's last durable position. A changed scope is another row: it never meets the old token.
checkpoints = _table(
    "checkpoints",
    _key("region"),
    _key("stream"),
    _key("lane"),
    _key("scope"),
    _count("generation"),
    _text("token", null=True),
    _text("request", null=True),  # fingerprint of how pages are asked for (limit)
    sa.Column("traversal", sa.BigInteger),  # null: between two windows
    _at("began_at", null=True),
    _at("token_at", null=True),
    _at("window_start", null=True),
    _at("window_end", null=True),
    _at("sweep_end", null=True),
    _at("reached", null=True),
    _at("claimed_value", null=True),  # what an explicit source said before the traversal
    _text("claimed_endpoint", null=True),
    _count("pages"),
    _count("empty_pages"),
    _count("ids"),  # distinct ids seen in this traversal
    _count("ids_sum"),  # order-free fingerprint of them
    sa.Column("matched", sa.BigInteger),
    _count("passes"),  # finished traversals of this same window
    sa.Column("last_ids", sa.BigInteger),
    sa.Column("last_ids_sum", sa.BigInteger),
    _at("bound_value", null=True),
    _text("bound_endpoint", null=True),
    _at("bound_at", null=True),
    _text("state"),  # active, blocked
    _text("reason"),
    _at("since"),
)

# Requests already made in the running traversal: one that repeats is a loop.
visited = _table(
    "visited",
    _key("region"),
    _key("stream"),
    _key("lane"),
    _key("traversal", sa.BigInteger),
    _key("request"),  # sha256 of its token
)

# What a stream has delivered, and what became of it. An updated Item has another digest.
receipts = _table(
    "receipts",
    _key("region"),
    _key("stream"),
    _key("collection", sa.Text),
    _key("item_id", sa.Text),
    _key("digest"),
    _text("outcome"),  # landed, outside, quarantined, vanished
    _at("first_at"),
    sa.Column("forward", sa.BigInteger),  # newest traversal of each lane that saw it
    sa.Column("rescan", sa.BigInteger),
    _count("missed"),  # exact rescans in a row without it
    sa.Column("stray", sa.Boolean, nullable=False),  # came with a window that does not hold it
    sa.Index("ix_receipts_item", "region", "collection", "item_id"),
)

# The raw lake's files. A file without a row here does not exist.
segments = _table(
    "segments",
    _key("region"),
    _key("digest"),
    _text("stream"),
    _count("rows"),
    _count("bytes"),
    sa.Column("first_day", sa.Date, nullable=False),
    sa.Column("last_day", sa.Date, nullable=False),
    sa.Column("routing", sa.Integer, nullable=False),  # its Items are placed under this generation
    _at("committed_at"),
    _at("expired_at", null=True),
)

# The winning version of each Item, and where it is. Outside Items have no tiles.
items = _table(
    "items",
    _key("region"),
    _key("collection", sa.Text),
    _key("item_id", sa.Text),
    _text("digest"),
    _text("segment"),
    _text("stream"),
    sa.Column("day", sa.Date, nullable=False),
    _text("tiles"),  # tile keys, space-separated: where it is placed
    _at("acquired_at"),
    _at("updated_at", null=True),
    _at("created_at", null=True),
    _text("platform", null=True),
    _text("grid_code", null=True),
    _text("processing_baseline", null=True),
    _count("arrival"),
    _text("twin", null=True),
    sa.Column("superseded", sa.Boolean, nullable=False),
    _at("tombstoned_at", null=True),
    sa.Index("ix_items_twin", "region", "twin"),
    sa.Index("ix_items_day", "region", "day"),
    sa.Index("ix_items_segment", "region", "segment"),
)

# Which scenes a partition holds: winning, not superseded, not tombstoned.
placements = _table(
    "placements",
    _key("region"),
    _key("day", sa.Date),
    _key("tile"),
    _key("collection", sa.Text),
    _key("item_id", sa.Text),
)

# The raw version of each (day, tile), and how much of it Dagster has been told.
raw_versions = _table(
    "raw_versions",
    _key("region"),
    _key("day", sa.Date),
    _key("tile"),
    _count("raw_seq"),
    _count("reported_seq"),
)
_UNREPORTED = raw_versions.c.reported_seq < raw_versions.c.raw_seq
sa.Index(
    "ix_raw_versions_unreported",
    raw_versions.c.region,
    raw_versions.c.day,
    sqlite_where=_UNREPORTED,
    postgresql_where=_UNREPORTED,
)

# Covered partitions whose raw scenes changed: what a sensor must look at again.
reopened = _table(
    "reopened",
    _key("region"),
    _key("day", sa.Date),
    _key("tile"),
    _count("raw_seq"),
    _at("since"),
)

# Items that cannot become scenes, whole.
quarantine = _table(
    "quarantine",
    _key("region"),
    _key("stream"),
    _key("collection", sa.Text),
    _key("item_id", sa.Text),
    _key("digest"),
    _text("state"),  # quarantined, held, released, landed, replaced
    _text("reason"),
    _text("explanation"),
    _text("item"),
    sa.Column("traversal", sa.BigInteger),
    sa.Column("page", sa.BigInteger),
    _at("first_at"),
    _at("decided_at", null=True),
    _text("note", null=True),
)

# A fixed membership of streams under one routing generation.
epochs = _table(
    "epochs",
    _key("region"),
    _key("epoch", sa.Integer),
    sa.Column("routing", sa.Integer, nullable=False),
    _text("state"),  # current, pending, closed, abandoned
    _text("reason"),
    _at("opened_at"),
)
members = _table(
    "members",
    _key("region"),
    _key("epoch", sa.Integer),
    _key("stream"),
    _text("scope"),
    _at("leaving_at", null=True),  # leaves once complete through this instant
)

# A generation of the tile grid.
routings = _table(
    "routings",
    _key("region"),
    _key("generation", sa.Integer),
    _text("fingerprint"),
    _text("grid"),
    _text("tiles"),
    _at("opened_at"),
)

# The published promise, and how it came about.
frontiers = _table(
    "frontiers",
    _key("region"),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("routing", sa.Integer, nullable=False),
    _at("bound_value", null=True),
    _text("bound_endpoint", null=True),
    _text("holder", null=True),
    _at("holder_since", null=True),
    _text("withheld"),
    _text("vector"),
    _at("published_at"),
)
frontier_history = _table(
    "frontier_history",
    _key("region"),
    _key("revision", sa.BigInteger),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("routing", sa.Integer, nullable=False),
    _at("bound_value", null=True),
    _text("bound_endpoint", null=True),
    _text("holder", null=True),
    _at("published_at"),
)

# What a retired stream will never prove.
gaps = _table(
    "gaps",
    _key("region"),
    _key("epoch", sa.Integer),
    _key("stream"),
    _at("proven_through", null=True),
    _at("declared_through"),
    _text("reason"),
    _at("recorded_at"),
)

# Items that came, or changed, behind the bound that their stream's declaration had given.
violations = _table(
    "violations",
    _key("region"),
    _key("stream"),
    _key("collection", sa.Text),
    _key("item_id", sa.Text),
    _key("digest"),
    _text("kind"),  # late, changed, vanished
    _at("acquired_at"),
    _at("bound_value"),
    _at("seen_at"),
)
