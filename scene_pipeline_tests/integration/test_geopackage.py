"""The GeoPackage as other programs and other processes see it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyogrio
import pytest
import shapely
from pyproj import CRS

from scene_pipeline.errors import SettingsError, TableMismatchError, WarehouseUnavailableError
from scene_pipeline.settings import read_settings
from scene_pipeline.warehouse import Replaced, TableVersion, open_warehouse
from scene_pipeline.warehouse.geopackage import GeoPackageWarehouse
from scene_pipeline_tests.services.scene_rows import REGION, key_of, make_partition
from scene_pipeline_tests.services.writers import WriterJob, open_target, run_writers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scenes.gpkg"


def open_file(path: Path, *, deadline_s: float = 20) -> GeoPackageWarehouse:
    return GeoPackageWarehouse(path, region=REGION, deadline_s=deadline_s)


def test_gdal_opens_it_with_crs_layer_name_and_extent(path: Path) -> None:
    partition = make_partition(key_of(), 30)
    open_file(path).replace(partition)
    layers = dict(pyogrio.list_layers(path).tolist())
    assert layers == {"scene_footprints": "MultiPolygon", "partition_versions": None}
    info = pyogrio.read_info(path, layer="scene_footprints", force_total_bounds=True)
    assert CRS.from_user_input(info["crs"]) == CRS.from_epsg(3857)
    assert info["geometry_name"] == "geom"
    assert info["features"] == 30
    shapes = shapely.from_wkb(partition.rows["geometry"].to_pylist())
    assert info["total_bounds"] == pytest.approx(shapely.total_bounds(shapes))
    kinds = dict(zip(info["fields"].tolist(), info["ogr_types"], strict=True))
    assert kinds["acq_date"] == "OFTDate"
    assert kinds["acquired_at"] == "OFTDateTime"
    assert kinds["cloud_cover_pct"] == "OFTReal"
    assert kinds["raw_seq"] == "OFTInteger64"


def test_geopandas_reads_the_values(path: Path) -> None:
    """Times in the standard's milliseconds: a finer one would draw a warning from GDAL."""
    partition = make_partition(key_of(), 9, columns={"updated_at": [None] * 9})
    rows = partition.rows
    open_file(path).replace(partition)
    frame = pyogrio.read_dataframe(path, layer="scene_footprints")
    assert frame["item_id"].tolist() == rows["item_id"].to_pylist()
    assert [instant.to_pydatetime() for instant in frame["acquired_at"]] == [
        instant.replace(microsecond=123000) for instant in rows["acquired_at"].to_pylist()
    ]
    assert frame["updated_at"].isna().all()
    assert frame["cloud_cover_pct"].tolist() == rows["cloud_cover_pct"].to_pylist()
    assert [shape.wkb for shape in frame.geometry] == rows["geometry"].to_pylist()


def test_gdal_filters_by_box_through_the_envelopes(path: Path) -> None:
    partition = make_partition(key_of(), 50)
    open_file(path).replace(partition)
    shapes = shapely.from_wkb(partition.rows["geometry"].to_pylist())
    box = (100_000, 100_000, 120_000, 120_000)
    found = pyogrio.read_dataframe(path, layer="scene_footprints", bbox=box)
    expected = [
        item
        for item, shape in zip(partition.rows["item_id"].to_pylist(), shapes, strict=True)
        if shape.intersects(shapely.box(*box))
    ]
    assert 0 < len(expected) < 50
    assert found["item_id"].tolist() == expected


def test_the_extent_follows_what_is_replaced(path: Path) -> None:
    """GDAL stores the extent that it computed: it must not outlive the rows."""
    warehouse = open_file(path)
    for seed in (1, 2):
        partition = make_partition(key_of(), 3, raw_seq=seed, seed=seed)
        warehouse.replace(partition)
        info = pyogrio.read_info(path, layer="scene_footprints", force_total_bounds=True)
        shapes = shapely.from_wkb(partition.rows["geometry"].to_pylist())
        assert info["total_bounds"] == pytest.approx(shapely.total_bounds(shapes))


