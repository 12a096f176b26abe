"""The grid against mercantile: its published numbers, and its code on random areas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mercantile
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scene_pipeline.scenes.grid import WebMercatorGrid
from scene_pipeline.scenes.mercator import HALF_WORLD_M, project, unproject


@pytest.fixture(scope="module")
def expectations(real_data: Path) -> dict[str, Any]:
    path = real_data / "golden" / "mercantile" / "expectations.json"
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def key(tile: list[int]) -> str:
    x, y, z = tile
    return f"{z}-{x}-{y}"


def test_published_bounds(expectations: dict[str, Any]) -> None:
    for case in expectations["bounds"]:
        west, south, east, north = case["bounds"]
        grid = WebMercatorGrid(case["tile"][2], (west, south, east, north))
        assert grid.keys == (key(case["tile"]),)
        xmin, ymin, xmax, ymax = grid.bounds(key(case["tile"]))
        corners = unproject([(xmin, ymin), (xmax, ymax)])
        assert corners.ravel().tolist() == pytest.approx([west, south, east, north], abs=1e-11)


def test_published_corners(expectations: dict[str, Any]) -> None:
    for case in expectations["xy_ul"]:
        column, row, zoom = case["tile"]
        bounds = mercantile.bounds(column, row, zoom)
        xmin, _, _, ymax = WebMercatorGrid(zoom, tuple(bounds)).bounds(key(case["tile"]))
        assert (xmin, ymax) == pytest.approx(case["xy"], abs=1e-6)


def test_published_tile_of_a_point(expectations: dict[str, Any]) -> None:
    for case in expectations["tile"]:
        lon, lat, zoom = case["lnglat_zoom"]
        grid = WebMercatorGrid(zoom, (lon - 1e-4, lat - 1e-4, lon + 1e-4, lat + 1e-4))
        assert grid.keys == (key(case["tile"]),)


def test_published_tiles_of_an_area(expectations: dict[str, Any]) -> None:
    for case in expectations["tiles"]:
        (zoom,) = case["zooms"]
        keys = WebMercatorGrid(zoom, tuple(case["bounds"])).keys
        if "tiles" in case:
            assert set(keys) == {key(tile) for tile in case["tiles"]}
        else:
            assert len(keys) == case["count"]


def test_published_metres(expectations: dict[str, Any]) -> None:
    for case in expectations["xy"]:
        if all(isinstance(value, float) for value in case["xy"]):
            assert project([case["lnglat"]])[0].tolist() == pytest.approx(case["xy"], abs=1e-9)


_AREAS = st.tuples(
    st.floats(-180, 180), st.floats(-84, 83.9), st.floats(0.01, 350), st.floats(0.01, 80)
)


def _position(lon: float, lat: float, zoom: int) -> tuple[float, float]:
    """Where a point is, in tiles from the upper left."""
    x, y = mercantile.xy(lon, lat)
    size = 2 * HALF_WORLD_M / 2**zoom
    return (x + HALF_WORLD_M) / size, (HALF_WORLD_M - y) / size


@given(_AREAS, st.integers(0, 6))
def test_tiles_and_bounds_are_mercantiles(area: tuple[float, ...], zoom: int) -> None:
    west, south, width, height = area
    east = west + width - (360 if west + width > 180 else 0)
    north = min(south + height, 84.0)
    # Within a millionth of a tile of an edge ours is on the edge; mercantile's epsilon is smaller.
    positions = [*_position(west, south, zoom), *_position(east, north, zoom)]
    assume(all(abs(position - round(position)) > 2e-6 for position in positions))
    grid = WebMercatorGrid(zoom, (west, south, east, north))
    expected = mercantile.tiles(west, south, east, north, zoom)
    assert set(grid.keys) == {f"{zoom}-{tile.x}-{tile.y}" for tile in expected}
    assert len(set(grid.keys)) == len(grid.keys)
    for name in grid.keys[:20]:
        _, x, y = map(int, name.split("-"))
        assert grid.bounds(name) == pytest.approx(tuple(mercantile.xy_bounds(x, y, zoom)), abs=1e-6)
