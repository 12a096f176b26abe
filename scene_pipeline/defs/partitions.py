"""Dagster's side of the partition definition: ``date`` (UTC days) times ``tile``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta

import dagster as dg

from scene_pipeline.backfill.tags import PARTITION_TAG
from scene_pipeline.errors import SettingsError
from scene_pipeline.scenes.keys import SceneDefinition

__all__ = [
    "MOST_KEYS",
    "ScenePartitions",
    "Size",
    "day_partitions",
    "measure_definition",
    "require_size",
    "scene_partitions",
    "warn_of_size",
]

MOST_KEYS = 100_000
WARN_KEYS = 50_000


class ScenePartitions(dg.MultiPartitionsDefinition):
    """Multi-partitions whose batched job backfills lose no key.

    Dagster copies the first key's ``dagster/partition/<dimension>`` tags to a whole batch, where
    they win over the range tags: of a 3 x 3 backfill in three runs one key is done, and the
    backfill reports success. Without the dimension tags the range counts.
    """

    def get_tags_for_partition_key(self, partition_key: str) -> Mapping[str, str]:
        """The key alone, without a tag for each dimension."""
        return {PARTITION_TAG: str(partition_key)}


def day_partitions(definition: SceneDefinition) -> dg.DailyPartitionsDefinition:
    """The definition's UTC days; its exclusive end is Dagster's too."""
    return dg.DailyPartitionsDefinition(
        start_date=definition.start.isoformat(),
        end_date=definition.end.isoformat() if definition.end else None,
        timezone="UTC",
    )


def scene_partitions(definition: SceneDefinition) -> ScenePartitions:
    """Days times tiles, the tiles in declared order; keys read ``2024-06-01|7-66-45``."""
    return ScenePartitions(
        {
            "date": day_partitions(definition),
            "tile": dg.StaticPartitionsDefinition(list(definition.tiles)),
        }
    )


@dataclass(frozen=True, slots=True)
class Size:
    """How many keys a definition has, and the first day with more than `MOST_KEYS` of them."""

    keys: int
    crosses_on: date | None

    @property
    def too_many(self) -> bool:
        """Whether Dagster would be slow: its UI asks for every key of an asset."""
        return self.keys > MOST_KEYS


def measure_definition(definition: SceneDefinition, *, today: date) -> Size:
    """Days that exist times tiles; a definition with an end may never cross."""
    days = max(0, (definition.last_day(today) - definition.start).days + 1)
    full_days = MOST_KEYS // len(definition.tiles)
    # Day number n (from 0) brings n + 1 days; the day after full_days days is the first too many.
    crossing = definition.start + timedelta(days=full_days)
    if definition.end is not None and crossing >= definition.end:
        return Size(days * len(definition.tiles), None)
    return Size(days * len(definition.tiles), crossing)


def require_size(definition: SceneDefinition, *, today: date) -> Size:
    """`measure_definition`, refused with `SettingsError` above `MOST_KEYS` keys."""
    size = measure_definition(definition, today=today)
    if size.too_many:
        raise SettingsError(
            f"{size.keys:,} partition keys; above {MOST_KEYS:,} Dagster's UI takes minutes",
            where=f"region {definition.region}: {len(definition.tiles)} tiles since "
            f"{definition.start}",
            next_step="choose a lower zoom, a later start_date or a smaller area, or split the "
            "area into regions, each a code location of its own",
        )
    return size


def warn_of_size(definition: SceneDefinition, *, today: date) -> None:
    """Say in the log of a loading code location when the definition grows too large.

    Loading never refuses: a working deployment must not stop one midnight.
    """
    size = measure_definition(definition, today=today)
    if size.keys > WARN_KEYS:
        crossing = f"; {MOST_KEYS:,} are crossed on {size.crosses_on}" if size.crosses_on else ""
        dg.get_dagster_logger("scene_pipeline").warning(
            f"region {definition.region} has {size.keys:,} partition keys{crossing}: "
            "`scene-pipeline doctor` says what to do"
        )
