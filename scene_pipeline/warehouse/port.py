"""The warehouse port: one partition replaced in one transaction, whatever the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol

from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.rows import PartitionRows

__all__ = ["PartitionRows", "Replaced", "TableVersion", "Warehouse"]


@dataclass(frozen=True, slots=True)
class Replaced:
    """What one replacement did; ``waited_s`` is the bounded wait for the database."""

    key: PartitionKey
    deleted_rows: int
    written_rows: int
    seconds: float
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TableVersion:
    """What the table holds of a key."""

    raw_seq: int
    rows: int


class Warehouse(Protocol):
    """Reads and replaces partitions of one region's table."""

    def replace(self, partition: PartitionRows) -> Replaced:
        """Replace one partition, whole or not at all; running it again changes nothing.

        Raises `StaleVersionError` (a higher ``raw_seq`` is stored), `TableMismatchError`
        (schema, SRID or count), `WarehouseUnavailableError` (past the deadline).
        """

    def replace_many(
        self, partitions: Iterable[PartitionRows]
    ) -> Iterator[Replaced | tuple[PartitionKey, Exception]]:
        """Replace many in few transactions; one bad partition costs itself alone.

        Takes what it needs of ``partitions`` as it goes, so a generator bounds the memory, and
        yields a key's outcome once it is committed (or once it has failed): consume it all.
        """

    def read(self, key: PartitionKey) -> Any:
        """The partition's rows as a `pyarrow.Table` in `schema.SCENE_COLUMNS`.

        Sorted by Collection and Item; ``properties`` is canonical JSON (sorted, no spaces).
        """

    def read_versions(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, TableVersion]:
        """Stored version and row count of those ``keys`` that are stored."""

    def remove_before(self, day: date) -> int:
        """Remove the rows and versions of every earlier day, a month a transaction.

        Returns how many rows are gone. Only retention does this.
        """

    def count_rows(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """Rows counted in the table itself, for each of ``keys``."""