def test_it_is_one_file(path: Path) -> None:
    open_file(path).replace(make_partition(key_of(), 3))
    assert [entry.name for entry in path.parent.iterdir()] == ["scenes.gpkg"]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (0x47504B47,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_eight_processes_share_a_file_that_is_not_there_yet(path: Path) -> None:
    keys = (key_of(1), key_of(1, "7-66-46"))
    jobs = [
        WriterJob(str(path), n, keys, ("seam", *(f"i-{i}" for i in range(10 + n))), rounds=3)
        for n in range(8)
    ]
    with run_writers(jobs) as futures:
        outcomes = [outcome for future in futures for outcome in future.result()]
    assert len(outcomes) == 8 * 3 * 2
    assert all(isinstance(outcome, Replaced) for outcome in outcomes), outcomes
    warehouse = open_target(str(path))
    for key in keys:
        stored = warehouse.read(key)
        (writer,) = set(stored["processing_baseline"].to_pylist())
        assert stored["item_id"].to_pylist() == sorted(jobs[int(writer)].items)
        assert warehouse.read_versions([key]) == {key: TableVersion(1, stored.num_rows)}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.close()


def test_a_file_that_stays_locked_fails_by_name(path: Path) -> None:
    warehouse = open_file(path, deadline_s=0.2)
    warehouse.replace(make_partition(key_of(), 1))
    batch = [make_partition(key_of(day), 1) for day in (2, 3)]
    with locked(path):
        with pytest.raises(WarehouseUnavailableError, match="locked") as caught:
            warehouse.replace(make_partition(key_of(), 2))
        outcomes = list(warehouse.replace_many(batch))
        with pytest.raises(WarehouseUnavailableError, match="locked"):
            warehouse.read(key_of())
    assert "2024-06-01|7-66-45 of region alps" in caught.value.where
    assert [key for key, _ in outcomes] == [key_of(2), key_of(3)]
    assert warehouse.count_rows([key_of(day) for day in (1, 2, 3)]) == {
        key_of(1): 1,
        key_of(2): 0,
        key_of(3): 0,
    }


@pytest.mark.parametrize("content", [b"no database at all, but quite long " * 100, None])
def test_a_foreign_file_is_refused_and_left_alone(path: Path, content: bytes | None) -> None:
    if content is None:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE theirs (a)")
        connection.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(TableMismatchError, match=r"scenes\.gpkg") as caught:
        open_file(path).replace(make_partition(key_of(), 1))
    assert "move it" in caught.value.next_step
    assert path.read_bytes() == before


def test_a_kill_in_mid_transaction_leaves_the_old_partition(path: Path) -> None:
    """kill -9 after the delete and the insert, before the commit."""
    old = make_partition(key_of(), 4)
    open_file(path).replace(old)
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from scene_pipeline.warehouse import geopackage\n"
        "from scene_pipeline_tests.services.scene_rows import REGION, key_of, make_partition\n"
        "class Dying(geopackage.GeoPackageWarehouse):\n"
        "    def _take_from_other_days(self, connection, key):\n"
        "        found = connection.execute('SELECT count(*) FROM scene_footprints').fetchone()\n"
        "        assert found == (2000,)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "Dying(Path(sys.argv[1]), region=REGION, deadline_s=5)"
        ".replace(make_partition(key_of(), 2000, raw_seq=2))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert ended.returncode == -9
    warehouse = open_file(path)
    assert warehouse.read(key_of()).equals(old.rows)
    assert warehouse.read_versions([key_of()]) == {key_of(): TableVersion(1, 4)}
    assert warehouse.replace(make_partition(key_of(), 2000, raw_seq=2)).deleted_rows == 4


def test_it_lies_beside_the_lake(tmp_path: Path) -> None:
    warehouse = open_warehouse(read_settings(lake=str(tmp_path / "home" / "lake")))
    assert isinstance(warehouse, GeoPackageWarehouse)
    assert warehouse.path == tmp_path / "home" / "scenes.gpkg"
    assert warehouse.read_versions([key_of()]) == {}
    assert not (tmp_path / "home").exists(), "a read creates nothing"


def test_a_lake_in_s3_needs_a_warehouse_url() -> None:
    with pytest.raises(SettingsError, match="no folder for a GeoPackage") as caught:
        open_warehouse(read_settings(lake="s3://bucket/lake"))
    assert "SCENE_PIPELINE_WAREHOUSE_URL" in caught.value.next_step


def test_the_embedded_warehouse_starts_without_heavy_imports(path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from scene_pipeline.warehouse.geopackage import GeoPackageWarehouse\n"
        "from scene_pipeline.scenes.schema import SCENE_COLUMNS, arrow_schema\n"
        "from scene_pipeline.scenes.keys import parse_key\n"
        "from scene_pipeline.warehouse import PartitionRows\n"
        "rows = arrow_schema(SCENE_COLUMNS).empty_table()\n"
        "warehouse = GeoPackageWarehouse(Path(sys.argv[1]), region='alps', deadline_s=5)\n"
        "warehouse.replace(PartitionRows(parse_key('2024-06-01|a'), rows, 1))\n"
        "heavy = {'geopandas', 'shapely', 'pyogrio', 'psycopg', 'geoalchemy2', 'alembic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True
    )
    assert ended.stdout == "[]\n"
