"""The column type of instants, the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

__all__ = ["Instant"]


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
        if dialect.name == "sqlite":
            return f"{value.isoformat(timespec='microseconds')[:26]}Z"
        return value

    def process_result_value(self, value: Any, dialect: Any) -> datetime | None:
        """Read back aware UTC."""
        if value is None:
            return None
        if dialect.name == "sqlite":
            return datetime.fromisoformat(value)
        aware: datetime = value.astimezone(UTC)
        return aware
