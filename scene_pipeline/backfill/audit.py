"""Finding the keys that Dagster's own backfills lost, and launching them as plans.

A job backfill over two dimensions drops keys above some 50 ranges and still completes with
success. Whatever a completed backfill asked for and no run was ever planned for since is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from scene_pipeline.backfill.assets import TrackedAsset
from scene_pipeline.backfill.dagster_internals import BulkActionStatus, list_backfills
from scene_pipeline.backfill.diagnose import diagnose_request
from scene_pipeline.backfill.key_states import Site
from scene_pipeline.backfill.plan_store import read_plan
from scene_pipeline.backfill.requests import find_assets, read_request
from scene_pipeline.scenes.keys import PartitionKey

__all__ = ["LostKeys", "audit_backfills"]

# A cancelled backfill lost nothing: somebody wanted it so.
_COMPLETED = (
    BulkActionStatus.COMPLETED,
    BulkActionStatus.COMPLETED_SUCCESS,
    BulkActionStatus.COMPLETED_FAILED,
)
# How long a backfill may have run before its end is audited.
_LONGEST = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class LostKeys:
    """Keys of one asset that a completed backfill asked for and no run has had since."""

    backfill_id: str
    asset: TrackedAsset
    keys: tuple[PartitionKey, ...]


def audit_backfills(
    site: Site, *, ended_after: datetime, now: datetime, limit: int = 50
) -> tuple[list[LostKeys], datetime]:
    """What the backfills that ended after an instant have lost, and up to which end was looked.

    Plans of ours are left out: their own launch finishes them. ``limit`` bounds the backfills of
    one call, oldest end first; call again from the returned instant.
    """
    ended = sorted(
        (datetime.fromtimestamp(backfill.backfill_end_timestamp, UTC), backfill.backfill_id)
        for backfill in list_backfills(
            site.instance, statuses=_COMPLETED, since=ended_after - _LONGEST
        )
        if backfill.backfill_end_timestamp is not None
        and backfill.backfill_end_timestamp > ended_after.timestamp()
        and not backfill.is_asset_backfill
        and find_assets(site, backfill)
        and read_plan(site.engine, region=site.definition.region, plan_id=backfill.backfill_id)
        is None
    )
    lost: list[LostKeys] = []
    for _, backfill_id in ended[:limit]:
        for request in read_request(site, backfill_id, today=now.date()):
            missing = diagnose_request(site, request, now=now).by_outcome["missing"]
            if missing:
                lost.append(LostKeys(backfill_id, request.asset, missing))
    return lost, ended[:limit][-1][0] if ended else ended_after
