"""Laws of footprints: what must not matter, and what must add up."""

from __future__ import annotations

import warnings
from typing import Any

import antimeridian
import numpy as np
import pytest
import shapely
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pyproj import Transformer
from shapely import MultiPolygon, Polygon

from scene_pipeline.scenes.footprint import (
    cut_to_boxes,
    project_footprints,
    repair_and_project,
    repair_footprints,
)
from scene_pipeline.scenes.grid import WebMercatorGrid
from scene_pipeline.scenes.mercator import MAX_LATITUDE, ground_area_m2, project, unproject
from scene_pipeline.scenes.polygons import are_convex, are_valid
from scene_pipeline_tests.property.footprints import (
    Ring,
    as_array,
    geojson_rings,
    published,
    rotate,
    shuffled_rings,
    unrolled_rings,
)

_WORLD = {zoom: WebMercatorGrid(zoom, (-180, -90, 180, 90)) for zoom in range(4)}


def repair(*rings: Any) -> Any:
    return repair_footprints(as_array([Polygon(ring) for ring in rings]))


def differ(one: Any, other: Any) -> float:
    """The area where two shapes differ, in parts of their size."""
    size = max(one.area, other.area, 1e-9)
    return float(one.symmetric_difference(other).area / size)


@given(geojson_rings(), st.integers(0, 20))
def test_winding_and_start_vertex_do_not_matter(ring: Ring, start: int) -> None:
    forward, backward, turned = repair(ring, ring[::-1], rotate(ring, start)).geometry
    assert differ(forward, backward) < 1e-9
    assert differ(forward, turned) < 1e-9


@given(geojson_rings(), st.sampled_from([-360, 360]))
def test_a_shift_by_a_whole_turn_changes_nothing(ring: Ring, shift: int) -> None:
    there = [(lon + shift, lat) for lon, lat in ring]
    shapes = repair(ring, there).geometry
    assert differ(shapes[0], shapes[1]) < 1e-7


@given(geojson_rings() | shuffled_rings())
def test_a_repaired_footprint_is_repaired(ring: Ring) -> None:
    once = repair(ring)
    assume(once.reasons == [None])
    twice = repair_footprints(once.geometry)
    assert twice.repairs == [()]
    assert twice.geometry[0].equals_exact(once.geometry[0], tolerance=0)


@given(geojson_rings() | shuffled_rings())
@example([(0, 1), (1, 0), (0, 2), (0, 1), (1, 0), (0, 0), (0, 1)])  # GEOS mends it by halves
def test_a_repaired_footprint_is_valid_and_in_range(ring: Ring) -> None:
    repaired = repair(ring)
    shape = repaired.geometry[0]
    assert (shape is None) == (repaired.reasons[0] is not None)
    assume(shape is not None)
    assert shape.geom_type == "MultiPolygon"
    assert shape.is_valid
    west, south, east, north = shape.bounds
    assert -180 <= west < east <= 180
    assert -90 <= south < north <= 90


@given(unrolled_rings())
def test_splitting_keeps_the_area(ring: Ring) -> None:
    whole = Polygon(ring)
    assume(whole.is_valid and whole.area > 0)
    assert repair(published(ring)).geometry[0].area == pytest.approx(whole.area, rel=1e-6)


