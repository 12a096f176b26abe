"""GeoParquet: our files against `GeoDataFrame.to_parquet`, `gpd.read_parquet` and bare pyarrow."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import geopandas as gpd
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import shapely

from scene_pipeline.lake.frames import to_geopandas
from scene_pipeline.lake.partitions import PartitionLake
from scene_pipeline.lake.store import LocalStore
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.partition import build_bbox
from scene_pipeline.scenes.schema import GEOMETRY, SCENE_COLUMNS, arrow_schema
from scene_pipeline_tests.benchmarks.harness import Result, benchmark, compare
from scene_pipeline_tests.services.scene_rows import DAY, REGION, key_of, make_partition


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="scene-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _lake() -> PartitionLake:
    return PartitionLake(LocalStore(_folder() / "lake"), REGION)


def _make_rows(key: PartitionKey, count: int) -> pa.Table:
    """Rows whose properties are as long as real ones: twenty Item assets, two kilobytes."""
    properties = [
        json.dumps(
            {
                "assets": {
                    f"B{band:02d}": f"https://data.example/tiles/32/T/LS/2024/6/{number}/B{band:02d}.tif"
                    for band in range(20)
                },
                "s2:cloud_shadow_percentage": number % 977 / 9.77,
                "s2:datatake_id": f"GS2A_20240601T102031_{number:06d}_N05.10",
                "s2:vegetation_percentage": number % 991 / 9.91,
                "sat:relative_orbit": number % 143,
            }
        )
        for number in range(count)
    ]
    return make_partition(key, count, columns={"properties": properties}).rows


def _compare_writes(count: int, *, rounds: int, target: float) -> Result:
    """Each side from its own columns and the same shapes to the same file on the same disk.

    Ours checks the stored version, checksums its pages, syncs and renames as well.
    """
    rows = _make_rows(key_of(), count)
    frame = to_geopandas(rows)
    shapes = frame.geometry.to_numpy()
    columns = rows.drop_columns(["geometry", "bbox"])
    path = _folder() / "geopandas.parquet"

    def ours() -> None:
        geometry = pa.array(shapely.to_wkb(shapes), GEOMETRY.type)
        table = columns.append_column(_field("geometry"), geometry)
        table = table.append_column(_field("bbox"), build_bbox(shapes))
        _lake().write(key_of(), table, raw_seq=1)

    def theirs() -> None:
        frame.to_parquet(path, compression="zstd", write_covering_bbox=True)

    ours(), theirs()
    assert gpd.read_parquet(path).equals(to_geopandas(_lake().read(key_of()).rows))
    return compare(ours, theirs, rounds=rounds, target=target)


def _field(name: str) -> pa.Field:
    return arrow_schema(SCENE_COLUMNS).field(name)


@benchmark("geoparquet_write_333_vs_geopandas")
def write_333() -> Result:
    return _compare_writes(333, rounds=31, target=0.55)


@benchmark("geoparquet_write_10k_vs_geopandas")
def write_10k() -> Result:
    return _compare_writes(10_000, rounds=11, target=0.75)


@benchmark("geoparquet_write_10k_vs_pyarrow_floor")
def write_10k_floor() -> Result:
    """A ready table to a file, without sync, metadata, checksums or a version check."""
    rows = _make_rows(key_of(), 10_000)
    path = _folder() / "floor.parquet"
    return compare(
        lambda: _lake().write(key_of(), rows, raw_seq=1),
        lambda: pq.write_table(rows, path, compression="zstd"),
        rounds=11,
        target=1.7,
    )


@benchmark("geoparquet_read_333_vs_geopandas")
def read_333() -> Result:
    key = key_of(2)
    path = Path(_lake().write(key, _make_rows(key, 333), raw_seq=1).path)
    assert gpd.read_parquet(path).equals(to_geopandas(_lake().read(key).rows))
    return compare(
        lambda: to_geopandas(_lake().read(key).rows),
        lambda: gpd.read_parquet(path),
        rounds=31,
        target=0.25,
    )


@benchmark("day_300_tiles_vs_geopandas_loop")
def read_day() -> Result:
    """A day of 300 tiles of ten scenes each to one frame."""
    tiles = [f"9-{number // 20}-{number % 20}" for number in range(300)]
    paths = []
    for tile in tiles:
        key = PartitionKey(DAY, tile)
        paths.append(_lake().write(key, _make_rows(key, 10), raw_seq=1).path)

    def loop() -> Any:
        return pd.concat([gpd.read_parquet(path) for path in paths], ignore_index=True)

    def ours() -> Any:
        return to_geopandas(_lake().read_day(DAY, tiles))

    assert len(ours()) == len(loop()) == 3000
    return compare(ours, loop, rounds=5, target=0.08)
