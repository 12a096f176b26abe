"""The rule of ingest in a few dozen lines of plain Python: what a real region must come to.

It knows nothing of tables, tokens or transactions. It is told which versions a committed page
held, and says which receipts exist, which version of an Item wins, which partitions hold it, and
which raw versions must have moved.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

Key = tuple[date, str]


def digest_of(item: dict[str, Any]) -> str:
    """sha256 of the canonical JSON."""
    return hashlib.sha256(
        json.dumps(item, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()


@dataclass(frozen=True)
class Entry:
    """One version as the oracle keeps it. ``places``: where the grid of its time puts it."""

    item_id: str
    digest: str
    at: datetime
    places: frozenset[Key]


@dataclass
class Oracle:
    """``place`` says which keys an Item dict falls into under the grid in force."""

    place: Callable[[dict[str, Any]], frozenset[Key]]
    receipts: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    winners: dict[str, Entry] = field(default_factory=dict)
    raw_seq: Counter[Key] = field(default_factory=Counter)
    reopened: dict[Key, int] = field(default_factory=dict)
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)

    def commit(
        self, stream: str, items: Iterable[dict[str, Any]], covered: Callable[[date], bool]
    ) -> list[str]:
        """A page's Items, in its order; returns the digests that were news."""
        known = self.receipts.setdefault(stream, {})
        touched: set[Key] = set()
        news = []
        for item in items:
            item_id, digest = item["id"], digest_of(item)
            self.missed[stream, item_id] = 0
            if digest in known.setdefault(item_id, set()):
                continue
            known[item_id].add(digest)
            if item["geometry"] is None:
                continue
            news.append(digest)
            old = self.winners.get(item_id)
            if old is not None and old.digest == digest:
                continue
            # Without `updated` and `created`, the order of arrival decides.
            at = datetime.fromisoformat(item["properties"]["datetime"])
            new = Entry(item_id, digest, at, self.place(item))
            self.winners[item_id] = new
            touched |= new.places | (old.places if old else frozenset())
        self._bump(touched, covered)
        return news

    def rescan(
        self,
        stream: str,
        *,
        window: tuple[datetime, datetime],
        seen: set[str],
        delivered: set[str],
        covered: Callable[[date], bool],
    ) -> set[str]:
        """A finished exact rescan; returns the Items that are gone with it."""
        absent = {
            item_id
            for item_id, entry in self.winners.items()
            if window[0] <= entry.at < window[1] and item_id in delivered and item_id not in seen
        }
        for item_id in absent:
            self.missed[stream, item_id] += 1
        gone = {
            item_id
            for item_id in absent
            if all(
                self.missed[name, item_id] >= 2
                for name, known in self.receipts.items()
                if item_id in known
            )
        }
        touched: set[Key] = set()
        for item_id in gone:
            touched |= self.winners.pop(item_id).places
            for known in self.receipts.values():
                known.pop(item_id, None)
        self._bump(touched, covered)
        return gone

    def reassign(self, places: dict[str, frozenset[Key]], covered: Callable[[date], bool]) -> None:
        """Winning versions (by digest) placed anew by another grid."""
        touched: set[Key] = set()
        for item_id, entry in self.winners.items():
            if entry.digest in places:
                touched |= entry.places ^ places[entry.digest]
                self.winners[item_id] = Entry(item_id, entry.digest, entry.at, places[entry.digest])
        self._bump(touched, covered)

    def _bump(self, touched: set[Key], covered: Callable[[date], bool]) -> None:
        for key in touched:
            self.raw_seq[key] += 1
            if covered(key[0]):
                self.reopened[key] = self.raw_seq[key]
