"""Jobs: one per row of the table of policies, all over the same asset keys and the same ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg

from scene_pipeline.backfill.policies import Policy
from scene_pipeline.defs.assets import under_policy

__all__ = ["build_daily_job", "build_policy_job"]


def build_policy_job(
    footprints: dg.AssetsDefinition, policy: Policy, *, resources: dict[str, Any]
) -> dg.JobDefinition:
    """``scene_footprints`` under one policy."""
    per_run = "one partition" if policy.max_keys == 1 else f"up to {policy.max_keys} partitions"
    return _resolve_apart(
        [under_policy(footprints, policy.max_keys)],
        resources,
        name=policy.job_name,
        tags={"scene_pipeline/policy": policy.name},
        description=f"`scene_footprints`, {per_run} a run.",
    )


def build_daily_job(
    footprints: dg.AssetsDefinition, table: dg.AssetsDefinition, *, resources: dict[str, Any]
) -> dg.JobDefinition:
    """Both assets for one key, one after the other in one run."""
    return _resolve_apart(
        [under_policy(footprints, 1), under_policy(table, 1)],
        resources,
        name="daily_scenes_job",
        tags={"scene_pipeline/policy": "per_partition"},
        description="Both assets for one partition: what the daily schedule starts.",
    )


def _resolve_apart(
    assets: Sequence[dg.AssetsDefinition], resources: dict[str, Any], *, name: str, **job: Any
) -> dg.JobDefinition:
    """Resolve a job over variants of the base assets.

    A code location holds an asset key once, but its jobs may each hold a variant of it.
    """
    apart = dg.Definitions(
        assets=assets,
        resources=resources,
        executor=dg.in_process_executor,
        jobs=[dg.define_asset_job(name, selection=[asset.key for asset in assets], **job)],
    )
    return apart.resolve_job_def(name)
