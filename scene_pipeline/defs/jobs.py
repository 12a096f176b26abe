"""Jobs: one per row of the table of policies, all over the same asset keys and the same ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from scene_pipeline.backfill.policies import Policy
from scene_pipeline.backfill.tags import REGION_TAG
from scene_pipeline.defs.assets import under_policy
from scene_pipeline.settings import PolicyName

__all__ = ["build_daily_job", "build_plain_jobs", "build_policy_jobs"]

K8S_TAG = "dagster-k8s/config"
_DESCRIPTIONS: dict[PolicyName, str] = {
    "per_partition": "`scene_footprints`, one partition a run: for sources that fail often. Each "
    "run also runs the asset's checks on its partition.",
    "batched": "`scene_footprints`, up to {max_keys} partitions a run: the default of backfills.",
    "single_run": "`scene_footprints`, as many partitions a run as form a rectangle of dates and "
    "tiles, up to {max_keys}: the least overhead, one log to read.",
}


def build_policy_jobs(
    footprints: dg.AssetsDefinition,
    checks: dg.AssetChecksDefinition,
    policies: Mapping[PolicyName, Policy],
    *,
    resources: dict[str, Any],
    region: str,
    sizes: Mapping[PolicyName, Mapping[Any, str]],
) -> list[dg.JobDefinition]:
    """``scene_footprints`` under each policy; ``sizes`` is what its runs ask Kubernetes for."""
    return [
        _resolve_apart(
            [under_policy(footprints, policy.max_keys)],
            # A run of many keys yields no Output, so that its checks would never start.
            [checks] if policy.max_keys == 1 else [],
            resources,
            name=policy.job_name,
            region=region,
            tags={"scene_pipeline/policy": policy.name, **_size_tags(sizes.get(policy.name))},
            description=_DESCRIPTIONS[policy.name].format(max_keys=policy.max_keys),
        )
        for policy in policies.values()
    ]


def _size_tags(size: Mapping[Any, str] | None) -> dict[str, Any]:
    """dagster-k8s reads the tag when it makes a run's pod; nothing else does."""
    if not size:
        return {}
    limits = {"limits": {"memory": size["memory"]}} if "memory" in size else {}
    return {K8S_TAG: {"container_config": {"resources": {"requests": dict(size), **limits}}}}


def build_daily_job(
    assets: Sequence[dg.AssetsDefinition],
    checks: Sequence[dg.AssetChecksDefinition],
    resources: dict[str, Any],
    region: str,
) -> dg.JobDefinition:
    """Footprints and table of one key, one after the other in one run."""
    return _resolve_apart(
        [under_policy(asset, 1) for asset in assets],
        checks,
        resources,
        name="daily_scenes_job",
        region=region,
        tags={"scene_pipeline/policy": "per_partition"},
        description="Footprints, then the table, of one partition, with all checks: what the "
        "daily schedule starts.",
    )


def build_plain_jobs(
    frontier: dg.AssetsDefinition,
    table: dg.AssetsDefinition,
    coverage: dg.AssetsDefinition,
    *,
    region: str,
) -> dict[str, Any]:
    """Jobs over base assets, each under its own policy, and all checks in one job; by name."""
    described = {
        "ingest_job": (frontier, "One round of ingest over every stream, then the frontier."),
        "footprint_table_job": (
            table,
            "`footprint_table` from the lake's files, in its own batches under the pool `postgis`.",
        ),
        "coverage_job": (coverage, "`daily_coverage` of up to seven days, each with its map."),
    }
    jobs: dict[str, Any] = {
        name: dg.define_asset_job(
            name,
            selection=dg.AssetSelection.assets(asset.key).without_checks(),
            tags={REGION_TAG: region},
            description=description,
        )
        for name, (asset, description) in described.items()
    }
    jobs["checks_job"] = dg.define_asset_job(
        "checks_job",
        selection=dg.AssetSelection.all_asset_checks(),
        tags={REGION_TAG: region},
        description="Every asset check, over the newest covered days.",
    )
    return jobs


def _resolve_apart(
    assets: Sequence[dg.AssetsDefinition],
    checks: Sequence[dg.AssetChecksDefinition],
    resources: dict[str, Any],
    *,
    name: str,
    region: str,
    tags: Mapping[str, Any],
    description: str,
) -> dg.JobDefinition:
    """Resolve a job over variants of the base assets.

    A code location holds an asset key once, but its jobs may each hold a variant of it.
    """
    apart = dg.Definitions(
        assets=assets,
        asset_checks=checks,
        resources=resources,
        executor=dg.in_process_executor,
        jobs=[
            dg.define_asset_job(
                name,
                selection=[asset.key for asset in assets],
                tags={REGION_TAG: region, **tags},
                description=description,
            )
        ],
    )
    return apart.resolve_job_def(name)
