"""A hundred daily partitions through a real daemon: ours, and as Dagster's own example does it.

The example is one run a partition under the default executor, with the daemon's defaults. Both
sides read the same raw scenes, build the same rows and write the same GeoParquet files; from the
first run's start to the last run's end, a partition.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

import dagster as dg

from scene_pipeline.defs.home import render_config
from scene_pipeline.settings import PolicyName
from scene_pipeline_tests.benchmarks.harness import Result, benchmark
from scene_pipeline_tests.services.archive_region import START, ArchiveRegion
from scene_pipeline_tests.services.dagster import DagsterServices, run_services

DAYS = 100
# One zoom 7 tile of the Alps.
AREA = (8.5, 45.2, 11.2, 46.9)

_OURS = "from scene_pipeline.definitions import defs\n"

_EXAMPLE = """\
import dagster as dg

from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.ingest.raw import read_raw_scenes
from scene_pipeline.lake.partitions import PartitionLake
from scene_pipeline.scenes.keys import PartitionKey, parse_day
from scene_pipeline.scenes.partition import build_partition
from scene_pipeline.settings import load_settings

pipeline = Pipeline(load_settings())
daily = dg.DailyPartitionsDefinition("2024-06-01", end_date={end!r})

@dg.asset(partitions_def=daily)
def scene_footprints(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    key = PartitionKey(parse_day(context.partition_key), pipeline.definition.tiles[0])
    lake = PartitionLake(pipeline.store, "example")
    for _, raw_seq, table in read_raw_scenes(
        pipeline.state, pipeline.store, pipeline.region, [key]
    ):
        built = build_partition(
            table, key=key, grid=pipeline.grid, region=pipeline.region, raw_seq=raw_seq
        )
        written = lake.write(key, built.rows, raw_seq=raw_seq)
    return dg.MaterializeResult(metadata={{"rows": written.rows, "path": written.path}})

job = dg.define_asset_job("example_job", [scene_footprints])
defs = dg.Definitions(assets=[scene_footprints], jobs=[job])
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds a partition: wall from first start to last end, and CPU of every process."""

    wall_s: float
    cpu_s: float


def open_region(base: Path) -> ArchiveRegion:
    """One tile, a hundred days; opens what `prepare` has ingested."""
    return ArchiveRegion(base, days=DAYS, area=AREA, policies={"batched": 20})


def prepare(base: Path) -> ArchiveRegion:
    """Ingest one scene a day."""
    region = open_region(base)
    assert len(region.tiles) == 1
    region.ingest(region.one_scene_a_key(region.window(DAYS)))
    return region


def _measure(services: DagsterServices, backfill: dg.RunsFilter, runs: int) -> Measured:
    services.wait_for_runs(backfill, runs)
    records = services.instance.get_run_records(backfill)
    assert {record.dagster_run.status.name for record in records} == {"SUCCESS"}
    starts = [record.start_time or 0.0 for record in records]
    ends = [record.end_time or 0.0 for record in records]
    cpu_s = services.read_cpu_seconds("daemon")
    return Measured((max(ends) - min(starts)) / DAYS, cpu_s / DAYS)


@lru_cache(maxsize=1)
def measure_example() -> Measured:
    """The same work as the example's asset, backfilled from its job."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        region = prepare(base)
        module = base / "example.py"
        module.write_text(_EXAMPLE.format(end=region.end.isoformat()))
        with run_services(
            base,
            module,
            config="telemetry: {enabled: false}\n",
            environment=_write_settings(base),
        ) as services:
            services.start_daemon()
            first, last = START, START + timedelta(days=DAYS - 1)
            services.run_command(
                "dagster", "job", "backfill", "-w", str(services.workspace), "-j", "example_job",
                "--from", str(first), "--to", str(last), "--noprompt",
            )  # fmt: skip
            measured = _measure(services, dg.RunsFilter(job_name="example_job"), DAYS)
        region.close()
    return measured


def measure_ours(policy: PolicyName, runs: int) -> Measured:
    """`backfill launch` under one policy."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        region = prepare(base)
        module = base / "ours.py"
        module.write_text(_OURS)
        with run_services(
            base,
            module,
            config=render_config(region.settings),
            environment=_write_settings(base),
        ) as services:
            services.start_daemon()
            services.run_command(
                "scene_pipeline", "backfill", "launch", "--asset", "scene_footprints",
                "--policy", policy, "--to", str(region.end - timedelta(days=1)),
                "--workspace", str(services.workspace), "--no-wait",
            )  # fmt: skip
            measured = _measure(
                services, dg.RunsFilter(tags={"scene_pipeline/policy": policy}), runs
            )
        region.close()
    return measured


def _write_settings(base: Path) -> dict[str, str]:
    """The region's settings as a file, and the variable that names it."""
    config = base / "scene_pipeline.toml"
    config.write_text(f"""\
region = "alps"
start_date = {START}
end_date = {START + timedelta(days=DAYS)}
area = {list(AREA)}
zoom = 7
state_url = "sqlite:///{base}/state.db"
lake = "{base}/lake"
dagster_home = "{base}/dagster_home"
[policies]
batched = 20
""")
    return {"SCENE_PIPELINE_CONFIG": str(config)}


def _compare(ours: Measured, target: float) -> Result:
    example = measure_example()
    extra = {
        "cpu_ours_s": ours.cpu_s,
        "cpu_other_s": example.cpu_s,
        "partitions": DAYS,
        "cores": os.cpu_count(),
    }
    return Result(ours.wall_s / example.wall_s, ours.wall_s, example.wall_s, 1, target, extra)


@benchmark("backfill_per_partition_vs_docs_example")
def bench_per_partition() -> Result:
    """One run a partition, on both sides."""
    return _compare(measure_ours("per_partition", DAYS), 0.65)


@benchmark("backfill_batched20_vs_docs_example")
def bench_batched() -> Result:
    """Twenty partitions a run, against one."""
    return _compare(measure_ours("batched", DAYS // 20), 0.1)


@benchmark("backfill_single_run_vs_docs_example")
def bench_single_run() -> Result:
    """All hundred partitions in one run, against one a run."""
    return _compare(measure_ours("single_run", 1), 0.1)
