"""One partition's rows on their way between lake, runs and warehouse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scene_pipeline.scenes.keys import PartitionKey

__all__ = ["PartitionRows"]


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """One partition's rows: a `pyarrow.Table` in `schema.SCENE_COLUMNS`, with its raw version."""

    key: PartitionKey
    rows: Any
    raw_seq: int
