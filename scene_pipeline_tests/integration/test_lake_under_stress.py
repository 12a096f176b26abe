"""The lake under kill -9, and the memory of a very large partition."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from scene_pipeline.lake.partitions import PartitionLake
from scene_pipeline.lake.store import LocalStore
from scene_pipeline.scenes.item import scenes_to_table
from scene_pipeline_tests.services.items import make_scene
from scene_pipeline_tests.services.scene_rows import REGION, key_of

ROOT = Path(__file__).parents[2]

_WRITER = """
import sys
from scene_pipeline.lake.partitions import PartitionLake
from scene_pipeline.lake.store import LocalStore
from scene_pipeline_tests.services.scene_rows import REGION, key_of, make_partition

lake = PartitionLake(LocalStore(sys.argv[1]), REGION)
key = key_of()
stored = lake.read_version(key)
version = stored.raw_seq if stored else 0
sizes = [make_partition(key, 100 * size).rows for size in range(1, 6)]
while True:
    version += 1
    lake.write(key, sizes[version % 5], raw_seq=version)
    print(version, flush=True)
"""


@pytest.mark.parametrize("writes", [1, 8])
def test_a_writer_killed_in_mid_write_leaves_a_whole_version(tmp_path: Path, writes: int) -> None:
    lake = PartitionLake(LocalStore(tmp_path), REGION)
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(writes)][-1]
        writer.kill()
        writer.communicate()
        partition = lake.read(key_of())
        assert partition.raw_seq >= acknowledged
        assert partition.rows.num_rows == 100 * (partition.raw_seq % 5 + 1)
        others = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
        assert others <= {".parquet", ".part"}


_BUILDER = """
import sys
import pyarrow.parquet as pq
from scene_pipeline.lake.partitions import PartitionLake
from scene_pipeline.lake.store import LocalStore
from scene_pipeline.scenes.grid import WebMercatorGrid
from scene_pipeline.scenes.partition import build_partition
from scene_pipeline_tests.services.memory import peak_rss_mb
from scene_pipeline_tests.services.scene_rows import REGION, key_of

key, grid = key_of(), WebMercatorGrid(7, (5.7, 45.0, 11.2, 48.0))
raw = pq.read_table(sys.argv[1])
built = build_partition(raw, key=key, grid=grid, region=REGION, raw_seq=1)
del raw
written = PartitionLake(LocalStore(sys.argv[2]), REGION).write(key, built.rows, raw_seq=1)
print(written.rows, peak_rss_mb())
"""


def test_a_partition_of_100_000_scenes_stays_below_600_mb(tmp_path: Path) -> None:
    """Parsed columns with a kilobyte of properties each, read, built, encoded and written."""
    count = 100_000
    one = scenes_to_table([make_scene(comment="x" * 900)]).drop_columns(["item", "digest"])
    raw = one.take(np.zeros(count, dtype=int))
    rng = np.random.default_rng(0)
    west, south = rng.uniform(5.0, 8.4, count), rng.uniform(44.5, 47.0, count)
    shapes = shapely.box(west, south, west + 1.0, south + 0.5)
    for name, column in {
        "item_id": pa.array([f"scene-{number:06d}" for number in range(count)]),
        "geometry": pa.array(shapely.to_wkb(shapes), pa.binary()),
    }.items():
        raw = raw.set_column(raw.column_names.index(name), raw.schema.field(name), column)
    assert len(raw["properties"][0].as_py()) > 950
    pq.write_table(raw, tmp_path / "raw.parquet")
    del raw
    command = [sys.executable, "-c", _BUILDER, tmp_path / "raw.parquet", tmp_path / "lake"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    rows, peak_mb = map(int, printed.split())
    assert rows > 0.9 * count
    assert peak_mb < 600, peak_mb
