"""Benchmarks as ratios: both sides measured interleaved in one run, medians compared."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BENCHMARKS", "Result", "benchmark", "compare", "run_benchmarks"]


@dataclass(frozen=True, slots=True)
class Result:
    """One ratio: ours over the other's, with both medians in seconds and the rounds."""

    ratio: float
    ours_s: float
    other_s: float
    n: int
    target: float | None = None
    extra: dict[str, Any] | None = None


BENCHMARKS: dict[str, Callable[[], Result]] = {}


def benchmark(name: str) -> Callable[[Callable[[], Result]], Callable[[], Result]]:
    """Register a function that measures the ratio ``name``."""

    def register(measure: Callable[[], Result]) -> Callable[[], Result]:
        if name in BENCHMARKS:
            raise ValueError(f"two benchmarks are named {name}")
        BENCHMARKS[name] = measure
        return measure

    return register


def _time(action: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def compare(
    ours: Callable[[], object],
    other: Callable[[], object],
    *,
    rounds: int = 9,
    target: float | None = None,
    extra: dict[str, Any] | None = None,
) -> Result:
    """Time both sides alternately, after a warm-up of each, and compare their medians."""
    _time(ours), _time(other)
    ours_s: list[float] = []
    other_s: list[float] = []
    for turn in range(rounds):
        pair = [(ours, ours_s), (other, other_s)]
        for action, seconds in pair if turn % 2 else reversed(pair):
            seconds.append(_time(action))
    ours_median, other_median = statistics.median(ours_s), statistics.median(other_s)
    return Result(ours_median / other_median, ours_median, other_median, rounds, target, extra)


def run_benchmarks(only: str | None, output: Path) -> int:
    """Run all (or those whose name contains ``only``), print a table, write ``output``."""
    chosen = {name: run for name, run in BENCHMARKS.items() if not only or only in name}
    if not chosen:
        print(f"no benchmark is named {only}; there are: {', '.join(sorted(BENCHMARKS))}")
        return 2
    ratios: dict[str, dict[str, Any]] = {}
    width = max(map(len, chosen))
    print(f"{'name':<{width}}  {'ratio':>7}  {'target':>7}  {'ours_s':>9}  {'other_s':>9}    n")
    for name, run in chosen.items():
        result = run()
        target = "" if result.target is None else f"{result.target:.2f}"
        print(
            f"{name:<{width}}  {result.ratio:7.3f}  {target:>7}  {result.ours_s:9.4f}"
            f"  {result.other_s:9.4f}  {result.n:3d}",
            flush=True,
        )
        ratios[name] = {
            "ratio": result.ratio,
            "ours_s": result.ours_s,
            "other_s": result.other_s,
            "n": result.n,
            **({"target": result.target} if result.target is not None else {}),
            **(result.extra or {}),
        }
    output.write_text(json.dumps({"ratios": ratios}, indent=2) + "\n")
    return 0
