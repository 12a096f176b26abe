"""Arrow tables and geopandas frames: types by the schema, both ways, in pandas 2 and 3."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import shapely

from scene_pipeline.errors import DataError
from scene_pipeline.lake.frames import from_geopandas, to_geopandas
from scene_pipeline.scenes.schema import SCENE_COLUMNS
from scene_pipeline_tests.services.scene_rows import key_of, make_partition

KEY = key_of()


def test_a_frame_goes_back_to_the_same_table() -> None:
    for rows in (0, 1, 50):
        table = make_partition(KEY, rows).rows
        assert from_geopandas(to_geopandas(table)).equals(table)


def test_types_are_the_schemas_also_without_rows() -> None:
    """A32: an empty geopandas frame turns texts into numbers and breaks the folder."""
    for rows in (0, 3):
        frame = to_geopandas(make_partition(KEY, rows).rows)
        assert list(frame.columns) == [c.name for c in SCENE_COLUMNS if c.name != "bbox"]
        assert frame.crs.to_epsg() == 3857
        assert frame.geometry.name == "geometry"
        for column in SCENE_COLUMNS:
            if pa.types.is_string(column.type):
                assert pd.api.types.is_string_dtype(frame[column.name]), column.name
            if pa.types.is_timestamp(column.type):
                assert frame[column.name].dtype == "datetime64[us, UTC]", column.name
            if pa.types.is_floating(column.type):
                assert frame[column.name].dtype == "float64", column.name
        assert frame["raw_seq"].dtype == "int64"


def test_nulls_are_missing_and_values_are_kept() -> None:
    instant = datetime(2024, 6, 1, 23, 59, 59, 999999, tzinfo=UTC)
    columns: dict[str, Any] = {
        "platform": ["", None],
        "updated_at": [instant, None],
        "cloud_cover_pct": [0.0, None],
        "repairs": [["made valid"], []],
    }
    frame = to_geopandas(make_partition(KEY, 2, columns=columns).rows)
    assert frame["platform"].tolist()[0] == ""
    for name in ("platform", "updated_at", "cloud_cover_pct"):
        assert frame[name].isna().tolist() == [False, True], name
    assert frame["updated_at"][0] == pd.Timestamp(instant)
    assert frame["acq_date"].tolist() == [date(2024, 6, 1)] * 2
    assert [list(found) for found in frame["repairs"]] == [["made valid"], []]
    assert from_geopandas(frame).equals(make_partition(KEY, 2, columns=columns).rows)


def test_pandas_own_nulls_and_types_are_taken() -> None:
    frame = to_geopandas(make_partition(KEY, 3).rows)
    frame["platform"] = pd.Series(["a", None, np.nan], dtype=object)
    frame["gsd_m"] = pd.Series([10, 20, 30], dtype="int64")
    frame["updated_at"] = pd.to_datetime(["2024-06-01T00:00:00+02:00"] * 3)
    frame.index = pd.Index(["x", "y", "z"])
    table = from_geopandas(frame)
    assert table["platform"].to_pylist() == ["a", None, None]
    assert table["gsd_m"].to_pylist() == [10.0, 20.0, 30.0]
    assert table["updated_at"].to_pylist() == [datetime(2024, 5, 31, 22, tzinfo=UTC)] * 3


def test_a_geometry_column_of_another_name_is_taken() -> None:
    table = make_partition(KEY, 3).rows
    assert from_geopandas(to_geopandas(table).rename_geometry("geom")).equals(table)


def test_the_bbox_is_computed_never_trusted() -> None:
    table = make_partition(KEY, 3).rows
    frame = to_geopandas(table)
    frame["bbox"] = "nonsense"
    moved = frame.set_geometry(frame.geometry.translate(1000, 0))
    found = from_geopandas(moved)["bbox"].to_pylist()
    expected = shapely.bounds(moved.geometry.to_numpy()).tolist()
    assert [list(box.values()) for box in found] == expected


def _spoil(frame: gpd.GeoDataFrame, shape: Any) -> gpd.GeoDataFrame:
    geometry = frame.geometry.to_numpy().copy()
    geometry[1] = shape
    return frame.set_geometry(gpd.GeoSeries(geometry, index=frame.index, crs=frame.crs))


HIGH = shapely.from_wkt("MULTIPOLYGON Z (((0 0 1, 1 0 1, 1 1 1, 0 0 1)))")
BAD = {
    "no CRS": lambda f: f.set_crs(None, allow_override=True),
    "lon/lat": lambda f: f.to_crs("OGC:CRS84"),
    "another projection": lambda f: f.to_crs(32632),
    "a null geometry": lambda f: _spoil(f, None),
    "an empty geometry": lambda f: _spoil(f, shapely.MultiPolygon()),
    "a Polygon": lambda f: _spoil(f, shapely.box(0, 0, 1, 1)),
    "heights": lambda f: _spoil(
        f, shapely.force_3d(shapely.MultiPolygon([shapely.box(0, 0, 1, 1)]))
    ),
    "a missing column": lambda f: f.drop(columns="platform"),
    "text in a number": lambda f: f.assign(gsd_m="ten"),
    "a number in a text": lambda f: f.assign(region=1.5),
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_frame_that_does_not_fit_is_refused(name: str) -> None:
    """A35, A40: no CRS, another CRS, heights; nothing is guessed."""
    frame = to_geopandas(make_partition(KEY, 3).rows)
    with pytest.raises(DataError):
        from_geopandas(BAD[name](frame))
