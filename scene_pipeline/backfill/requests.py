"""What a backfill of any origin asked for: a plan of ours, a job's page, the asset graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

import dagster as dg

from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, WAVES, TrackedAsset
from scene_pipeline.backfill.dagster_internals import PartitionBackfill
from scene_pipeline.backfill.key_states import Site, asset_key_of
from scene_pipeline.backfill.plan_store import StoredPlan, read_plan
from scene_pipeline.backfill.policies import Policy
from scene_pipeline.backfill.tags import BACKFILL_TAG, REGION_TAG
from scene_pipeline.errors import InvalidKeyError, UsageError
from scene_pipeline.scenes.keys import PartitionKey, parse_key

__all__ = ["Request", "find_assets", "read_request"]

_JOBS: dict[str, tuple[TrackedAsset, ...]] = {
    "scenes_per_partition_job": (FOOTPRINTS,),
    "scenes_batched_job": (FOOTPRINTS,),
    "scenes_single_run_job": (FOOTPRINTS,),
    "footprint_table_job": (TABLE,),
    "daily_scenes_job": (FOOTPRINTS, TABLE),
}


@dataclass(frozen=True, slots=True)
class Request:
    """The keys of one asset that were asked for at an instant.

    ``rejected`` maps what the definition does not accept (as it was written) to the reason.
    ``seen`` says what each key's last event was then, where the request was planned here.
    """

    asset: TrackedAsset
    keys: tuple[PartitionKey, ...]
    since: datetime
    rejected: Mapping[str, str] = field(default_factory=dict)
    trimmed: tuple[PartitionKey, ...] = ()
    seen: Mapping[PartitionKey, int] = field(default_factory=dict)
    policy: Policy | None = None


def find_assets(site: Site, backfill: PartitionBackfill) -> tuple[TrackedAsset, ...]:
    """The assets of this region that a job backfill makes by key; none for any other."""
    assets = _JOBS.get(backfill.job_name or "", ())
    if assets:
        # Another region's job has the same name; its runs say whose they are.
        of_backfill = dg.RunsFilter(tags={BACKFILL_TAG: backfill.backfill_id})
        region = site.definition.region
        for run in site.instance.get_runs(of_backfill, limit=1):
            if run.tags.get(REGION_TAG, region) != region:
                return ()
    return assets


def read_request(site: Site, backfill_id: str, *, today: date) -> list[Request]:
    """What the backfill or plan of that id asked for, an asset at a time, in wave order.

    Raises `UsageError` for an unknown id, and for a backfill of other assets than ours.
    """
    stored = read_plan(site.engine, region=site.definition.region, plan_id=backfill_id)
    if stored is not None:
        return [_planned_request(stored)]
    backfill = site.instance.get_backfill(backfill_id)
    if backfill is None:
        raise UsageError(
            f"there is no backfill {backfill_id}",
            next_step="`scene-pipeline backfill status` lists the recent ones",
        )
    asked = _read_names(site, backfill)
    if not asked:
        raise UsageError(
            f"backfill {backfill_id} is of none of {', '.join(asset.name for asset in WAVES)}",
            where=f"region {site.definition.region}",
        )
    since = datetime.fromtimestamp(backfill.backfill_timestamp, UTC)
    return [
        _sort_out(site, asset, names, since=since, today=today) for asset, names in asked.items()
    ]


def _planned_request(stored: StoredPlan) -> Request:
    plan = stored.plan
    return Request(
        asset=plan.asset,
        keys=tuple(planned.key for planned in plan.keys),
        since=stored.created_at,
        trimmed=plan.trimmed,
        seen={planned.key: planned.seen for planned in plan.keys},
        policy=plan.policy,
    )


def _read_names(site: Site, backfill: PartitionBackfill) -> dict[TrackedAsset, list[str]]:
    if backfill.is_asset_backfill:
        if backfill.asset_backfill_data is None:
            return {}
        subsets = backfill.asset_backfill_data.target_subset.partitions_subsets_by_asset_key
        by_key = {asset_key_of(site.definition, asset.name): asset for asset in WAVES}
        found = {
            by_key[asset_key]: sorted(subset.get_partition_keys())
            for asset_key, subset in subsets.items()
            if asset_key in by_key
        }
        return {asset: found[asset] for asset in WAVES if asset in found}
    names = list(backfill.partition_names or [])
    return dict.fromkeys(find_assets(site, backfill), names)


def _sort_out(
    site: Site, asset: TrackedAsset, names: Iterable[str], *, since: datetime, today: date
) -> Request:
    keys: list[PartitionKey] = []
    rejected: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            keys.append(site.definition.require(parse_key(name), today=today))
        except InvalidKeyError as error:
            rejected[name] = error.reason
    return Request(asset, tuple(keys), since, rejected)
