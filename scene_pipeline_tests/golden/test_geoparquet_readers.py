"""Lake files in other people's readers: DuckDB, GeoPandas, pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import geopandas as gpd
import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import shapely

from scene_pipeline.lake.partitions import PartitionLake
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline_tests.services.world_lake import build_world_lake


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[PartitionLake, list[PartitionKey]]:
    return build_world_lake(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module")
def lake(world: tuple[PartitionLake, list[PartitionKey]]) -> PartitionLake:
    return world[0]


@pytest.fixture(scope="module")
def keys(world: tuple[PartitionLake, list[PartitionKey]]) -> list[PartitionKey]:
    return world[1]


@pytest.fixture(scope="module")
def files(lake: PartitionLake, keys: list[PartitionKey]) -> list[Path]:
    return [Path(lake.store.address(lake.path(key))) for key in keys]


@pytest.fixture(scope="module")
def sql() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def test_duckdb_reads_the_hive_and_the_crs(
    sql: duckdb.DuckDBPyConnection, lake: PartitionLake, files: list[Path]
) -> None:
    """A30: a newer DuckDB refuses a CRS that is not PROJJSON."""
    pattern = lake.store.address("world/scene_footprints") + "/*/*.parquet"
    table = f"read_parquet('{pattern}', hive_partitioning=true)"
    rows = sql.execute(f"SELECT tile, count(*) FROM {table} GROUP BY tile ORDER BY tile").fetchall()
    assert sum(count for _, count in rows) == sum(pq.read_metadata(f).num_rows for f in files)
    assert [tile for tile, _ in rows] == ["1-0-0", "1-0-1", "1-1-0", "1-1-1"]
    types = {name: kind for name, kind, *_ in sql.execute(f"DESCRIBE FROM {table}").fetchall()}
    assert types["acquired_at"] == "TIMESTAMP WITH TIME ZONE"
    assert types["repairs"] == "VARCHAR[]"
    assert types["date"] == "DATE"
    assert types["geometry"].startswith("GEOMETRY") or types["geometry"] == "BLOB"
    if types["geometry"].startswith("GEOMETRY("):
        assert '"code":3857' in types["geometry"]


def test_duckdbs_box_filter_is_ours(
    sql: duckdb.DuckDBPyConnection, lake: PartitionLake, files: list[Path], keys: list[PartitionKey]
) -> None:
    mine = lake.read_many(keys, area=(10.0, 40.0, 20.0, 50.0))
    xmin, ymin, xmax, ymax = 1113194.9079327357, 4865942.2795, 2226389.8158654715, 6446275.8410
    found = sql.execute(
        f"SELECT count(*) FROM read_parquet({[str(path) for path in files]}) WHERE"
        f" bbox.xmin <= {xmax} AND bbox.xmax >= {xmin}"
        f" AND bbox.ymin <= {ymax} AND bbox.ymax >= {ymin}"
    ).fetchone()
    assert found == (mine.num_rows,)
    assert mine.num_rows > 10


def test_geopandas_reads_crs_types_and_rows(
    lake: PartitionLake, files: list[Path], keys: list[PartitionKey]
) -> None:
    for path, key in zip(files, keys, strict=True):
        frame = gpd.read_parquet(path)
        assert frame.crs.to_epsg() == 3857
        rows = lake.read(key).rows
        assert frame["item_id"].tolist() == rows["item_id"].to_pylist()
        assert shapely.to_wkb(frame.geometry.to_numpy()).tolist() == rows["geometry"].to_pylist()
        assert frame.geometry.is_valid.all()


def test_geopandas_reads_by_box(
    lake: PartitionLake, files: list[Path], keys: list[PartitionKey]
) -> None:
    """A31: a covering that GeoPandas accepts, and whose filter loses nothing."""
    box = (1_000_000.0, 4_000_000.0, 2_000_000.0, 6_000_000.0)
    for path, key in zip(files, keys, strict=True):
        frame = gpd.read_parquet(path, bbox=box)
        rows = lake.read(key).rows
        shapes = shapely.from_wkb(rows["geometry"].to_numpy(zero_copy_only=False))
        meets = shapely.intersects(shapely.box(*shapely.bounds(shapes).T), shapely.box(*box))
        expected = np.array(rows["item_id"].to_pylist(), dtype=object)[meets].tolist()
        assert frame["item_id"].tolist() == expected


def test_an_antimeridian_query_finds_both_sides(
    lake: PartitionLake, keys: list[PartitionKey]
) -> None:
    """A31: bbox (179, -1, -179, 2) returned nothing."""
    everything = lake.read_many(keys)
    shapes = shapely.from_wkb(everything["geometry"].to_numpy(zero_copy_only=False))
    degree = 111319.49079327358
    west, south, east, north = 175, -40, -170, 40
    found = lake.read_many(keys, area=(west, south, east, north))
    bounds = shapely.bounds(shapes)
    y0, y1 = -4865942.279503176, 4865942.279503176
    rows = (bounds[:, 1] <= y1) & (bounds[:, 3] >= y0)
    rows &= (bounds[:, 2] >= west * degree) | (bounds[:, 0] <= east * degree)
    assert found.num_rows == rows.sum() > 100
    signs = np.sign([box["xmin"] + box["xmax"] for box in found["bbox"].to_pylist()])
    assert set(signs) == {-1, 1}


def test_neighbours_in_a_file_are_neighbours_on_the_ground(files: list[Path]) -> None:
    largest = max(files, key=lambda path: path.stat().st_size)
    everything = gpd.read_parquet(largest, columns=["geometry"]).geometry.to_numpy()
    order = np.abs(np.diff(shapely.bounds(everything)[:, :2], axis=0)).sum(axis=1)
    shuffled = shapely.bounds(np.random.default_rng(1).permutation(everything))[:, :2]
    random = np.abs(np.diff(shuffled, axis=0)).sum(axis=1)
    assert order.mean() < random.mean() / 10


def test_the_whole_folder_is_one_dataset(
    lake: PartitionLake, files: list[Path], keys: list[PartitionKey]
) -> None:
    """The empty partition among them: an empty geopandas frame turns texts into numbers."""
    dataset = ds.dataset([str(path) for path in files], format="parquet")
    for path in files:
        assert pq.read_schema(path).equals(pq.read_schema(files[0]), check_metadata=False)
    assert dataset.count_rows() == lake.read_many(keys).num_rows
