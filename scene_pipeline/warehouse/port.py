"""The warehouse port: one partition replaced in one transaction, whatever the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from scene_pipeline.scenes.keys import PartitionKey

__all__ = ["PartitionRows", "Replaced", "TableVersion", "Warehouse"]


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """One partition's rows: a `pyarrow.Table` in `schema.SCENE_COLUMNS`, with its raw version."""

    key: PartitionKey
    rows: Any
    raw_seq: int


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
        self, partitions: Sequence[PartitionRows]
    ) -> Iterable[Replaced | tuple[PartitionKey, Exception]]:
        """Replace many in few transactions; one bad partition costs itself alone."""

    def read(self, key: PartitionKey) -> Any:
        """The partition's rows as a `pyarrow.Table` in `schema.SCENE_COLUMNS`."""

    def read_versions(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, TableVersion]:
        """Stored version and row count of those ``keys`` that are stored."""
