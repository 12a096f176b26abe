"""Tiles, areas, and the definition made of them."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from shapely import MultiPolygon, box

from scene_pipeline.errors import InvalidKeyError, SettingsError
from scene_pipeline.scenes.definition import define_scenes
from scene_pipeline.scenes.footprint import project_footprints, repair_footprints
from scene_pipeline.scenes.grid import Area, TileGrid, WebMercatorGrid, project_area, read_area
from scene_pipeline.scenes.keys import TILE_GRAMMAR
from scene_pipeline.scenes.mercator import HALF_WORLD_M

FIJI = (175.5, -21.0, -178.0, -17.0)


def tiles_of(grid: TileGrid, *shapes: Any) -> list[list[str]]:
    geometries = np.empty(len(shapes), dtype=object)
    geometries[:] = shapes
    owners, tiles = grid.tiles_for(repair_footprints(geometries).geometry)
    found: list[list[str]] = [[] for _ in shapes]
    for owner, tile in zip(owners, tiles, strict=True):
        found[owner].append(grid.keys[tile])
    return found


def test_an_area_across_the_antimeridian_runs_west_to_east() -> None:
    keys = WebMercatorGrid(7, FIJI).keys
    assert keys == ("7-126-70", "7-127-70", "7-0-70", "7-126-71", "7-127-71", "7-0-71")
    assert all(TILE_GRAMMAR.fullmatch(key) for key in keys)


@pytest.mark.parametrize(
    ("area", "zoom", "keys"),
    [
        ((0, 0, 1, 1), 0, ("0-0-0",)),
        ((-180, -90, 180, 90), 1, ("1-0-0", "1-1-0", "1-0-1", "1-1-1")),
        ((-180, -85.06, 180, 85.06), 0, ("0-0-0",)),
        ((-90, 1, 0, 2), 2, ("2-1-1",)),  # its edges are tile edges: the neighbours only touch
        ((0, 0, 90, 66.51326044311186), 2, ("2-2-1",)),
        ((180, 10, -170, 20), 3, ("3-0-3",)),
        ((10, 10, -10, 20), 1, ("1-1-0", "1-0-0")),
        ((5, 10, 5, 20), 2, ("2-2-1",)),
        ((0, 86, 10, 90), 2, ("2-2-0",)),
        ((0, -90, 10, -86), 2, ("2-2-3",)),
        ((179, 0, -179, 1), 0, ("0-0-0",)),
    ],
)
def test_tiles_of_awkward_areas(area: Area, zoom: int, keys: tuple[str, ...]) -> None:
    assert WebMercatorGrid(zoom, area).keys == keys


def test_neighbours_share_their_edge_to_the_bit() -> None:
    grid = WebMercatorGrid(5, (-180, -85, 180, 85))
    for key in grid.keys:
        _, column, row = map(int, key.split("-"))
        _, ymin, xmax, _ = grid.bounds(key)
        if f"5-{column + 1}-{row}" in grid.keys:
            assert grid.bounds(f"5-{column + 1}-{row}")[0] == xmax
        if f"5-{column}-{row + 1}" in grid.keys:
            assert grid.bounds(f"5-{column}-{row + 1}")[3] == ymin
    assert grid.bounds("5-0-0")[0] == -HALF_WORLD_M
    assert grid.bounds("5-31-31")[2] == HALF_WORLD_M


def test_an_unknown_tile_is_refused() -> None:
    for key in ("7-1-1", "x", "", "8-126-70"):
        with pytest.raises(InvalidKeyError) as caught:
            WebMercatorGrid(7, FIJI).bounds(key)
        assert caught.value.reason == "unknown tile"


def test_a_footprint_is_in_the_tiles_that_it_overlaps() -> None:
    grid = WebMercatorGrid(2, (-180, -85, 180, 85))
    inside, across, edge, away = tiles_of(
        grid, box(10, 10, 20, 20), box(-10, 10, 10, 20), box(0, 10, 90, 20), box(10, 86, 20, 89)
    )
    assert inside == ["2-2-1"]
    assert across == ["2-1-1", "2-2-1"]
    assert edge == ["2-2-1"]  # lies on both meridians, overlaps one tile
    assert away == []


def test_a_footprint_across_the_antimeridian_is_not_in_the_tiles_between() -> None:
    """A52: the box of a split footprint spans the whole row."""
    grid = WebMercatorGrid(3, (-180, -85, 180, 85))
    split = shapely.Polygon([(179, 10), (-179, 10), (-179, 11), (179, 11)])
    assert tiles_of(grid, split) == [["3-0-3", "3-7-3"]]


def test_footprints_outside_the_area_and_missing_ones_are_in_no_tile() -> None:
    grid = WebMercatorGrid(7, FIJI)
    assert tiles_of(grid, box(0, 0, 1, 1), None, box(178, -18, 178.1, -17.9)) == [
        [],
        [],
        ["7-127-70"],
    ]
    owners, tiles = grid.tiles_for(np.empty(0, dtype=object))
    assert len(owners) == len(tiles) == 0
    assert tiles_of(grid, None) == [[]]


@given(st.floats(-180, 180), st.floats(-80, 80), st.floats(0.001, 30))
def test_project_area_is_where_the_footprints_are(west: float, south: float, width: float) -> None:
    """A box query finds a scene exactly as large as the box."""
    east = west + width - (360 if west + width > 180 else 0)
    north = min(south + width, 85)
    boxes = project_area((west, south, east, north))
    ring = [(west, south), (west + width, south), (west + width, north), (west, north)]
    footprint = project_footprints(repair_footprints([shapely.Polygon(ring)]).geometry)[0]
    covered = shapely.union_all([shapely.box(*each) for each in boxes])
    assert covered.symmetric_difference(footprint).area < 1e-6 * covered.area


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def polygon(*boxes: tuple[float, float, float, float]) -> dict[str, Any]:
    geometry: dict[str, Any] = json.loads(
        shapely.to_geojson(MultiPolygon([box(*b) for b in boxes]))
    )
    return geometry


@pytest.mark.parametrize(
    ("document", "area"),
    [
        (polygon((6, 45, 12, 48)), (6, 45, 12, 48)),
        ({"type": "Feature", "geometry": polygon((6, 45, 12, 48))}, (6, 45, 12, 48)),
        (
            {
                "type": "FeatureCollection",
                "features": [
                    {"type": "Feature", "geometry": polygon((6, 45, 7, 46))},
                    {"type": "Feature", "geometry": polygon((11, 47, 12, 48))},
                ],
            },
            (6, 45, 12, 48),
        ),
        (polygon((175.5, -21, 180, -17), (-180, -21, -178, -17)), (175.5, -21, -178, -17)),
        (polygon((175.5, -21, 182, -17)), (175.5, -21, -178, -17)),
        (polygon((170, 0, 175, 1), (-170, 0, -165, 1)), (170, 0, -165, 1)),
        (polygon((-180, -90, 180, 90)), (-180, -90, 180, 90)),
        (polygon((-100, 0, -90, 1), (80, 0, 85, 1)), (-100, 0, 85, 1)),
        (polygon((-100, 0, -90, 1), (90, 0, 100, 1)), (90, 0, -90, 1)),
    ],
)
def test_an_area_from_geojson(tmp_path: Path, document: Any, area: Area) -> None:
    """The narrowest span that holds all parts, west > east where it crosses the antimeridian."""
    assert read_area(write(tmp_path / "area.geojson", document)) == area


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"type": "Point", "coordinates": [6, 45]},
        {"type": "FeatureCollection", "features": []},
        {"type": "Feature", "geometry": None},
        {"type": "Polygon", "coordinates": [[[0, 0], [1, 1]]]},
        polygon((500000, 5000000, 600000, 5100000)),
    ],
)
def test_an_area_that_is_none_is_refused_by_name(tmp_path: Path, document: Any) -> None:
    path = write(tmp_path / "area.geojson", document)
    with pytest.raises(SettingsError) as caught:
        read_area(path)
    assert caught.value.where == str(path)


def test_an_absent_or_broken_area_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.geojson").write_text("{")
    for name in ("absent.geojson", "broken.geojson"):
        with pytest.raises(SettingsError):
            read_area(tmp_path / name)


def test_the_definition_of_settings() -> None:
    values = SimpleNamespace(
        region="fiji", start_date=date(2024, 6, 1), end_date=None, area=FIJI, zoom=7
    )
    definition, grid = define_scenes(values, frozenset({"7-126-70", "6-1-1"}))
    assert definition.tiles == grid.keys
    assert (definition.region, definition.start, definition.end) == ("fiji", date(2024, 6, 1), None)
    assert definition.removed_tiles == {"6-1-1"}
    values.zoom = 8
    assert define_scenes(values)[0].fingerprint != definition.fingerprint
