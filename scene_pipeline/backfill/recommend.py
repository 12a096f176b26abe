"""Which policy and batch size suit an asset, judged by its past runs and its kind of source."""

from __future__ import annotations

from dataclasses import dataclass

from scene_pipeline.settings import PolicyName

__all__ = ["History", "Recommendation", "estimate_seconds", "recommend_policy"]

# A key that fails this often costs more in repeated batches than a run's overhead.
_UNRELIABLE = 0.05

# Below so many seconds a key: from so many to so many keys a run.
_BATCHES: tuple[tuple[float, int, int, str], ...] = (
    (60, 20, 50, "short and reliable"),
    (300, 10, 20, "a run stays under two hours"),
    (900, 5, 10, "a lost run costs little"),
)


@dataclass(frozen=True, slots=True)
class History:
    """What past runs say: keys done and failed, and the median seconds a key (None: unknown)."""

    done: int = 0
    failed: int = 0
    seconds_per_key: float | None = None

    @property
    def failure_rate(self) -> float:
        """Share of keys that failed; 0 where nothing ran."""
        total = self.done + self.failed
        return self.failed / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A policy, keys a run (``fewest`` to ``most``), and why."""

    policy: PolicyName
    fewest: int
    most: int
    reason: str


def recommend_policy(history: History, *, rate_limited: bool = False) -> Recommendation:
    """One key a run where failures are likely; else the longer a key takes, the fewer a run.

    ``rate_limited``: the work itself asks a provider that throttles. A run's own cost is one to
    two seconds, so batches pay only where a key takes less than minutes.
    """
    seconds = history.seconds_per_key
    if rate_limited or history.failure_rate > _UNRELIABLE:
        reason = (
            "the source is rate-limited"
            if rate_limited
            else f"{history.failure_rate:.0%} of {history.done + history.failed} keys failed"
        )
        return Recommendation("per_partition", 1, 1, reason)
    if seconds is None:
        return Recommendation("batched", 20, 50, "no past run; short keys are assumed")
    measured = f"a key takes {seconds:.2g} s (median of {history.done})"
    for below_s, fewest, most, why in _BATCHES:
        if seconds < below_s:
            return Recommendation("batched", fewest, most, f"{measured}: {why}")
    return Recommendation(
        "single_run", 1, 5, f"{measured}: few keys a run, or one run on an engine of its own"
    )


def estimate_seconds(
    runs: int, keys: int, history: History, *, concurrent_runs: int, run_overhead_s: float = 1.5
) -> float | None:
    """Wall seconds of a plan from past runs; None where nothing ran yet."""
    if history.seconds_per_key is None:
        return None
    work = keys * history.seconds_per_key + runs * run_overhead_s
    return work / max(1, min(concurrent_runs, runs))
