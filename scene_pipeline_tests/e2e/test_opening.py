"""Every recipe of docs/opening.md, run as it stands there, against counts made another way."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyogrio
import pytest
import shapely

from scene_pipeline.scenes.coverage import cover_day
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.mercator import project
from scene_pipeline.warehouse.migrate import migrate_warehouse
from scene_pipeline_tests.services.built_region import BuiltRegion, build_region
from scene_pipeline_tests.services.dagster import wait_until
from scene_pipeline_tests.services.postgres import PostgresCluster, find_free_port

DOCS = Path(__file__).resolve().parents[2] / "docs"
DAY = date(2024, 6, 2)
SUVA = (178.44, -18.14)


def read_recipes() -> dict[str, list[tuple[str, str]]]:
    """Fenced blocks (language, text) by the heading above them."""
    recipes: dict[str, list[tuple[str, str]]] = defaultdict(list)
    parts = re.split(r"^## (.+)$", (DOCS / "opening.md").read_text(), flags=re.MULTILINE)
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        for block in re.finditer(r"^```(\w+)\n(.*?)^```$", body, re.MULTILINE | re.DOTALL):
            recipes[heading].append((block[1], block[2]))
    return recipes


RECIPES = read_recipes()


def recipe(heading: str, language: str, words: str = "") -> str:
    """The one block under ``heading`` in ``language`` that holds ``words``."""
    (found,) = [t for kind, t in RECIPES[heading] if kind == language and words in t]
    return found


def run_python(text: str, folder: Path) -> dict[str, Any]:
    """The names that a recipe leaves behind when it runs in ``folder``."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(text, "docs/opening.md", "exec"), names)
    return names


def run_psql(text: str, url: str, folder: Path, **variables: object) -> list[dict[str, str]]:
    """A recipe's rows from psql; its first comment must be the command that a reader would type."""
    psql = shutil.which("psql")
    assert psql, "psql comes with the server"
    for name in variables:
        assert f"-v {name}=" in text.splitlines()[0], text
    options = [part for name, value in variables.items() for part in ("-v", f"{name}={value}")]
    finished = subprocess.run(
        [psql, url, "--csv", "-q", "-v", "ON_ERROR_STOP=1", *options, "-f", "-"],
        input=text, text=True, capture_output=True, cwd=folder, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return list(csv.DictReader(io.StringIO(finished.stdout)))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> BuiltRegion:
    """A region as the demo leaves it: lake and GeoPackage."""
    region = build_region(tmp_path_factory.mktemp("embedded"))
    shutil.copytree(DOCS, region.base / "docs")
    return region


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresCluster) -> BuiltRegion:
    """The same region in PostGIS."""
    from scene_pipeline.settings import read_settings

    url = postgres.url(postgres.new_database())
    target = read_settings(warehouse_url=url).warehouse_engine_url
    assert target is not None
    migrate_warehouse(target, schema="scenes")
    return build_region(tmp_path_factory.mktemp("served"), warehouse_url=url)


def url_of(region: BuiltRegion) -> str:
    return region.settings.warehouse_url.get_secret_value()


def rows_of(region: BuiltRegion, *days: date) -> pa.Table:
    """The lake's rows of ``days``, by the pipeline's own reader."""
    tiles = region.pipeline.definition.tiles
    keys = [PartitionKey(day, tile) for day in days or region.days for tile in tiles]
    return region.pipeline.lake.read_many(keys)


def items_over_suva(region: BuiltRegion) -> set[str]:
    """Items whose piece holds the point: the exact test, on every row."""
    table = rows_of(region)
    x, y = project([SUVA])[0]
    inside = shapely.intersects_xy(shapely.from_wkb(table["geometry"].to_numpy()), x, y)
    return set(table.filter(pa.array(inside))["item_id"].to_pylist())


def test_every_block_of_the_page_is_run_here() -> None:
    source = Path(__file__).read_text()
    assert len(RECIPES) == 5
    for heading, blocks in RECIPES.items():
        assert source.count(f'recipe("{heading}"') == len(blocks), heading


# --- the lake ------------------------------------------------------------------------------------


def test_duckdb_counts_scenes_by_day(embedded: BuiltRegion) -> None:
    names = run_python(recipe("DuckDB", "python", "by_day"), embedded.base)
    counts = {day: len(set(rows_of(embedded, day)["item_id"].to_pylist())) for day in embedded.days}
    expected = [(day, count) for day, count in counts.items() if count]
    assert 0 < len(expected) < len(counts)  # a day without a scene is no row, and no error
    assert [(day, scenes) for day, scenes, _ in names["by_day"]] == expected
    assert all(0 <= cloud <= 100 for _, _, cloud in names["by_day"])


