"""Partition keys, the partition definition, and why a key is rejected.

A key is ``<date>|<tile>`` with the UTC day first: Dagster sorts the dimensions of a
multi-dimensional key by name, and ``date`` sorts before ``tile``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Literal

from scene_pipeline.errors import InvalidKeyError

__all__ = ["KeyFault", "PartitionKey", "SceneDefinition", "parse_day", "parse_key"]

# Dagster's own IO managers turn "/" and "." into directories; "," and "|" break its UI.
TILE_GRAMMAR = re.compile(r"[A-Za-z0-9_-]+")
_DAY_GRAMMAR = re.compile(r"\d{4}-\d{2}-\d{2}")
FORM = "YYYY-MM-DD|tile, for example 2024-06-01|7-66-45"

KeyFault = Literal["format", "before start", "after end", "unknown tile", "removed tile"]


@dataclass(frozen=True, slots=True, order=True)
class PartitionKey:
    """One UTC day (``[00:00, 24:00)``) of one tile."""

    day: date
    tile: str

    def __str__(self) -> str:
        return f"{self.day.isoformat()}|{self.tile}"


def parse_day(text: str) -> date:
    """Parse ``YYYY-MM-DD``; raises `InvalidKeyError` for anything else."""
    if _DAY_GRAMMAR.fullmatch(text):
        try:
            return date.fromisoformat(text)
        except ValueError:
            pass
    raise InvalidKeyError(
        f"{text!r} is not a date", next_step="write it as YYYY-MM-DD, for example 2024-06-01"
    )


def parse_key(text: str) -> PartitionKey:
    """Parse ``YYYY-MM-DD|tile``; raises `InvalidKeyError` (reason ``format``)."""
    day, bar, tile = text.partition("|")
    if bar and TILE_GRAMMAR.fullmatch(tile):
        try:
            return PartitionKey(parse_day(day), tile)
        except InvalidKeyError:
            pass
    raise InvalidKeyError(f"{text!r} is not a partition key", next_step=f"write it as {FORM}")


@dataclass(frozen=True, slots=True)
class SceneDefinition:
    """Which keys exist: days of ``[start, end)`` (``end`` None: no end) times ``tiles``.

    ``tiles`` is in declared order, which is the order of rectangles and of Dagster's dimension.
    ``removed_tiles`` held data under an earlier grid; they are told apart from typing errors.
    """

    region: str
    start: date
    end: date | None
    grid: str
    tiles: tuple[str, ...]
    removed_tiles: frozenset[str] = frozenset()
    _tile_set: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for tile in self.tiles:
            if not TILE_GRAMMAR.fullmatch(tile):
                raise InvalidKeyError(
                    f"tile key {tile!r} has a character that paths and keys cannot carry",
                    next_step="use letters, digits, - and _ alone",
                )
        object.__setattr__(self, "_tile_set", frozenset(self.tiles))

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits over start, grid and tiles; an edited definition has another.

        The open end is left out: a day that passes does not change what a plan means.
        """
        parts = [self.region, self.start.isoformat(), self.grid, *self.tiles]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def last_day(self, today: date) -> date:
        """The newest day that exists: yesterday (UTC), or the day before ``end`` if earlier."""
        newest = today - timedelta(days=1)
        return newest if self.end is None else min(newest, self.end - timedelta(days=1))

    def find_fault(self, key: PartitionKey, *, today: date) -> KeyFault | None:
        """Why the definition rejects ``key``, or None where it accepts it."""
        if key.day < self.start:
            return "before start"
        if key.day > self.last_day(today):
            return "after end"
        if key.tile not in self._tile_set:
            return "removed tile" if key.tile in self.removed_tiles else "unknown tile"
        return None

    def require(self, key: PartitionKey, *, today: date) -> PartitionKey:
        """Return ``key``, or raise `InvalidKeyError` that names the accepted range."""
        fault = self.find_fault(key, today=today)
        if fault is None:
            return key
        accepted = (
            f"tiles are {self.tiles[0]} … {self.tiles[-1]} ({len(self.tiles)})"
            if "tile" in fault
            else f"days are {self.start} to {self.last_day(today)}, both included"
        )
        raise InvalidKeyError(
            f"{key} is not a partition of region {self.region}: {fault}",
            reason=fault,
            next_step=f"{accepted}; keys look like {FORM}",
        )

    def iter_window(
        self, first: date, last: date, tiles: Iterable[str] | None = None
    ) -> Iterator[PartitionKey]:
        """Keys of the days ``first`` to ``last`` (both included), days outermost, tile order kept.

        Nothing is clipped to the definition: check keys with `find_fault`.
        """
        chosen = self.tiles if tiles is None else tuple(tiles)
        for offset in range((last - first).days + 1):
            day = first + timedelta(days=offset)
            for tile in chosen:
                yield PartitionKey(day, tile)
