"""The newest backfills of any origin, each with its account in numbers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from scene_pipeline.backfill.assets import WAVES
from scene_pipeline.backfill.diagnose import diagnose_request
from scene_pipeline.backfill.key_states import Site, asset_key_of
from scene_pipeline.backfill.requests import find_assets, read_request
from scene_pipeline.errors import UsageError

__all__ = ["read_overview"]


def read_overview(
    site: Site, *, now: datetime, last: int = 10, only: str | None = None
) -> list[dict[str, Any]]:
    """One row an asset of each backfill, newest first; raises `UsageError` for an unknown id."""
    backfills = [site.instance.get_backfill(only)] if only else site.instance.get_backfills()
    ours = {asset_key_of(site.definition, asset.name) for asset in WAVES}
    rows: list[dict[str, Any]] = []
    for backfill in backfills:
        if backfill is None:
            raise UsageError(
                f"there is no backfill {only}",
                next_step="leave the id out to list the recent ones",
            )
        targets = set(backfill.asset_selection or ())
        if not (find_assets(site, backfill) or targets & ours):
            continue
        for request in read_request(site, backfill.backfill_id, today=now.date()):
            account = diagnose_request(site, request, now=now)
            rows.append(
                {
                    "backfill": backfill.backfill_id,
                    "status": backfill.status.value,
                    "started": datetime.fromtimestamp(backfill.backfill_timestamp, UTC),
                    "asset": request.asset.name,
                    "keys": account.requested,
                    **{name: len(keys) for name, keys in account.by_outcome.items()},
                    "rejected": len(account.rejected),
                }
            )
        if len({row["backfill"] for row in rows}) >= last:
            break
    return rows
