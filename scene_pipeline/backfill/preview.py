"""What a plan would start, with the numbers that help to choose its policy. Nothing is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scene_pipeline.backfill.assets import TABLE, TrackedAsset, choose_policy
from scene_pipeline.backfill.history import read_history
from scene_pipeline.backfill.key_states import Site, read_key_states
from scene_pipeline.backfill.plan import Plan, plan_runs
from scene_pipeline.backfill.policies import POLICY_NAMES
from scene_pipeline.backfill.recommend import estimate_seconds, recommend_policy
from scene_pipeline.backfill.selection import Selection, choose_keys
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.settings import PolicyName, Settings

__all__ = ["Preview", "preview_plan"]


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan that is not stored, and what to print of it."""

    plan: Plan
    document: dict[str, Any]


def preview_plan(
    site: Site,
    asset: TrackedAsset,
    settings: Settings,
    *,
    keys: Sequence[PartitionKey],
    selection: Selection,
    name: PolicyName | None,
    now: datetime,
) -> Preview:
    """Plan ``keys`` as a launch would, and compare the policies."""
    states = read_key_states(site, asset, keys=keys, now=now)
    choice = choose_keys(states, selection)
    chosen = choose_policy(asset, settings.policies, name)
    names: tuple[PolicyName, ...] = ("batched",) if asset == TABLE else POLICY_NAMES
    plans = {
        each: plan_runs(
            choice,
            site.definition,
            asset=asset,
            policy=choose_policy(asset, settings.policies, each),
            order=selection.order,
        )
        for each in names
    }
    plan = plans[chosen.name]
    history = read_history(site, asset, states.values())
    advice = recommend_policy(history)
    keys_chosen = [state.key for state in choice.chosen]
    full = len({key.day for key in keys_chosen}) * len({key.tile for key in keys_chosen})
    document = {
        "asset": asset.name,
        "plan_id": plan.plan_id,
        "fingerprint": plan.fingerprint,
        "asked_for": len(keys),
        "by_state": dict(choice.by_state),
        "keys": len(plan.keys),
        "trimmed": [str(key) for key in choice.trimmed],
        "waiting_for_upstream": [str(key) for key in choice.waiting],
        "policy": chosen.name,
        "job": chosen.job_name,
        "runs": {each: len(other.rectangles) for each, other in plans.items()},
        "why_so_many": _explain_runs(plan, full),
        "rectangles": [
            {"from": str(r.start), "to": str(r.end), "keys": r.size} for r in plan.rectangles
        ],
        "estimated_s": estimate_seconds(
            len(plan.rectangles),
            len(plan.keys),
            history,
            concurrent_runs=settings.caps.backfill_runs,
        ),
        "recommended": {
            "policy": advice.policy,
            "batch": [advice.fewest, advice.most],
            "reason": advice.reason,
        },
    }
    return Preview(plan, document)


def _explain_runs(plan: Plan, full: int) -> str:
    """Why a plan needs the runs that it needs, in a few words."""
    if len(plan.rectangles) <= 1:
        return ""
    if plan.policy.max_keys == 1:
        return "one key a run"
    if len(plan.keys) == full:
        return f"a full window, at most {plan.policy.max_keys} keys a run"
    return (
        "a run executes a rectangle of days and neighbouring tiles: scattered keys need one each, "
        f"of at most {plan.policy.max_keys}"
    )
