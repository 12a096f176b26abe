"""A plan: exact keys, cut into runs by a policy. A value with an id, compared before it starts.

The id is a digest of what the plan means, so that the same wish made twice (a repeated tick, a
second operator) is one plan, and new raw data or a new attempt makes another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from scene_pipeline.backfill.assets import TrackedAsset, parse_asset
from scene_pipeline.backfill.cover import Rectangle, cover
from scene_pipeline.backfill.policies import Policy
from scene_pipeline.backfill.selection import Choice, Order
from scene_pipeline.backfill.states import KeyState
from scene_pipeline.backfill.tags import (
    ATTEMPT_TAG,
    BACKFILL_TAG,
    KEYS_TAG,
    PARTITION_TAG,
    PLAN_TAG,
    PRIORITY_TAG,
    RUN_TAG,
    digest_keys,
    range_tags,
)
from scene_pipeline.errors import StalePlanError
from scene_pipeline.scenes.keys import PartitionKey, SceneDefinition, parse_key

__all__ = ["Plan", "PlannedKey", "PlannedRun", "parse_plan", "plan_runs", "require_fresh"]

# Below Dagster's default of 0, so that daily work overtakes a backfill in the queue.
BACKFILL_PRIORITY = "-10"


@dataclass(frozen=True, slots=True)
class PlannedKey:
    """A key with what it was when it was planned.

    ``seen`` is the position of the last event of the key: whatever is later is this plan's work
    or another's, and tells two attempts apart.
    """

    key: PartitionKey
    raw_seq: int
    attempt: int = 1
    seen: int = 0


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run: the keys of one rectangle. ``tags`` are those that Dagster gets."""

    index: int
    rectangle: Rectangle
    tags: Mapping[str, str]

    @property
    def keys(self) -> tuple[PartitionKey, ...]:
        """The run's keys, days outermost."""
        return tuple(self.rectangle)


@dataclass(frozen=True)
class Plan:
    """Keys of one asset and their runs under one policy and one definition."""

    region: str
    asset: TrackedAsset
    policy: Policy
    fingerprint: str
    keys: tuple[PlannedKey, ...]
    rectangles: tuple[Rectangle, ...]
    trimmed: tuple[PartitionKey, ...] = ()

    @cached_property
    def plan_id(self) -> str:
        """Ten hex digits."""
        meaning = [
            self.region,
            self.asset.name,
            [self.policy.name, self.policy.max_keys],
            self.fingerprint,
            sorted([str(key.key), key.raw_seq, key.seen] for key in self.keys),
        ]
        return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()[:10]

    @property
    def attempt(self) -> int:
        """The highest attempt of its keys."""
        return max((key.attempt for key in self.keys), default=1)

    @property
    def runs(self) -> list[PlannedRun]:
        """The runs, in the order in which they are started."""
        total = len(self.rectangles)
        common = {
            BACKFILL_TAG: self.plan_id,
            PLAN_TAG: self.plan_id,
            PRIORITY_TAG: BACKFILL_PRIORITY,
        }
        attempts = {key.key: key.attempt for key in self.keys}
        return [
            PlannedRun(
                index,
                rectangle,
                {
                    **common,
                    RUN_TAG: f"{index}/{total}",
                    KEYS_TAG: digest_keys(rectangle),
                    ATTEMPT_TAG: str(max(attempts[key] for key in rectangle)),
                    # Under the other policies a run without a range breaks the Backfills page.
                    **(
                        {PARTITION_TAG: str(rectangle.start)}
                        if self.policy.name == "per_partition"
                        else range_tags(rectangle)
                    ),
                },
            )
            for index, rectangle in enumerate(self.rectangles, start=1)
        ]

    @property
    def document(self) -> str:
        """The plan as JSON, which `parse_plan` reads."""
        return json.dumps(
            {
                "region": self.region,
                "asset": self.asset.name,
                "policy": [self.policy.name, self.policy.job_name, self.policy.max_keys],
                "fingerprint": self.fingerprint,
                "keys": [[str(k.key), k.raw_seq, k.attempt, k.seen] for k in self.keys],
                "runs": [[str(r.start), str(r.end), list(r.tiles)] for r in self.rectangles],
                "trimmed": [str(key) for key in self.trimmed],
            }
        )


