"""A whole partition: raw segments to GeoParquet to PostGIS, against plain geopandas."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import pyarrow as pa
import shapely
import sqlalchemy as sa

from scene_pipeline.lake.layout import segment_path
from scene_pipeline.lake.partitions import PartitionLake
from scene_pipeline.lake.segments import read_segment, write_segment
from scene_pipeline.lake.store import LocalStore
from scene_pipeline.scenes.grid import WebMercatorGrid
from scene_pipeline.scenes.item import parse_and_repair, scenes_to_table
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.partition import build_partition
from scene_pipeline.scenes.schema import RAW_COLUMNS
from scene_pipeline_tests.benchmarks.bench_postgis import _database, _filled
from scene_pipeline_tests.benchmarks.harness import Result, benchmark, compare
from scene_pipeline_tests.services.scene_rows import REGION, make_wide_properties

_KEY = PartitionKey(datetime(2024, 6, 1, tzinfo=UTC).date(), "7-66-45")
_COLUMNS = [column.name for column in RAW_COLUMNS if column.name not in {"item", "digest"}]
_SCENES, _A_PAGE = 1000, 250


def _make_item(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """A swath footprint of 11 vertices that meets the tile; its neighbours' edges cut a third."""
    west, south = rng.uniform(5.7, 7.6), rng.uniform(45.3, 46.7)
    angles = np.linspace(0, 2 * np.pi, 11)
    ring = np.stack([west + 0.8 + 0.8 * np.cos(angles), south + 0.5 * np.sin(angles)], axis=1)
    ring[-1] = ring[0]
    wide = json.loads(make_wide_properties(f"S2A_{number:06d}"))
    assets = {name: {"href": href, "type": "image/tiff"} for name, href in wide["assets"].items()}
    acquired = datetime(2024, 6, 1, 10, tzinfo=UTC) + timedelta(seconds=number)
    return {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": f"S2A_32TLR_20240601_{number}",
        "collection": "sentinel-2-l2a",
        "geometry": {"type": "Polygon", "coordinates": [ring.tolist()]},
        "properties": {
            **{name: value for name, value in wide.items() if name != "assets"},
            "datetime": acquired.isoformat().replace("+00:00", "Z"),
            "created": "2024-06-02T00:00:00Z",
            "platform": "sentinel-2a",
            "eo:cloud_cover": number % 100,
        },
        "links": [{"rel": "self", "href": f"https://stac.example/items/{number}"}],
        "assets": assets,
    }


class _Ours:
    def __init__(self, folder: Path) -> None:
        self._store = LocalStore(folder)
        self._lake = PartitionLake(self._store, REGION)
        self._grid = WebMercatorGrid(7, (6.0, 45.0, 12.0, 48.0))
        self._warehouse = _filled()
        rng = np.random.default_rng(1)
        items = [_make_item(number, rng) for number in range(_SCENES)]
        self.segments = [
            write_segment(
                self._store, REGION, scenes_to_table(parse_and_repair(page).scenes)
            ).digest
            for page in (items[at : at + _A_PAGE] for at in range(0, _SCENES, _A_PAGE))
        ]
        self.bounds = self._grid.bounds(_KEY.tile)

    def __call__(self) -> None:
        pages = [
            read_segment(self._store, REGION, digest, columns=_COLUMNS) for digest in self.segments
        ]
        built = build_partition(
            pa.concat_tables(pages), key=_KEY, grid=self._grid, region=REGION, raw_seq=1
        )
        self._lake.write(_KEY, built.rows, raw_seq=1)
        self._warehouse.replace(self._lake.read(_KEY))


class _Plain:
    """The script that one writes first: read, repair, project, clip, write twice."""

    def __init__(self, folder: Path, segments: list[str], bounds: tuple[float, ...]) -> None:
        self._paths = [folder / segment_path(REGION, digest) for digest in segments]
        self._output = folder / "plain.parquet"
        self._tile = shapely.box(*bounds)
        self._engine = sa.create_engine(_database())

    def __call__(self) -> None:
        pages = [gpd.read_parquet(path, columns=_COLUMNS) for path in self._paths]
        frame = gpd.GeoDataFrame(pd.concat(pages, ignore_index=True), crs=pages[0].crs)
        frame = frame[frame["acq_date"] == _KEY.day]
        broken = ~frame.is_valid
        frame.loc[broken, "geometry"] = frame.loc[broken, "geometry"].make_valid()
        whole = frame.to_crs(3857)
        frame = gpd.clip(whole, self._tile)
        frame["area_share"] = frame.area / whole.area.loc[frame.index]
        frame["geometry"] = [
            shape if shape.geom_type == "MultiPolygon" else shapely.MultiPolygon([shape])
            for shape in frame.geometry
        ]
        frame["region"], frame["tile"], frame["raw_seq"] = REGION, _KEY.tile, 1
        frame["repairs"] = "{}"
        frame.to_parquet(self._output, compression="zstd", write_covering_bbox=True)
        frame = frame.rename_geometry("geom")
        place = {"region": REGION, "day": _KEY.day, "tile": _KEY.tile}
        with self._engine.begin() as connection:
            connection.execute(
                sa.text(
                    "DELETE FROM theirs.scene_footprints"
                    " WHERE region = :region AND acq_date = :day AND tile = :tile"
                ),
                place,
            )
            frame.to_postgis("scene_footprints", connection, schema="theirs", if_exists="append")


@benchmark("partition_1k_vs_plain_geopandas")
def partition_1k() -> Result:
    folder = Path(tempfile.mkdtemp(prefix="scene-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    ours = _Ours(folder)
    plain = _Plain(folder, ours.segments, ours.bounds)
    ours(), plain()
    _require_equal_tables()
    return compare(ours, plain, rounds=9, target=0.35)


def _require_equal_tables() -> None:
    """Both sides hold the same Items with the same shapes, or the ratio says nothing."""
    query = (
        "SELECT count(*), count(DISTINCT item_id), sum(public.ST_Area(geom))::numeric(24, 0)"
        " FROM {}.scene_footprints WHERE region = :region AND acq_date = :day AND tile = :tile"
    )
    place = {"region": REGION, "day": _KEY.day, "tile": _KEY.tile}
    with sa.create_engine(_database()).connect() as connection:
        found = [
            connection.execute(sa.text(query.format(schema)), place).one()
            for schema in ("ours", "theirs")
        ]
    assert found[0] == found[1], found
    assert found[0][0] > _SCENES / 2, found