def test_duckdb_finds_scenes_over_a_point(embedded: BuiltRegion) -> None:
    names = run_python(recipe("DuckDB", "python", "over_suva"), embedded.base)
    found = {item for _, _, item, _ in names["over_suva"]}
    exact = items_over_suva(embedded)
    assert exact
    assert exact <= found  # boxes hold at least what the outlines hold
    assert found < set(rows_of(embedded)["item_id"].to_pylist())


def test_geopandas_reads_a_day_and_a_part_of_it(embedded: BuiltRegion) -> None:
    names = run_python(recipe("GeoPandas", "python", "gpd.read_parquet"), embedded.base)
    table = rows_of(embedded, DAY)
    assert len(names["scenes"]) == table.num_rows
    assert names["scenes"].crs == "EPSG:3857"
    boxes = names["scenes"].bounds
    meets = (
        (boxes.minx <= 19_900_000) & (boxes.maxx >= 19_800_000)
        & (boxes.miny <= -2_000_000) & (boxes.maxy >= -2_100_000)
    )  # fmt: skip
    assert 0 < meets.sum() < len(boxes)
    assert sorted(names["part"].item_id) == sorted(names["scenes"][meets].item_id)
    assert len(names["whole"]) == len(set(table["item_id"].to_pylist()))


def test_geopandas_reads_the_geopackage(embedded: BuiltRegion) -> None:
    names = run_python(recipe("GeoPandas", "python", "gpd.read_file"), embedded.base)
    rows = rows_of(embedded, DAY)
    clear = rows.filter(pa.compute.less(rows["cloud_cover_pct"], 50))
    expected = sorted(clear["item_id"].to_pylist())
    assert expected
    assert sorted(names["table"].item_id) == expected


# --- PostGIS -------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_psql_finds_scenes_over_a_point(served: BuiltRegion) -> None:
    text = recipe("psql and PostGIS", "sql", "ST_Covers")
    lon, lat = SUVA
    rows = run_psql(
        text, url_of(served), served.base, lon=lon, lat=lat, month=served.days[0].isoformat()
    )
    assert {row["item_id"] for row in rows} == items_over_suva(served) != set()
    assert run_psql(text, url_of(served), served.base, lon=lon, lat=lat, month="2024-05-01") == []


@pytest.mark.postgres
def test_psql_measures_coverage_by_tile(served: BuiltRegion) -> None:
    text = recipe("psql and PostGIS", "sql", "covered_share")
    rows = run_psql(text, url_of(served), served.base, day=DAY)
    table, grid = rows_of(served, DAY), served.pipeline.grid
    by_tile = {
        tile: table.filter(pa.compute.equal(table["tile"], tile))
        for tile in sorted(set(table["tile"].to_pylist()))
    }
    ours = cover_day(by_tile, grid, tiles=list(by_tile)).to_pylist()
    assert [row["tile"] for row in rows] == list(by_tile)
    for theirs, row in zip(rows, ours, strict=True):
        assert int(theirs["scenes"]) == row["scenes"]
        # The ellipsoid against the sphere, and geodesics against straight edges on the map.
        assert float(theirs["covered_share"]) == pytest.approx(row["covered_share"], rel=0.005)


@pytest.mark.postgres
def test_psql_lists_whole_scenes(served: BuiltRegion) -> None:
    rows = run_psql(
        recipe("psql and PostGIS", "sql", "current_scenes"), url_of(served), served.base
    )
    items = set(rows_of(served)["item_id"].to_pylist())
    assert [row["item_id"] for row in rows] == [r["item_id"] for r in rows if r["item_id"] in items]
    assert {row["item_id"] for row in rows} == items
    assert all(0 < float(row["area_share"]) <= 1.001 for row in rows)


# --- QGIS ----------------------------------------------------------------------------------------


