"""Selecting rows by a list of two-column keys, so that both databases use the index.

SQLite answers ``(a, b) IN ((…), (…))`` by a scan, and a long list of VALUES takes SQLAlchemy
25 ms a page to compile. One statement per value of the column that has fewer of them does
neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

__all__ = ["match_keys", "split_rows"]

# SQLite takes 32,766 parameters a statement.
_ROWS = 5_000


def match_keys(
    first: sa.ColumnElement[Any], second: sa.ColumnElement[Any], keys: Collection[tuple[Any, Any]]
) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions that together hold for exactly the rows whose two columns are one of ``keys``."""
    turned = len({b for _, b in keys}) < len({a for a, _ in keys})
    one, many = (second, first) if turned else (first, second)
    groups: dict[Any, list[Any]] = {}
    for a, b in sorted(set(keys)):
        groups.setdefault(b if turned else a, []).append(a if turned else b)
    for value, others in groups.items():
        for part in split_rows(others):
            yield sa.and_(one == value, many.in_(part))


def split_rows(rows: Sequence[Any], size: int = _ROWS) -> Iterator[Sequence[Any]]:
    """``rows`` in parts that fit into one statement."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
