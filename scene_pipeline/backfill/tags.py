"""Tags of planned runs, and the check by which a run proves that it has its planned keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from scene_pipeline.backfill.cover import Rectangle
from scene_pipeline.errors import KeySetError
from scene_pipeline.scenes.keys import PartitionKey

__all__ = [
    "ATTEMPT_TAG",
    "BACKFILL_TAG",
    "FRONTIER_TAG",
    "KEYS_TAG",
    "LAUNCH_TAG",
    "PARTITION_TAG",
    "PLAN_TAG",
    "PRIORITY_TAG",
    "RANGE_END_TAG",
    "RANGE_START_TAG",
    "REGION_TAG",
    "RUN_TAG",
    "count_keys",
    "digest_keys",
    "range_tags",
    "require_planned_keys",
]

# Dagster's own.
BACKFILL_TAG = "dagster/backfill"
PARTITION_TAG = "dagster/partition"
PRIORITY_TAG = "dagster/priority"
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"

# Ours. Both waves of one launch carry the same LAUNCH_TAG.
PLAN_TAG = "scene_pipeline/plan"
RUN_TAG = "scene_pipeline/run"
KEYS_TAG = "scene_pipeline/keys"
ATTEMPT_TAG = "scene_pipeline/attempt"
LAUNCH_TAG = "scene_pipeline/launch"
FRONTIER_TAG = "scene_pipeline/frontier"
# On every job: regions that share an instance have jobs of the same names.
REGION_TAG = "scene_pipeline/region"


def digest_keys(keys: Iterable[PartitionKey]) -> str:
    """``<count>:<sixteen hex digits>`` of a key set, whatever its order."""
    texts = sorted({str(key) for key in keys})
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return f"{len(texts)}:{digest[:16]}"


def count_keys(digest: str) -> int:
    """The count in a digest."""
    return int(digest.partition(":")[0])


def range_tags(rectangle: Rectangle) -> dict[str, str]:
    """Tags by which Dagster gives a run the rectangle's keys; start = end for one key."""
    return {RANGE_START_TAG: str(rectangle.start), RANGE_END_TAG: str(rectangle.end)}


def require_planned_keys(
    tags: Mapping[str, str], keys: Sequence[PartitionKey], *, assets: int = 1
) -> None:
    """Refuse a run whose keys are none, not those of its plan, or shared by ``assets`` > 1.

    Raises `KeySetError`. A run that was not planned here (from Dagster's UI) carries no digest;
    of its keys only the empty set is refused.
    """
    where = f"range {tags.get(RANGE_START_TAG, '-')} to {tags.get(RANGE_END_TAG, '-')}"
    if not keys:
        raise KeySetError(
            "the run has no partition keys",
            where=where,
            next_step="give the range's start before its end, the tiles in their declared order",
        )
    if len(keys) > 1 and assets > 1:
        raise KeySetError(
            f"a run of {len(keys)} keys holds {assets} assets: each later one would get none",
            where=where,
            next_step="start one job an asset, or one key a run",
        )
    planned = tags.get(KEYS_TAG)
    if planned is not None and planned != digest_keys(keys):
        raise KeySetError(
            f"the run has {len(keys)} keys, its plan {count_keys(planned)} or others",
            where=where,
            next_step="the definition was edited since; plan again",
        )
