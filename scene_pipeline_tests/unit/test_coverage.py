"""Covered shares against areas known from the sphere, not from the code."""

import math

import numpy as np
import pyarrow as pa
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from scene_pipeline.scenes.coverage import COVERAGE_COLUMNS, cover_day
from scene_pipeline.scenes.mercator import RADIUS_M

HALF = math.pi * RADIUS_M


class Grid:
    """Named boxes in EPSG:3857."""

    name = "boxes"

    def __init__(self, **boxes: tuple[float, float, float, float]) -> None:
        self.boxes = boxes

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.boxes)

    def tiles_for(self, footprints: object) -> tuple[object, object]:
        raise NotImplementedError

    def bounds(self, key: str) -> tuple[float, float, float, float]:
        return self.boxes[key]


def table(*scenes: tuple[shapely.Geometry, float | None]) -> pa.Table:
    return pa.table(
        {
            "geometry": pa.array([shapely.to_wkb(piece) for piece, _ in scenes], pa.binary()),
            "cloud_cover_pct": pa.array([cloud for _, cloud in scenes], pa.float64()),
        }
    )


def mercator_y(lat_deg: float) -> float:
    return RADIUS_M * math.atanh(math.sin(math.radians(lat_deg)))


def test_every_tile_has_a_row_in_the_grids_order() -> None:
    grid = Grid(b=(0, 0, 10, 10), a=(10, 0, 20, 10))
    cover = cover_day({"a": table((shapely.box(10, 0, 15, 10), 40.0))}, grid)
    assert cover.schema == COVERAGE_COLUMNS
    assert cover["tile"].to_pylist() == ["b", "a"]
    assert cover["scenes"].to_pylist() == [0, 1]
    assert cover["covered_share"].to_pylist() == pytest.approx([0.0, 0.5])
    assert cover["cloud_cover_pct"].to_pylist() == [None, 40.0]


def test_overlap_is_covered_once() -> None:
    grid = Grid(t=(0, 0, 10, 10))
    rows = table((shapely.box(0, 0, 6, 10), None), (shapely.box(4, 0, 10, 10), None))
    cover = cover_day({"t": rows}, grid)
    assert cover["covered_share"][0].as_py() == pytest.approx(1.0)
    assert cover["cloud_cover_pct"][0].as_py() is None


def test_cloud_is_weighted_by_area_over_the_scenes_that_state_it() -> None:
    grid = Grid(t=(0, 0, 10, 10))
    rows = table(
        (shapely.box(0, 0, 9, 10), 10.0),
        (shapely.box(9, 0, 10, 10), 90.0),
        (shapely.box(0, 0, 10, 10), None),
    )
    assert cover_day({"t": rows}, grid)["cloud_cover_pct"][0].as_py() == pytest.approx(18.0)


def test_a_band_of_latitude_covers_its_true_share_of_the_northern_quarter() -> None:
    # Zoom 1: the zone 0..30° N is half of the hemisphere's area (Archimedes), less the cap that
    # Web Mercator leaves out; on Mercator's plane it would be 17 %.
    grid = Grid(t=(-HALF, 0, 0, HALF))
    band = shapely.box(-HALF, 0, 0, mercator_y(30))
    share = cover_day({"t": table((band, None))}, grid)["covered_share"][0].as_py()
    assert share == pytest.approx(0.5 / math.tanh(math.pi), rel=1e-9)


def test_a_long_diagonal_is_followed_as_the_tile_draws_it() -> None:
    # The lower triangle of a zoom 1 tile: integral of the width over R·sin(lat), done numerically.
    grid = Grid(t=(-HALF, 0, 0, HALF))
    triangle = shapely.Polygon([(-HALF, 0), (0, 0), (0, HALF)])
    y = np.linspace(0, HALF, 200_001)
    heights = RADIUS_M * np.tanh(y / RADIUS_M)
    expected = np.trapezoid(HALF - y, heights) / (HALF * heights[-1])
    share = cover_day({"t": table((triangle, None))}, grid)["covered_share"][0].as_py()
    assert share == pytest.approx(expected, rel=1e-7)


boxes = st.tuples(*[st.floats(0, 1, width=32) for _ in range(4)]).filter(
    lambda b: abs(b[0] - b[2]) > 1e-3 and abs(b[1] - b[3]) > 1e-3
)


@given(st.lists(boxes, min_size=1, max_size=6), boxes)
def test_more_scenes_never_cover_less(
    some: list[tuple[float, ...]], one_more: tuple[float, ...]
) -> None:
    side = 313_086.0
    bottom = mercator_y(47)
    grid = Grid(t=(0.0, bottom, side, bottom + side))

    def piece(corners: tuple[float, ...]) -> tuple[shapely.Geometry, None]:
        x0, y0, x1, y1 = (side * c for c in corners)
        return shapely.box(
            min(x0, x1), bottom + min(y0, y1), max(x0, x1), bottom + max(y0, y1)
        ), None

    pieces = [piece(corners) for corners in some]
    before = cover_day({"t": table(*pieces)}, grid)["covered_share"][0].as_py()
    after = cover_day({"t": table(*pieces, piece(one_more))}, grid)["covered_share"][0].as_py()
    assert 0 < before <= 1
    assert before <= after + 1e-12
