"""Rings on the cylinder: the antimeridian, the poles, longitudes beyond 180."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import shapely
from shapely import MultiPolygon, Polygon, box

from scene_pipeline.scenes.footprint import Repaired, repair_footprints


def repair(*shapes: Any) -> Repaired:
    geometries = np.empty(len(shapes), dtype=object)
    geometries[:] = shapes
    return repair_footprints(geometries)


def repair_one(shape: Any) -> Any:
    return repair(shape).geometry[0]


def cap(latitude: float, *, step: int = 30, east: bool = True) -> Polygon:
    """A ring of constant latitude, listed eastward or westward."""
    longitudes = range(-170, 181, step)
    return Polygon([(lon, latitude) for lon in (longitudes if east else reversed(longitudes))])


def test_a_scene_across_the_antimeridian_is_split() -> None:
    """A52: naively its area is 359 square degrees, and it meets a box at longitude 0."""
    naive = Polygon([(179.5, -17), (-179.5, -17), (-179.5, -16), (179.5, -16)])
    assert naive.area == 359
    repaired = repair(naive)
    shape = repaired.geometry[0]
    assert repaired.repairs == [("split at antimeridian",)]
    assert shape.equals(MultiPolygon([box(179.5, -17, 180, -16), box(-180, -17, -179.5, -16)]))
    assert not shape.intersects(box(-1, -17, 1, -16))


def test_plus_and_minus_180_are_one_meridian() -> None:
    """A54: the ring with both has a part without an area."""
    ring = Polygon([(178, 10), (-180, 10), (180, 11), (178, 11)])
    assert repair_one(ring).equals(box(178, 10, 180, 11))
    flipping = Polygon([(178, 10), (180, 10), (-180, 10.5), (180, 11), (178, 11)])
    assert repair_one(flipping).equals(box(178, 10, 180, 11))
    near = Polygon([(178, 10), (180 - 1e-13, 10), (-180, 10.5), (180, 11), (178, 11)])
    assert repair_one(near).area == pytest.approx(2.0)


@pytest.mark.parametrize("latitude", [-80.0, -60.0, 60.0, 80.0])
@pytest.mark.parametrize("east", [True, False])
def test_a_ring_round_a_pole_is_closed_over_that_pole(latitude: float, east: bool) -> None:
    """A54: one listing of the ring at -80 gave 61,200 square degrees, the other 3,600."""
    repaired = repair(cap(latitude, east=east))
    shape = repaired.geometry[0]
    assert repaired.repairs == [("closed over pole",)]
    assert shape.area == pytest.approx(360 * (90 - abs(latitude)))
    assert shape.bounds == (
        -180,
        min(latitude, np.sign(latitude) * 90),
        180,
        max(latitude, np.sign(latitude) * 90),
    )


def test_a_cap_with_a_hole_round_the_pole_is_a_band() -> None:
    ring = Polygon(cap(60).exterior, [cap(80).exterior])
    assert repair_one(ring).area == pytest.approx(360 * 20)
    assert not repair_one(ring).intersects(box(-180, 81, 180, 90))


def test_a_band_round_the_world_stays() -> None:
    for band in (box(-180, -10, 180, 10), box(-180, -90, 180, 90), box(-180, 60, 180, 90)):
        repaired = repair(band)
        assert repaired.repairs == [()]
        assert repaired.geometry[0].equals(band)


def test_a_band_with_more_vertices_on_one_side_stays() -> None:
    band = Polygon([(-180, -90), (0, -90), (180, -90), (180, 90), (-180, 90)])
    assert repair_one(band).equals(box(-180, -90, 180, 90))


def test_a_swath_that_was_closed_over_its_pole_already_stays() -> None:
    closed = Polygon([(-180, 70), (-60, 75), (60, 72), (180, 70), (180, 90), (-180, 90)])
    repaired = repair(closed)
    assert repaired.repairs == [()]
    assert repaired.geometry[0].equals(closed)


@pytest.mark.parametrize(
    ("west", "parts"),
    [
        (-181, [(179, 180), (-180, -179)]),
        (179, [(179, 180), (-180, -179)]),
        (180, [(-180, -178)]),
        (190, [(-170, -168)]),
        (-182, [(178, 180)]),
        (-360, [(0, 2)]),
    ],
)
def test_longitudes_beyond_180_are_the_same_places(west: float, parts: list[Any]) -> None:
    """A52: Planetary Computer has scenes at longitude -181."""
    expected = MultiPolygon([box(left, 10, right, 11) for left, right in parts])
    repaired = repair(box(west, 10, west + 2, 11))
    assert repaired.geometry[0].equals(expected)
    assert repaired.repairs[0] == (
        ("split at antimeridian",) if len(parts) == 2 else ("longitudes wrapped",)
    )


def test_a_world_box_beyond_180_is_the_world() -> None:
    for west in (0, -360, 10):
        assert repair_one(box(west, -90, west + 360, 90)).equals(box(-180, -90, 180, 90))


def test_holes_are_split_with_their_shell() -> None:
    shell = [(170, 0), (-170, 0), (-170, 20), (170, 20)]
    hole = [(175, 5), (-175, 5), (-175, 15), (175, 15)]
    for first, second in itertools.product((1, -1), (1, -1)):
        shape = repair_one(Polygon(shell[::first], [hole[::second]]))
        assert shape.area == pytest.approx(20 * 20 - 10 * 10)
        assert not shape.intersects(box(176, 6, 180, 14))
    one_side = [(171, 5), (174, 5), (174, 15), (171, 15)]
    assert repair_one(Polygon(shell, [one_side])).area == pytest.approx(400 - 30)


def test_a_bow_tie_across_the_antimeridian_keeps_both_halves() -> None:
    tie = Polygon([(179, 0), (-179, 2), (-179, 0), (179, 2)])
    repaired = repair(tie)
    assert repaired.repairs == [("split at antimeridian", "made valid")]
    assert repaired.geometry[0].area == pytest.approx(2.0)
    assert shapely.is_valid(repaired.geometry[0])


def test_a_split_footprint_keeps_its_parts() -> None:
    split = MultiPolygon([box(179, -17, 180, -16), box(-180, -17, -179, -16)])
    repaired = repair(split)
    assert repaired.repairs == [()]
    assert repaired.geometry[0].equals(split)


def test_parts_are_split_each() -> None:
    far = box(10, 10, 11, 11)
    crossing = Polygon([(179, 0), (-179, 0), (-179, 2), (179, 2)])
    shape = repair_one(MultiPolygon([far, crossing]))
    assert shape.equals(MultiPolygon([far, box(179, 0, 180, 2), box(-180, 0, -179, 2)]))


def test_an_orbit_that_meets_itself_is_valid() -> None:
    """A strip that goes round more than once is the union of where it was."""
    lon = np.arange(0, 541, 20.0)
    south = [((x + 180) % 360 - 180, -40 + x / 20) for x in lon]
    north = [((x + 180) % 360 - 180, -20 + x / 20) for x in lon[::-1]]
    shape = repair_one(Polygon(south + north))
    assert shapely.is_valid(shape)
    assert shape.bounds[0] == -180
    assert shape.bounds[2] == 180
    twice = shape.intersection(box(10, -90, 11, 90))
    assert twice.area == pytest.approx(20 + 18)  # 20 degrees wide, then 18 further north
    once = shape.intersection(box(-11, -90, -10, 90))
    assert once.area == pytest.approx(20)


def test_crossings_are_straight_in_lonlat() -> None:
    """RFC 7946, section 3.1.1; a great circle would cross elsewhere."""
    shape = repair_one(Polygon([(170, 0), (-170, 20), (-170, 25), (170, 5)]))
    seam = shape.intersection(shapely.LineString([(180, -90), (180, 90)]))
    assert seam.bounds == pytest.approx((180, 10, 180, 15))
