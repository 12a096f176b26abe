"""The table of policies: how many partition keys one run takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from scene_pipeline.settings import PolicyName, PolicySettings

__all__ = ["POLICY_NAMES", "Policy", "policies_of"]

POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy; ``max_keys`` None means as many as a rectangle holds."""

    name: PolicyName
    job_name: str
    max_keys: int


def policies_of(settings: PolicySettings) -> dict[PolicyName, Policy]:
    """The three policies under ``settings``, by name."""
    return {
        "per_partition": Policy("per_partition", "scenes_per_partition_job", 1),
        "batched": Policy("batched", "scenes_batched_job", settings.batched),
        "single_run": Policy("single_run", "scenes_single_run_job", settings.single_run_max_keys),
    }
