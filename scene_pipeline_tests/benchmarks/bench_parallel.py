"""What each kind of parallelism gains inside a run: threads, processes, a batch statement."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import numpy as np
import pyarrow as pa
import shapely

from scene_pipeline.defs.makers import RawPartition, build_footprints
from scene_pipeline.defs.workers import Workers
from scene_pipeline.lake.partitions import PartitionLake
from scene_pipeline.lake.store import open_store
from scene_pipeline.scenes.grid import WebMercatorGrid
from scene_pipeline.scenes.item import scenes_to_table
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.settings import Caps
from scene_pipeline.warehouse.port import PartitionRows
from scene_pipeline_tests.benchmarks.bench_postgis import _filled
from scene_pipeline_tests.benchmarks.harness import Result, benchmark, compare
from scene_pipeline_tests.services.items import make_scene
from scene_pipeline_tests.services.s3 import run_s3
from scene_pipeline_tests.services.scene_rows import REGION, key_of, make_partition

_GRID = WebMercatorGrid(7, (5.7, 45.0, 11.2, 48.0))


def _workers(kind: str) -> Workers:
    return Workers(Caps.model_validate({"parallelism": kind, "workers": 2}))


def _keys(count: int) -> list[PartitionKey]:
    first = key_of()
    return [PartitionKey(first.day + timedelta(days=n), first.tile) for n in range(count)]


def _raw(key: PartitionKey, count: int) -> RawPartition:
    """``count`` scenes of one day whose footprints cross the tile's edges, 11 vertices each."""
    rng = np.random.default_rng(3)
    west, south = rng.uniform(5.7, 7.6, count), rng.uniform(45.3, 46.7, count)
    turns = np.linspace(0, 2 * np.pi, 11)
    rings = np.stack(
        [west[:, None] + 0.8 + 0.8 * np.cos(turns), south[:, None] + 0.5 + 0.5 * np.sin(turns)], -1
    )
    rings[:, -1] = rings[:, 0]
    one = scenes_to_table([make_scene()]).drop_columns(["item", "digest"])
    table = one.take(np.zeros(count, dtype=int))
    columns = {
        "acq_date": pa.array([key.day] * count),
        "item_id": pa.array([f"scene-{number:06d}" for number in range(count)]),
        "geometry": pa.array(shapely.to_wkb(shapely.polygons(rings)), pa.binary()),
    }
    for name, column in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), column)
    return RawPartition(key, 1, table, 0.0)


def _compare_builds(kind: str) -> Result:
    """16 partitions of 2,000 scenes, repaired, cut and drawn."""
    raw = [_raw(key, 2_000) for key in _keys(16)]
    build = partial(build_footprints, region=REGION, grid=_GRID, maps=True)
    one, many = _workers("serial"), _workers(kind)

    def run(workers: Workers) -> None:
        for _, made in workers.compute_map(build, raw):
            assert not isinstance(made, Exception), made

    return compare(lambda: run(many), lambda: run(one), rounds=5)


@benchmark("build_processes_vs_serial")
def bench_processes() -> Result:
    """Two processes that build partitions, against one after the other."""
    return _compare_builds("processes")


@benchmark("build_threads_vs_serial")
def bench_threads() -> Result:
    """Two threads that build partitions: GEOS and Arrow let others run, Python does not."""
    return _compare_builds("threads")


@benchmark("s3_read_threads_vs_serial")
def bench_reads() -> Result:
    """Four threads that read 40 partitions over HTTP, against one after the other."""
    with run_s3() as server:
        lake = PartitionLake(open_store("s3://lake/x", server.settings()), REGION)
        keys = _keys(40)
        for key in keys:
            lake.write(key, make_partition(key, 300).rows, raw_seq=1)
        threaded = PartitionLake(lake.store, REGION, threads=4)
        return compare(lambda: threaded.read_many(keys), lambda: lake.read_many(keys), rounds=5)


@benchmark("table_batch_vs_one_by_one")
def bench_batch() -> Result:
    """60 partitions of 20 rows in one transaction, against a transaction each."""
    warehouse = _filled()
    partitions = [PartitionRows(key, make_partition(key, 20).rows, 1) for key in _keys(60)]

    def one_by_one() -> None:
        for partition in partitions:
            warehouse.replace(partition)

    return compare(lambda: list(warehouse.replace_many(partitions)), one_by_one, rounds=5)