def plan_runs(
    choice: Choice,
    definition: SceneDefinition,
    *,
    asset: TrackedAsset,
    policy: Policy,
    order: Order = "oldest",
) -> Plan:
    """Cut the chosen keys into runs of rectangles of at most ``policy.max_keys`` keys.

    Keys of different attempts never share a run, so that a run's attempt is each key's own.
    """
    keys = tuple(_planned_key(state) for state in choice.chosen)
    rectangles: list[Rectangle] = []
    for attempt in sorted({key.attempt for key in keys}):
        rectangles += cover(
            (key.key for key in keys if key.attempt == attempt),
            definition.tiles,
            max_keys=policy.max_keys,
            split="fewest" if policy.name == "single_run" else "whole days",
        )
    if order == "newest":
        rectangles.sort(key=lambda rectangle: rectangle.last_day, reverse=True)
    else:
        rectangles.sort(key=lambda rectangle: rectangle.first_day)
    return Plan(
        region=definition.region,
        asset=asset,
        policy=policy,
        fingerprint=definition.fingerprint,
        keys=keys,
        rectangles=tuple(rectangles),
        trimmed=choice.trimmed,
    )


def _planned_key(state: KeyState) -> PlannedKey:
    attempt = state.evidence.run_attempt + 1 if state.state == "failed" else 1
    return PlannedKey(state.key, state.raw_seq, attempt, state.seen)


def parse_plan(document: str) -> Plan:
    """Read `Plan.document` back."""
    fields: dict[str, Any] = json.loads(document)
    name, job_name, max_keys = fields["policy"]
    return Plan(
        region=fields["region"],
        asset=parse_asset(fields["asset"]),
        policy=Policy(name, job_name, max_keys),
        fingerprint=fields["fingerprint"],
        keys=tuple(
            PlannedKey(parse_key(text), raw_seq, attempt, seen)
            for text, raw_seq, attempt, seen in fields["keys"]
        ),
        rectangles=tuple(
            Rectangle(parse_key(start).day, parse_key(end).day, tuple(tiles))
            for start, end, tiles in fields["runs"]
        ),
        trimmed=tuple(parse_key(text) for text in fields["trimmed"]),
    )


def require_fresh(
    plan: Plan, definition: SceneDefinition, states: Mapping[PartitionKey, KeyState]
) -> None:
    """Refuse a plan that no longer means what it meant; raises `StalePlanError` with both values.

    ``states`` are those of now: a newer raw version, or a key planned since, makes it stale.
    """
    if plan.fingerprint != definition.fingerprint:
        raise StalePlanError(
            f"plan {plan.plan_id} was made under definition {plan.fingerprint}, "
            f"now it is {definition.fingerprint}",
            where=f"region {plan.region}",
            next_step="start, area or zoom was edited; plan again",
        )
    for planned in plan.keys:
        now = states[planned.key]
        if now.raw_seq != planned.raw_seq:
            raise StalePlanError(
                f"raw data of {planned.key} is at version {now.raw_seq}, "
                f"plan {plan.plan_id} was made for {planned.raw_seq}",
                where=f"asset {plan.asset.name} of region {plan.region}",
                next_step="plan again",
            )
        if now.seen != planned.seen:
            raise StalePlanError(
                f"{planned.key} was started or made since plan {plan.plan_id} was made: "
                f"its last event was {planned.seen}, now it is {now.seen}",
                where=f"asset {plan.asset.name} of region {plan.region}",
                next_step="plan again: what is done or in progress stays out",
            )