def test_the_geopackage_carries_the_style(embedded: BuiltRegion) -> None:
    run_python(recipe("QGIS", "python"), embedded.base)
    path = embedded.base / ".scene_pipeline" / "scenes.gpkg"
    with sqlite3.connect(path) as gpkg:
        ((table, column, qml, default),) = gpkg.execute(
            "SELECT f_table_name, f_geometry_column, styleQML, useAsDefault FROM layer_styles"
        )
        geometry = gpkg.execute("SELECT table_name, column_name FROM gpkg_geometry_columns")
        assert (table, column) in set(geometry)
    gpkg.close()
    assert default == 1
    assert qml == (DOCS / "footprints.qml").read_text()
    # QGIS reads styles through GDAL, which shows registered tables alone.
    assert "layer_styles" in {name for name, _ in pyogrio.list_layers(path)}
    assert (
        pyogrio.read_info(path, layer="scene_footprints")["features"] == rows_of(embedded).num_rows
    )


def test_the_style_asks_only_for_columns_that_exist(embedded: BuiltRegion) -> None:
    style = ET.parse(DOCS / "footprints.qml").getroot()
    assert style.tag == "qgis"
    filters = [rule.get("filter") for rule in style.iter("rule") if rule.get("filter")]
    assert len(filters) >= 5
    columns = {name for text in filters for name in re.findall(r'"(\w+)"', text or "")}
    assert columns
    path = embedded.base / ".scene_pipeline" / "scenes.gpkg"
    assert columns <= set(pyogrio.read_info(path, layer="scene_footprints")["fields"])


@pytest.mark.postgres
def test_postgis_carries_the_style(served: BuiltRegion) -> None:
    style = (DOCS / "footprints.qml").read_text()
    assert run_psql(recipe("QGIS", "sql"), url_of(served), served.base, style=style) == []
    query = "-- psql\nSELECT stylename, (xpath('name(/*)', styleqml))[1] AS root FROM layer_styles"
    assert run_psql(query, url_of(served), served.base) == [
        {"stylename": "cloud cover", "root": "qgis"}
    ]


# --- tiles ---------------------------------------------------------------------------------------


@pytest.fixture
def tile_server(served: BuiltRegion, tmp_path: Path) -> Iterator[str]:
    """The recipe's own command, from its own shell."""
    port = find_free_port()
    text = recipe("A tile server", "sh")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {
        **os.environ, "PATH": path, "WAREHOUSE": url_of(served), "PORT": str(port)
    }  # fmt: skip
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            ["sh", "-c", f"exec env {text}"], env=environment, stdout=log, stderr=log, cwd=tmp_path
        )

    def answers() -> bool:
        assert process.poll() is None, (tmp_path / "server.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/collections", timeout=10) as page:
                return "scenes.scene_footprints" in page.read().decode()
        except OSError:
            return False

    try:
        wait_until(answers, "the tile server", deadline_s=60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


def read_tile(content: bytes, folder: Path) -> set[str]:
    """The Items in a vector tile, as GDAL reads it."""
    path = folder / "70.pbf"
    path.write_bytes(content)
    layers = pyogrio.list_layers(f"MVT:{path}")
    assert len(layers) == 1
    return set(pyogrio.read_dataframe(f"MVT:{path}", layer=layers[0][0]).item_id)


@pytest.mark.postgres
def test_a_tile_server_serves_the_table(
    served: BuiltRegion, tile_server: str, tmp_path: Path
) -> None:
    address = f"{tile_server}/collections/scenes.scene_footprints/tiles/WebMercatorQuad/7/127/70"
    with urllib.request.urlopen(address, timeout=30) as answer:
        shown = read_tile(answer.read(), tmp_path)
    table = rows_of(served)
    expected = table.filter(pa.compute.equal(table["tile"], "7-127-70"))["item_id"].to_pylist()
    assert set(expected) <= shown
    with urllib.request.urlopen(f"{tile_server}/collections", timeout=30) as answer:
        listed = {each["id"] for each in json.load(answer)["collections"]}
    assert {"scenes.scene_footprints", "scenes.current_scenes"} <= listed


@pytest.mark.postgres
def test_a_function_makes_the_tile_of_one_day(served: BuiltRegion, tmp_path: Path) -> None:
    run_psql(recipe("A tile server", "sql"), url_of(served), served.base)
    query = f"SELECT encode(scenes.footprint_tiles(7, 127, 70, '{DAY}'), 'hex') AS tile"
    (row,) = run_psql(query, url_of(served), served.base)
    table = rows_of(served, DAY)
    expected = table.filter(pa.compute.equal(table["tile"], "7-127-70"))["item_id"].to_pylist()
    assert set(expected) <= read_tile(bytes.fromhex(row["tile"]), tmp_path)
