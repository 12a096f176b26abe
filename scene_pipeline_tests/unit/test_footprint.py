"""Footprints: a right value or a reasoned rejection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import shapely
from pyproj import Geod
from shapely import MultiPolygon, Polygon, box

from scene_pipeline.scenes.footprint import (
    Repaired,
    cut_to_boxes,
    project_footprints,
    repair_and_project,
    repair_footprints,
)
from scene_pipeline.scenes.mercator import HALF_WORLD_M, MAX_LATITUDE

_GEOD = Geod(ellps="WGS84")


def repair(*shapes: Any) -> Repaired:
    geometries = np.empty(len(shapes), dtype=object)
    geometries[:] = [shapely.from_wkt(s) if isinstance(s, str) else s for s in shapes]
    return repair_footprints(geometries)


def ground_km2(shape: Any) -> float:
    """Area on the WGS 84 ellipsoid, with edges that follow the lon/lat lines closely."""
    dense = shapely.segmentize(shapely.normalize(shape), 0.05)
    return abs(_GEOD.geometry_area_perimeter(shapely.orient_polygons(dense))[0]) / 1e6


def test_an_ordinary_footprint_is_only_made_a_multipolygon() -> None:
    square = box(6, 45, 7, 46)
    repaired = repair(square)
    assert repaired.geometry[0].geom_type == "MultiPolygon"
    assert repaired.geometry[0].equals(square)
    assert (repaired.repairs, repaired.reasons) == ([()], [None])


def test_not_a_number_is_no_coordinate() -> None:
    with np.errstate(invalid="ignore"):
        shape = Polygon([(0, 0), (1, 0), (float("nan"), 1)])
        assert repair(shape).reasons == ["coordinates not finite"]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (None, "geometry null"),
        (Polygon(), "geometry empty"),
        ("MULTIPOLYGON EMPTY", "geometry empty"),
        ("GEOMETRYCOLLECTION EMPTY", "geometry empty"),
        ("POINT (6 45)", "not polygonal"),
        ("LINESTRING (6 45, 7 46)", "not polygonal"),
        ("GEOMETRYCOLLECTION (POINT (6 45), LINESTRING (6 45, 7 46))", "not polygonal"),
        ("POLYGON ((0 0, 1 0, inf 1, 0 0))", "coordinates not finite"),
        ("POLYGON ((0 0, 1 0, 1 90.5, 0 0))", "latitude out of range"),
        ("POLYGON ((0 0, 1 0, 1 -91, 0 0))", "latitude out of range"),
        (
            "POLYGON ((600000 5000000, 709800 5000000, 709800 4890200, 600000 5000000))",
            "latitude out of range",
        ),
        ("POLYGON ((600000 20, 709800 20, 709800 80, 600000 20))", "longitude out of range"),
        ("POLYGON ((0 0, 1 1, 2 2, 0 0))", "no area"),
        ("POLYGON ((0 0, 0 0, 0 0, 0 0))", "no area"),
        ("POLYGON ((0 0, 1 1, 0 0, 1 1, 0 0))", "no area"),
        ("MULTIPOLYGON (((0 0, 1 1, 2 2, 0 0)))", "no area"),
    ],
)
def test_what_is_no_footprint_has_its_reason(shape: Any, reason: str) -> None:
    """UTM metres in a lon/lat field among them: real Sentinel-1 Items have that."""
    good = box(6, 45, 7, 46)
    repaired = repair(good, shape, good)
    assert repaired.reasons == [None, reason, None]
    assert repaired.geometry[1] is None
    assert repaired.geometry[0].equals(good)
    assert repaired.geometry[2].equals(good)
    assert repair_and_project([good, None]).reasons == [None, "geometry null"]


def test_both_halves_of_a_bow_tie_are_kept() -> None:
    bow_tie = Polygon([(6, 45), (7, 46), (7, 45), (6, 46)])
    repaired = repair(bow_tie)
    assert repaired.repairs == [("made valid",)]
    halves = [Polygon([(6, 45), (6.5, 45.5), (6, 46)]), Polygon([(7, 45), (7, 46), (6.5, 45.5)])]
    assert len(repaired.geometry[0].geoms) == 2
    expected = sum(map(ground_km2, halves))
    assert ground_km2(repaired.geometry[0]) == pytest.approx(expected, rel=1e-3)


def test_a_spike_is_cut_off() -> None:
    spiked = Polygon([(6, 45), (7, 45), (7, 45.5), (9, 45.5), (7, 45.5), (7, 46), (6, 46)])
    repaired = repair(spiked)
    assert repaired.repairs == [("made valid",)]
    assert repaired.geometry[0].equals(box(6, 45, 7, 46))


def test_overlapping_parts_become_one() -> None:
    repaired = repair(MultiPolygon([box(6, 45, 7, 46), box(6.5, 45, 7.5, 46)]))
    assert repaired.geometry[0].equals(box(6, 45, 7.5, 46))


def test_empty_and_flat_parts_go_polygons_stay() -> None:
    """A real Sentinel-1 Item starts with an empty polygon."""
    first_empty = shapely.from_geojson(
        '{"type":"MultiPolygon","coordinates":[[],[[[6,45],[7,45],[7,46],[6,45]]]]}'
    )
    mixed = "GEOMETRYCOLLECTION (POINT (1 1), POLYGON ((6 45, 7 45, 7 46, 6 45)))"
    repaired = repair(first_empty, mixed)
    assert repaired.reasons == [None, None]
    assert repaired.repairs == [(), ("other parts dropped",)]
    for shape in repaired.geometry:
        assert shape.equals(Polygon([(6, 45), (7, 45), (7, 46)]))
        assert len(shape.geoms) == 1


@pytest.mark.parametrize("kind", ["Z", "M", "ZM"])
def test_heights_are_dropped_and_counted(kind: str) -> None:
    """A40: a table of two dimensions refuses a third, or fills it with zeros."""
    numbers = " 5" * len(kind)
    ring = ", ".join(f"{p}{numbers}" for p in ("6 45", "7 45", "7 46", "6 45"))
    repaired = repair(f"POLYGON {kind} (({ring}))")
    assert repaired.repairs == [("height dropped",)]
    assert repaired.geometry[0].equals(Polygon([(6, 45), (7, 45), (7, 46)]))
    assert shapely.get_coordinate_dimension(repaired.geometry[0]) == 2


def test_holes_stay() -> None:
    ring = Polygon(box(6, 45, 9, 48).exterior, [box(7, 46, 8, 47).exterior])
    assert repair(ring).geometry[0].equals(ring)


def test_one_bad_footprint_costs_itself_alone() -> None:
    good = [box(x, 45, x + 1, 46) for x in range(50)]
    bad = [None, Polygon([(0, 0), (1, 0), (1, 95)]), shapely.Point(0, 0)]
    repaired = repair(*good[:25], *bad, *good[25:])
    assert [reason is None for reason in repaired.reasons].count(False) == len(bad)
    assert sum(shape is not None for shape in repaired.geometry) == len(good)


def test_an_area_above_the_bound_is_refused() -> None:
    """A54: a ring closed over the wrong pole has 61,200 of 64,800 square degrees."""
    shapes = np.array([box(-180, -80, 180, 90), box(0, 0, 10, 10)], dtype=object)
    repaired = repair_footprints(shapes, max_area_km2=255e6)
    assert repaired.reasons == ["area over bound", None]
    assert ground_km2(box(0, 0, 10, 10)) == pytest.approx(1.23e6, rel=0.01)
    tight = repair_footprints(shapes[1:], max_area_km2=1.0e6)
    assert tight.reasons == ["area over bound"]
    # At 80 degrees north the same square degrees are a fifth of the ground.
    north = np.array([box(0, 78, 10, 88)], dtype=object)
    assert repair_footprints(north, max_area_km2=0.3e6).reasons == [None]


@pytest.mark.parametrize("latitude", [85.0, 85.06, 86.0, 89.9, 90.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_projection_ends_with_the_grids_square(latitude: float, sign: int) -> None:
    """A55: latitude 90 is a finite 242,528,680 m, which no test for infinity finds."""
    footprint = repair(
        box(10, min(sign * 80, sign * latitude), 20, max(sign * 80, sign * latitude))
    )
    projected = project_footprints(footprint.geometry)[0]
    ymin, ymax = projected.bounds[1], projected.bounds[3]
    assert -HALF_WORLD_M <= ymin < ymax <= HALF_WORLD_M
    if latitude > MAX_LATITUDE:
        assert max(abs(ymin), abs(ymax)) == pytest.approx(HALF_WORLD_M, abs=1e-6)


def test_a_footprint_beyond_the_grid_has_no_projection() -> None:
    footprint = repair(box(10, 86, 20, 89))
    assert footprint.reasons == [None]
    assert project_footprints(footprint.geometry)[0] is None


def test_a_line_that_bends_into_its_neighbour_is_mended() -> None:
    """Valid in lon/lat, crossed in Mercator: straight edges bend between the two planes."""
    sliver = Polygon([(0, 0), (60, 80), (59, 79), (30, 40.2), (1, 1.4)])
    assert sliver.is_valid
    projected = project_footprints(repair(sliver).geometry)
    assert shapely.is_valid(projected[0])
    assert projected[0].geom_type == "MultiPolygon"


def test_a_cut_keeps_polygons_with_an_area() -> None:
    tile = box(0, 0, 100, 100)
    pieces = cut_to_boxes(
        np.array(
            [
                MultiPolygon([box(10, 10, 20, 20)]),  # inside
                MultiPolygon([box(90, 90, 110, 110)]),  # across a corner
                MultiPolygon([box(100, 0, 200, 100)]),  # touches an edge
                MultiPolygon([box(-50, -50, 0, 0)]),  # touches a corner
                MultiPolygon([box(200, 200, 300, 300)]),  # away
                MultiPolygon([box(-10, -10, 110, 110)]),  # covers
                MultiPolygon([box(99.9999, 0, 200, 1)]),  # a sliver of 1e-4 m2
                None,
            ],
            dtype=object,
        ),
        tile,
    )
    expected = [100.0, 100.0, None, None, None, 10_000.0, None, None]
    assert [None if piece is None else piece.area for piece in pieces] == expected
    assert {piece.geom_type for piece in pieces if piece is not None} == {"MultiPolygon"}


def test_a_cut_that_leaves_lines_and_polygons_keeps_the_polygons() -> None:
    shape = MultiPolygon([box(0, 0, 50, 50), box(100, 0, 150, 50)])
    piece = cut_to_boxes(np.array([shape], dtype=object), box(0, 0, 100, 100))[0]
    assert piece.equals(box(0, 0, 50, 50))
