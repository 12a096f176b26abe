"""A lake of the whole world for readers and validators: four tiles of a day and an empty one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scene_pipeline.lake.partitions import PartitionLake
from scene_pipeline.lake.store import LocalStore
from scene_pipeline.scenes.grid import WebMercatorGrid
from scene_pipeline.scenes.item import Parsed, parse_and_repair, scenes_to_table
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.partition import build_partition, empty_partition
from scene_pipeline_tests.services.items import make_item, make_ring


def make_world_page(count: int) -> Parsed:
    """Scenes all round the world, some across the antimeridian, one of them a bow-tie."""
    rng = np.random.default_rng(4)
    items = []
    for number in range(count):
        item = make_item(f"scene-{number:05d}")
        west, south = rng.uniform(-182, 180), rng.uniform(-70, 70)
        ring = make_ring(west, south, west + 2, south + 1)
        if number == 7:
            ring[1], ring[2] = ring[2], ring[1]
        item["geometry"] = {"type": "Polygon", "coordinates": [ring]}
        items.append(item)
    parsed = parse_and_repair(items)
    assert not parsed.rejected
    return parsed


def build_world_lake(base: Path, scenes: int = 6_000) -> tuple[PartitionLake, list[PartitionKey]]:
    """The lake and its keys, in the order of their files."""
    lake = PartitionLake(LocalStore(base), "world")
    grid = WebMercatorGrid(1, (-180, -85, 180, 85))
    parsed = make_world_page(scenes)
    raw = scenes_to_table(parsed.scenes).drop_columns(["item"])
    owners, tiles = grid.tiles_for(parsed.footprints)
    keys = [PartitionKey(parsed.scenes[0].acq_date, tile) for tile in grid.keys]
    for number, key in enumerate(keys):
        rows = raw.take(owners[tiles == number])
        built = build_partition(rows, key=key, grid=grid, region="world", raw_seq=3)
        assert built.counts["outside"] == 0
        lake.write(key, built.rows, raw_seq=3)
    empty = PartitionKey(keys[0].day, "9-0-0")
    lake.write(empty, empty_partition().rows, raw_seq=0)
    return lake, [*keys, empty]
