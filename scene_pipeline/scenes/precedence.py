"""Which version of an Item wins, and which Items are one scene under two ids."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

__all__ = ["Ranked", "VersionRank", "choose_winner", "twin_key", "version_rank"]

_NEVER = datetime.min.replace(tzinfo=UTC)


class Ranked(Protocol):
    """What of a scene decides its rank; a `Scene` has it, and so has a row of the registry."""

    @property
    def collection(self) -> str: ...
    @property
    def acquired_at(self) -> datetime: ...
    @property
    def created_at(self) -> datetime | None: ...
    @property
    def updated_at(self) -> datetime | None: ...
    @property
    def platform(self) -> str | None: ...
    @property
    def grid_code(self) -> str | None: ...
    @property
    def processing_baseline(self) -> str | None: ...


@dataclass(frozen=True, slots=True, order=True)
class VersionRank:
    """Order of two versions of one Item (same Collection and id); the greater wins."""

    published_at: datetime
    baseline: tuple[int, ...]
    arrival: int


def version_rank(scene: Ranked, arrival: int) -> VersionRank:
    """Newest ``updated`` (else ``created``, else lowest), then baseline, then order of arrival.

    ``arrival`` is any counter that grows; it breaks ties, so that equal Items keep the later one.
    """
    return VersionRank(_published_at(scene), _parse_baseline(scene.processing_baseline), arrival)


def twin_key(scene: Ranked) -> tuple[str, str, str, datetime] | None:
    """What reprocessed twins of one scene share, or None where no twin rule applies.

    Only a provider's grid code tells twins from neighbours: most NAIP Items share platform and
    datetime and are different scenes.
    """
    if scene.grid_code is None or scene.platform is None:
        return None
    return scene.collection, scene.platform, scene.grid_code, scene.acquired_at


def choose_winner(twins: Iterable[tuple[Ranked, int]]) -> int:
    """Position of the twin that wins: newest baseline, then processing time, then arrival."""
    ranks = [
        (_parse_baseline(scene.processing_baseline), _published_at(scene), arrival)
        for scene, arrival in twins
    ]
    return max(range(len(ranks)), key=ranks.__getitem__)


def _published_at(scene: Ranked) -> datetime:
    return scene.updated_at or scene.created_at or _NEVER


@lru_cache(maxsize=1024)
def _parse_baseline(text: str | None) -> tuple[int, ...]:
    """``05.10`` to (5, 10): as text, 10.00 would sort below 9.00."""
    return tuple(int(part) for part in re.findall(r"\d+", text or ""))
