"""Bounds: a coordinate together with whether its endpoint is included."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

__all__ = ["Bound", "Endpoint", "merge_bounds"]

Endpoint = Literal["excluded", "included", "unknown"]


@dataclass(frozen=True, slots=True)
class Bound:
    """Complete through ``value`` (aware UTC): up to and with it, or up to and without it.

    Time is dense: nothing here invents the instant before a value. An ``unknown`` endpoint
    cannot be ordered against another bound at the same value, so it never merges to a scalar.
    """

    value: datetime
    endpoint: Endpoint = "excluded"

    @property
    def order(self) -> tuple[datetime, bool]:
        """Sort key; at equal values an excluded endpoint is the smaller."""
        return self.value, self.endpoint == "included"

    def covers_day(self, day: date) -> bool:
        """Whether every instant of the UTC day ``[00:00, 24:00)`` is before this bound.

        The next midnight, excluded, is enough.
        """
        if self.endpoint == "unknown":
            return False
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        return self.value >= midnight

    @property
    def last_covered_day(self) -> date | None:
        """The newest day that `covers_day` accepts, or None for an unknown endpoint."""
        if self.endpoint == "unknown":
            return None
        return self.value.astimezone(UTC).date() - timedelta(days=1)


def merge_bounds(bounds: Iterable[Bound]) -> Bound | None:
    """The least bound, or None where there is none or any endpoint is unknown."""
    known = list(bounds)
    if not known or any(bound.endpoint == "unknown" for bound in known):
        return None
    return min(known, key=lambda bound: bound.order)
