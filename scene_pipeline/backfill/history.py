"""What past runs say about an asset: how long a key takes, and how often one fails."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

import dagster as dg

from scene_pipeline.backfill.assets import TrackedAsset
from scene_pipeline.backfill.key_states import Site, asset_key_of
from scene_pipeline.backfill.recommend import History
from scene_pipeline.backfill.states import KeyState

__all__ = ["read_history"]

# Events that are read whole, at 1 ms each.
_SAMPLE = 50
_PARTS = ("seconds_read", "seconds_build", "seconds_write")


def read_history(site: Site, asset: TrackedAsset, states: Iterable[KeyState]) -> History:
    """Median seconds of the newest materializations, and the failures among ``states``."""
    found = site.instance.fetch_materializations(
        asset_key_of(site.definition, asset.name), limit=_SAMPLE
    )
    seconds = [
        total
        for record in found.records
        if record.asset_materialization is not None
        and (total := _sum_seconds(record.asset_materialization.metadata)) > 0
    ]
    met = [state.state for state in states]
    return History(
        done=met.count("materialized") + met.count("empty"),
        failed=met.count("failed"),
        seconds_per_key=statistics.median(seconds) if seconds else None,
    )


def _sum_seconds(metadata: Mapping[str, object]) -> float:
    parts = (metadata.get(name) for name in _PARTS)
    return sum(part.value or 0.0 for part in parts if isinstance(part, dg.FloatMetadataValue))
