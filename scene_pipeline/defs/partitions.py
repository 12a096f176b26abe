"""Dagster's side of the partition definition: ``date`` (UTC days) times ``tile``."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from scene_pipeline.scenes.keys import SceneDefinition

__all__ = ["ScenePartitions", "day_partitions", "scene_partitions"]

PARTITION_TAG = "dagster/partition"


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
