"""The data version of a materialization: ``<raw_seq>.<rows>``, then the asset's code version.

Dagster indexes this tag alone by partition, so whatever a window of states needs to know of a
materialization must be in it. ``12.340.2``: made of raw version 12, 340 rows, by code version 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DATA_VERSION_TAG", "DataVersion", "parse_data_version"]

DATA_VERSION_TAG = "dagster/data_version"
_GRAMMAR = re.compile(r"(\d+)\.(\d+)(?:\.(.+))?")


@dataclass(frozen=True, slots=True)
class DataVersion:
    """What one materialization was made of; ``code`` None where the asset declares none."""

    raw_seq: int
    rows: int
    code: str | None = None

    def __str__(self) -> str:
        return f"{self.raw_seq}.{self.rows}" + (f".{self.code}" if self.code else "")

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the materialization event."""
        return {DATA_VERSION_TAG: str(self)}


def parse_data_version(text: str) -> DataVersion | None:
    """Parse a tag's value; None for a foreign one (Dagster gives hashes where none is set)."""
    match = _GRAMMAR.fullmatch(text)
    return DataVersion(int(match[1]), int(match[2]), match[3]) if match else None
