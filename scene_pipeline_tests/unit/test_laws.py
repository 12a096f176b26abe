"""Each law of a partition's rows catches its own violation, by Item, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import shapely

from scene_pipeline.scenes.laws import LAWS, find_violations
from scene_pipeline.scenes.schema import SCENE_COLUMNS, arrow_schema
from scene_pipeline_tests.services.scene_rows import REGION, key_of, make_partition

BOUNDS = (-1e5, -1e5, 5e5, 5e5)  # holds every made-up piece
KEY = key_of()


def violations(rows: pa.Table, bounds: tuple[float, float, float, float] = BOUNDS) -> Any:
    return find_violations(rows, key=KEY, region=REGION, bounds=bounds)


def with_geometry(shape: Any, row: int = 1) -> pa.Table:
    rows = make_partition(KEY, 4).rows
    geometry = rows["geometry"].to_pylist()
    geometry[row] = shapely.to_wkb(shape)
    place = rows.schema.get_field_index("geometry")
    return rows.set_column(place, rows.schema.field(place), pa.array(geometry, pa.binary()))


def second_item(rows: pa.Table) -> str:
    return f"{rows['collection'][1].as_py()}/{rows['item_id'][1].as_py()}"


BOW_TIE = shapely.MultiPolygon([[[(0, 0), (9, 9), (0, 9), (9, 0), (0, 0)], []]])


@pytest.mark.parametrize(
    ("law", "shape"),
    [
        ("valid_geometry", BOW_TIE),
        ("valid_geometry", shapely.box(0, 0, 9, 9)),
        ("valid_geometry", shapely.MultiPoint([(0, 0)])),
        ("inside_tile", shapely.multipolygons([shapely.box(0, 0, 9, 5e5 + 1)])),
        ("inside_tile", shapely.multipolygons([shapely.box(-1e5 - 1, 0, 9, 9)])),
    ],
)
def test_a_bad_piece_is_named(law: str, shape: Any) -> None:
    rows = with_geometry(shape)
    assert violations(rows) == {law: [second_item(rows)]}


def test_an_empty_piece_breaks_two_laws() -> None:
    rows = with_geometry(shapely.MultiPolygon())
    assert set(violations(rows)) == {"valid_geometry", "inside_tile"}


def test_an_item_twice_is_named_once() -> None:
    rows = make_partition(KEY, ["a", "b", "a"]).rows
    assert violations(rows) == {"unique_items": ["sentinel-2-l2a/a"]}
    # The same id in another Collection is another Item.
    other = make_partition(
        KEY, ["a", "a"], columns={"collection": ["sentinel-2-l2a", "landsat-c2-l2"]}
    ).rows
    assert violations(other) == {}


@pytest.mark.parametrize(
    ("column", "value"), [("acq_date", key_of(2).day), ("tile", "7-67-45"), ("region", "elsewhere")]
)
def test_a_row_of_another_partition_is_named(column: str, value: Any) -> None:
    right = make_partition(KEY, 3).rows[column].to_pylist()
    rows = make_partition(KEY, 3, columns={column: [right[0], value, right[2]]}).rows
    assert violations(rows) == {"in_its_partition": [second_item(rows)]}


def test_right_rows_and_no_rows_break_nothing() -> None:
    assert violations(make_partition(KEY, 50).rows) == {}
    assert violations(arrow_schema(SCENE_COLUMNS).empty_table()) == {}


def test_every_law_is_tested_here() -> None:
    cases: list[Callable[[], Any]] = [
        lambda: violations(with_geometry(BOW_TIE)),
        lambda: violations(make_partition(KEY, ["a", "a"]).rows),
        lambda: violations(make_partition(KEY, 1, columns={"tile": ["x"]}).rows),
        lambda: violations(make_partition(KEY, 1).rows, (0, 0, 1, 1)),
    ]
    assert {law for case in cases for law in case()} == set(LAWS)
