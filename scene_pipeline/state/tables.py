"""Tables of the state database, for SQLite and PostgreSQL alike.

Every table starts with ``region``, so that regions share a database without meeting.
Instants are stored as UTC ISO 8601 text with microseconds on SQLite and as timestamptz on
PostgreSQL (`Instant`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

__all__ = ["Instant", "metadata"]

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)


class Instant(sa.TypeDecorator[datetime]):
    """An aware UTC datetime; a naive one is refused instead of guessed."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        """Fixed-width text on SQLite, so that text order is time order."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.String(27))
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Any) -> Any:
        """Refuse naive values; write UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value!r}: instants are aware UTC")
        value = value.astimezone(UTC)
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Any) -> datetime | None:
        """Read back aware UTC."""
        if value is None:
            return None
        if dialect.name == "sqlite":
            return datetime.strptime(value, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
        aware: datetime = value.astimezone(UTC)
        return aware


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
plans = sa.Table(
    "plans",
    metadata,
    sa.Column("region", sa.String(64), primary_key=True),
    sa.Column("plan_id", sa.String(64), primary_key=True),
    sa.Column("asset", sa.String(64), nullable=False),
    sa.Column("policy", sa.String(32), nullable=False),
    sa.Column("fingerprint", sa.String(32), nullable=False),
    sa.Column("launched_by", sa.String(32), nullable=False),
    sa.Column("created_at", Instant, nullable=False),
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
