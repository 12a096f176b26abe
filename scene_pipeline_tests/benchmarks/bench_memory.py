"""Peak memory of a run, in a process of its own, whatever the number of its keys."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from scene_pipeline_tests.benchmarks.harness import Result, benchmark
from scene_pipeline_tests.services.archive_region import ArchiveRegion
from scene_pipeline_tests.services.memory import peak_rss_mb

_KEYS, _SCENES_A_KEY = 102, 150


def _open(base: Path) -> ArchiveRegion:
    return ArchiveRegion(base, days=_KEYS // 6)


def _fill(base: Path) -> None:
    region = _open(base)
    words = "x" * 4_000
    region.ingest(
        region.make_item(
            f"scene-{key.day:%m%d}-{key.tile}-{number}",
            key,
            properties={"datetime": f"{key.day}T10:30:{number % 60:02d}Z", "comment": words},
        )
        for key in region.window(_KEYS // 6)
        for number in range(_SCENES_A_KEY)
    )
    region.close()


def _measure_peak(base: Path, keys: int) -> float:
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(base), str(keys)],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return float(done.stdout.split()[-1])


@benchmark("batched_rss_102_keys_vs_18")
def bench_batched_memory() -> Result:
    """One run of 102 keys of 150 scenes with 4 kB of properties each, against one of 18.

    MB in the columns of seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        _fill(Path(folder))
        small, large = (_measure_peak(Path(folder), keys) for keys in (18, _KEYS))
    return Result(large / small, large, small, 1, 1.2)


if __name__ == "__main__":
    region = _open(Path(sys.argv[1]))
    run = region.run("scenes_single_run_job", region.window(int(sys.argv[2]) // 6))
    assert run.success
    assert len(region.made_keys(run)) == int(sys.argv[2])
    print(peak_rss_mb())
