"""The demo as a newcomer runs it: the first run, and the second, which has nothing left to do."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from scene_pipeline_tests.benchmarks.harness import Result, benchmark


def _run_demo(folder: str) -> float:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "scene_pipeline", "demo"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - begun


@benchmark("demo_second_run_vs_first")
def measure_demo() -> Result:
    """14 days of 6 tiles in one process; wanted are at most 90 s and then 20 s."""
    with tempfile.TemporaryDirectory() as folder:
        first = _run_demo(folder)
        second = _run_demo(folder)
    return Result(second / first, second, first, 1)