@given(unrolled_rings())
def test_the_antimeridian_package_splits_where_we_split(ring: Ring) -> None:
    whole = Polygon(ring)
    assume(whole.is_valid and whole.area > 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", antimeridian.FixWindingWarning)
        peer = antimeridian.fix_polygon(Polygon(published(ring)), great_circle=False)
    assume(peer.is_valid)  # it is not always, around vertices on the meridian
    apart = repair(published(ring)).geometry[0].symmetric_difference(peer).area
    assert apart < 1e-6 * whole.length  # it rounds crossings to seven digits


@given(st.lists(geojson_rings() | shuffled_rings(), min_size=1, max_size=8))
def test_a_batch_is_the_sum_of_its_footprints(rings: list[Ring]) -> None:
    batch = repair_and_project(as_array([Polygon(ring) for ring in rings]))
    lonlat = repair(*rings)
    for index, ring in enumerate(rings):
        alone = repair(ring)
        assert alone.reasons[0] == lonlat.reasons[index] == batch.reasons[index]
        assert alone.repairs[0] == lonlat.repairs[index] == batch.repairs[index]
        assert shapely.to_wkb(alone.geometry[0]) == shapely.to_wkb(lonlat.geometry[index])
        projected = project_footprints(alone.geometry)[0]
        assert shapely.to_wkb(projected) == shapely.to_wkb(batch.geometry[index])


@given(geojson_rings(), st.integers(0, 3))
def test_tiles_of_one_zoom_partition_a_footprint(ring: Ring, zoom: int) -> None:
    grid = _WORLD[zoom]
    footprints = repair(ring).geometry
    whole = project_footprints(footprints)[0]
    owners, tiles = grid.tiles_for(footprints)
    assume(whole is not None)
    assert set(owners) == {0}
    boxes = shapely.box(*np.array([grid.bounds(grid.keys[tile]) for tile in tiles]).T)
    pieces = cut_to_boxes(as_array([whole] * len(tiles)), boxes)
    assert not shapely.is_missing(pieces).any()
    assert shapely.is_valid(pieces).all()
    assert shapely.area(pieces).sum() == pytest.approx(whole.area, rel=1e-9, abs=len(tiles))
    shares = ground_area_m2(pieces) / ground_area_m2(as_array([whole]))
    assert shares.sum() == pytest.approx(1, rel=1e-6)
    others = np.setdiff1d(np.arange(len(grid.keys)), tiles)
    rest = shapely.box(*np.array([grid.bounds(grid.keys[t]) for t in others]).reshape(-1, 4).T)
    assert shapely.is_missing(cut_to_boxes(as_array([whole] * len(others)), rest)).all()


@given(st.lists(shuffled_rings() | geojson_rings(), min_size=1, max_size=5))
def test_a_ring_that_is_called_convex_is_valid(rings: list[Ring]) -> None:
    shapes = as_array([MultiPolygon([Polygon(ring)]) for ring in rings])
    xy, owner = shapely.get_coordinates(shapes, return_index=True)
    convex = are_convex(xy, owner, len(shapes))
    for shape, found in zip(shapes, convex, strict=True):
        assert shape.is_valid or not found
        assert not found or shape.convex_hull.area == pytest.approx(shape.area)
    assert are_valid(shapes, xy, owner).tolist() == shapely.is_valid(shapes).tolist()


@given(st.integers(3, 40), st.floats(0.001, 80), st.booleans())
def test_a_regular_polygon_is_convex_and_a_star_is_not(n: int, size: float, back: bool) -> None:
    angles = 2 * np.pi * np.arange(n + 1) / n * (-1 if back else 1)
    ring = size * np.column_stack([np.cos(angles), np.sin(angles)])
    ring[-1] = ring[0]
    assert are_convex(ring, np.zeros(n + 1, dtype=int), 1).all()
    if n % 2 and n > 3:
        star = ring[:-1][(2 * np.arange(n + 1)) % n]  # two revolutions, every turn the same way
        assert not are_convex(star, np.zeros(n + 1, dtype=int), 1).any()


@given(st.lists(st.tuples(st.floats(-180, 180), st.floats(-85, 85)), min_size=1, max_size=20))
def test_mercator_is_projs(points: list[tuple[float, float]]) -> None:
    to_metres = Transformer.from_crs("OGC:CRS84", "EPSG:3857", always_xy=True)
    expected = np.column_stack(to_metres.transform(*np.array(points).T))
    assert np.abs(project(points) - expected).max() < 1e-7
    assert np.abs(unproject(project(points)) - points).max() < 1e-12


@given(unrolled_rings())
def test_ground_area_is_that_of_the_sphere(ring: Ring) -> None:
    """Against the sum over thin lon/lat strips, which knows nothing of Green's theorem."""
    shape = Polygon([(lon, max(-85, min(85, lat))) for lon, lat in ring])
    assume(shape.is_valid and shape.area > 1e-3)
    flat = shapely.transform(shape, lambda xy: np.column_stack([np.radians(xy[:, 0]), xy[:, 1]]))
    metres = as_array([shapely.transform(flat, _metres_of_radians)])
    dense = shapely.transform(shapely.segmentize(metres[0], metres[0].length / 3000), unproject)
    equal_area = shapely.transform(
        dense, lambda xy: np.column_stack([np.radians(xy[:, 0]), np.sin(np.radians(xy[:, 1]))])
    )
    assert ground_area_m2(metres)[0] == pytest.approx(equal_area.area * 6378137.0**2, rel=1e-4)


def _metres_of_radians(xy: Any) -> Any:
    return project(np.column_stack([np.degrees(xy[:, 0]), xy[:, 1]]))


def test_the_largest_latitude_is_the_squares_edge() -> None:
    assert pytest.approx(85.0511287798066, abs=1e-12) == MAX_LATITUDE
