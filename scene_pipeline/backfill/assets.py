"""The assets that are backfilled, in the order of their waves."""

from __future__ import annotations

from dataclasses import dataclass

from scene_pipeline.backfill.policies import Policy, policies_of
from scene_pipeline.errors import UsageError
from scene_pipeline.settings import PolicyName, PolicySettings

__all__ = ["FOOTPRINTS", "TABLE", "WAVES", "TrackedAsset", "choose_policy", "parse_asset"]


@dataclass(frozen=True, slots=True)
class TrackedAsset:
    """An asset with a state a key. ``upstream`` None: it reads the raw lake.

    A new ``code_version`` (the algorithm changed) makes its older keys `outdated`.
    """

    name: str
    code_version: str
    upstream: str | None
    wave: int


FOOTPRINTS = TrackedAsset("scene_footprints", code_version="1", upstream=None, wave=1)
TABLE = TrackedAsset("footprint_table", code_version="1", upstream="scene_footprints", wave=2)

# A wave starts once the one before it has ended: the table reads the footprints' files.
WAVES: tuple[TrackedAsset, ...] = (FOOTPRINTS, TABLE)


def parse_asset(name: str) -> TrackedAsset:
    """The asset of that name; raises `UsageError` that lists them."""
    for asset in WAVES:
        if asset.name == name:
            return asset
    known = ", ".join(asset.name for asset in WAVES)
    raise UsageError(f"no asset {name!r} is backfilled by key", next_step=f"choose one of {known}")


def choose_policy(
    asset: TrackedAsset, settings: PolicySettings, name: PolicyName | None = None
) -> Policy:
    """The policy of ``asset``'s runs: the named (else the default) one for footprints.

    The table has one job: its own batches of twice the size, whatever the footprints do, so that
    no run of Dagster's own asset backfill ever holds both.
    """
    if asset == TABLE:
        return Policy("batched", "footprint_table_job", 2 * settings.batched)
    return policies_of(settings)[name or settings.default]
