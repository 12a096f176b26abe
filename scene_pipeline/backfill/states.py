"""The nine states of a partition key, decided from evidence alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from scene_pipeline.backfill.versions import DataVersion
from scene_pipeline.scenes.keys import KeyFault, PartitionKey

__all__ = ["STATES", "Evidence", "KeyState", "StateName", "decide_state"]

StateName = Literal[
    "invalid",
    "not covered",
    "in progress",
    "failed",
    "changed",
    "outdated",
    "empty",
    "materialized",
    "missing",
]
STATES: tuple[StateName, ...] = get_args(StateName)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one key of one asset.

    ``materialized``/``planned`` are positions in Dagster's event log (None: never); the run ids
    belong to them. ``upstream_seq`` is the version of what the asset reads: the raw version for
    footprints, the footprints' for the table, None where the upstream key was never made.
    ``upstream_moved``: the upstream key was written again after this one.
    """

    fault: KeyFault | None = None
    covered: bool = True
    claimed_by: str | None = None
    claim_expires_at: datetime | None = None
    planned: int | None = None
    planned_run: str | None = None
    run_live: bool = False
    run_attempt: int = 0
    run_ended_at: datetime | None = None
    materialized: int | None = None
    version: DataVersion | None = None
    code_version: str | None = None
    upstream_seq: int | None = 0
    upstream_moved: bool = False


@dataclass(frozen=True, slots=True)
class KeyState:
    """A key, its state, and the evidence that decided it."""

    key: PartitionKey
    state: StateName
    evidence: Evidence

    @property
    def raw_seq(self) -> int:
        """Version of the upstream data now; 0 where there is none."""
        return self.evidence.upstream_seq or 0

    @property
    def rows(self) -> int | None:
        """Rows of the last materialization, where its version says."""
        return self.evidence.version.rows if self.evidence.version else None

    @property
    def seen(self) -> int:
        """Position of the last event of the key that was known when the state was read."""
        return max(self.evidence.planned or 0, self.evidence.materialized or 0)

    @property
    def ready(self) -> bool:
        """Whether the upstream key exists, so that a run could succeed."""
        return self.evidence.upstream_seq is not None


def decide_state(evidence: Evidence) -> StateName:
    """The state that comes first in the order of precedence of `STATES`."""
    planned, made, version = evidence.planned, evidence.materialized, evidence.version
    newer = evidence.upstream_moved or (
        version is not None and (evidence.upstream_seq or 0) > version.raw_seq
    )
    # Without a version it was not this pipeline that wrote the key: nothing says what it holds.
    other_code = version is None or version.code != evidence.code_version
    in_order: tuple[tuple[StateName, bool], ...] = (
        ("invalid", evidence.fault is not None),
        ("not covered", not evidence.covered),
        ("in progress", evidence.run_live or evidence.claimed_by is not None),
        ("failed", planned is not None and planned > (made or 0)),
        ("missing", made is None),
        ("changed", newer),
        ("outdated", other_code),
        ("empty", version is not None and version.rows == 0),
    )
    return next((state for state, holds in in_order if holds), "materialized")
