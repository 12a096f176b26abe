"""Maps: what is drawn, and where on the ground it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from pyproj import Geod

from scene_pipeline.pictures import frame, maps
from scene_pipeline.pictures.land import WORLD, read_land, shift_east
from scene_pipeline.scenes.mercator import project, unproject
from scene_pipeline_tests.unit.picture_samples import (
    FIJI,
    FIJI_BOUNDS,
    SVG,
    coverage,
    find_text,
    footprints,
    read_path,
    sample_pictures,
    texts,
)


def is_land(lon: float, lat: float, *, turns: int = 0) -> bool:
    x, y = project(np.array([[lon, lat]]))[0] + (turns * WORLD["mercator"], 0)
    land = read_land((x - 5e4, y - 5e4, x + 5e4, y + 5e4))
    return bool(shapely.contains_xy(land, x, y).any())


@pytest.mark.parametrize(
    ("place", "lon", "lat", "expected"),
    [
        ("Viti Levu", 178.0, -17.8, True),
        ("Taveuni, west of 180", 179.97, -16.87, True),
        ("Vanua Levu", 179.2, -16.65, True),
        ("Koro Sea", 179.0, -17.6, False),
        ("Chukotka, east of 180", -175.0, 66.8, True),
        ("Wrangel Island", 179.5, 71.2, True),
        ("Antarctica", 100.0, -75.0, True),
        ("Sahara", 10.0, 25.0, True),
        ("Atlantic", -40.0, 30.0, False),
        ("Caspian Sea's north shore", 47.0, 48.0, True),
    ],
)
def test_land_is_where_the_atlas_has_it(place: str, lon: float, lat: float, expected: bool) -> None:
    assert is_land(lon, lat) is expected, place
    assert is_land(lon, lat, turns=1) is expected, f"{place}, one turn on"


def test_land_is_cut_to_its_window_and_repeats_round_the_world() -> None:
    window = (19.0e6, -2.6e6, 21.0e6, -1.6e6)
    land = read_land(window)
    assert len(land) > 10
    assert shapely.within(shapely.box(*shapely.total_bounds(land)), shapely.box(*window).buffer(1))
    turned = tuple(side - WORLD["mercator"] * (index % 2 == 0) for index, side in enumerate(window))
    assert shapely.area(read_land(turned)).sum() == pytest.approx(shapely.area(land).sum())


@given(
    st.lists(st.tuples(st.floats(-180, 180), st.floats(0.5, 60)), min_size=1, max_size=6),
)
def test_unrolling_finds_the_narrowest_row(pairs: list[tuple[float, float]]) -> None:
    intervals = [(west, west + width) for west, width in pairs]

    def extent(shifts: Sequence[float]) -> float:
        wests = [west + shift for (west, _), shift in zip(intervals, shifts, strict=True)]
        easts = [east + shift for (_, east), shift in zip(intervals, shifts, strict=True)]
        return max(easts) - min(wests)

    best = min(
        extent([360.0 if west < start else 0.0 for west, _ in intervals]) for start, _ in intervals
    )
    assert extent(frame.unroll(intervals, 360)) <= best + 1e-6


def test_tiles_on_both_sides_of_the_antimeridian_are_neighbours() -> None:
    picture = maps.draw_day_map(coverage(dict.fromkeys(FIJI.keys, 0.9)), FIJI_BOUNDS, title="fiji")
    x = [float(find_text(picture, f"7-{column}-70").get("x")) for column in (126, 127, 0)]
    assert x == sorted(x)
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)
    longitudes = [t for t in texts(picture) if re.fullmatch(r"[\d.]+°[EW]?", t)]
    assert longitudes == ["174°E", "176°E", "178°E", "180°", "178°W"]


def test_graticule_lines_are_where_the_projection_puts_them() -> None:
    bounds = FIJI_BOUNDS["7-127-70"]
    picture = maps.draw_partition_map([], bounds, title="t")
    frame_box = ET.fromstring(picture).findall(f".//{SVG}rect")[1]
    left, top, width = (float(frame_box.get(name)) for name in ("x", "y", "width"))
    # The tile's own outline gives the scale, apart from the frame's code.
    outline = next(
        e for e in ET.fromstring(picture).iter(f"{SVG}path") if e.get("stroke-width") == "1.6"
    )
    (ring,) = read_path(outline.get("d"))
    (x0, y0), (x1, _) = ring.min(axis=0), ring.max(axis=0)
    metres = (bounds[2] - bounds[0]) / (x1 - x0)
    ((_, lat),) = unproject(np.array([[bounds[0], bounds[3] + (y0 - 3.5) * 0]]))
    assert lat == pytest.approx(-16.636, abs=1e-3)
    label = find_text(picture, "18°S")
    y_of_18 = project(np.array([[178.0, -18.0]]))[0][1]
    assert float(label.get("y")) - 3.5 == pytest.approx(
        y0 + (bounds[3] - y_of_18) / metres, abs=0.3
    )
    assert left <= x0 <= x1 <= left + width
    assert top <= y0


def test_the_scale_bar_is_as_long_as_the_ground() -> None:
    bounds = FIJI_BOUNDS["7-127-70"]
    view = frame.fit_view(bounds, left=46, top=48, width=380, max_height=380)
    bar = frame.draw_scale_bar(view)
    kilometres = float(re.search(r">(\d+) km", bar)[1])
    pixels = float(re.search(r"v5h([\d.]+)v-5", bar)[1])
    west, south, east, north = view.degrees()
    _, _, across = Geod(ellps="WGS84").inv(west, (south + north) / 2, east, (south + north) / 2)
    assert kilometres * 1000 / pixels == pytest.approx(across / view.width, rel=0.005)


def test_a_view_of_the_world_has_no_scale_bar() -> None:
    half = WORLD["mercator"] / 2
    view = frame.fit_view((-half, -half, half, half), left=0, top=0, width=400, max_height=400)
    assert frame.draw_scale_bar(view) == ""
    assert view.bounds[1] == -half
    assert view.bounds[3] == half


def footprint_groups(picture: str) -> list[ET.Element]:
    groups = [e for e in ET.fromstring(picture).iter(f"{SVG}g") if e.get("fill-rule") == "evenodd"]
    assert groups
    return groups


def test_each_footprint_is_drawn_and_repaired_ones_stand_out() -> None:
    tile = "7-127-70"
    pieces = [shapely.to_wkb(piece) for piece in footprints(tile, 7)]
    mended = [False, True, True, False, False, False, False]
    picture = maps.draw_partition_map(pieces, FIJI_BOUNDS[tile], title="k", repaired=mended)
    plain, repaired = footprint_groups(picture)
    assert (len(plain), len(repaired)) == (5, 2)
    assert plain.get("stroke-dasharray") is None
    assert repaired.get("stroke-dasharray") == "4 2"
    assert "repaired footprint" in texts(picture)


def test_many_footprints_become_one_covered_area() -> None:
    tile = "7-127-70"
    picture = maps.draw_partition_map(footprints(tile, 400), FIJI_BOUNDS[tile], title="k")
    (group,) = footprint_groups(picture)
    (ring,) = read_path(group[0].get("d"))
    whole = shapely.Polygon(ring).bounds
    assert (whole[2] - whole[0]) / (whole[3] - whole[1]) == pytest.approx(401 / 402, abs=0.01)


def test_an_empty_partition_says_so() -> None:
    assert "no scene was acquired" in texts(sample_pictures()["empty"])
    assert "no scene was acquired" not in texts(sample_pictures()["partition"])


def test_a_day_tells_no_scene_from_not_built() -> None:
    shares = {"7-126-70": 0.55, "7-127-70": None}
    picture = maps.draw_day_map(coverage(shares), FIJI_BOUNDS, title="fiji")
    words = texts(picture)
    assert words.count("no scene") == 2  # in the tile and in the legend
    assert words.count("not built") == 5
    assert "55 % covered" in words
    assert "2 scenes" in words


@pytest.mark.parametrize(
    ("share", "label"), [(0.0001, 0), (0.2, 1), (0.5999, 2), (0.8, 4), (1.0, 4)]
)
def test_a_share_falls_into_the_class_that_the_legend_names(share: float, label: int) -> None:
    picture = maps.draw_day_map(
        coverage({"7-0-70": share}), {"7-0-70": FIJI_BOUNDS["7-0-70"]}, title="t"
    )
    root = ET.fromstring(picture)
    filled = [e for e in root.iter(f"{SVG}path") if e.get("fill-opacity") == "0.72"]
    swatches = [e for e in root.iter(f"{SVG}rect") if e.get("fill-opacity") == "0.72"]
    assert [e.get("fill") for e in filled] == [swatches[label].get("fill")]
    assert f"{label * 20} to {label * 20 + 20} %" in texts(picture)


def test_a_repair_at_the_antimeridian_shows_the_globe_and_then_the_place() -> None:
    words = texts(sample_pictures()["antimeridian"])
    assert {"as published", "as stored", "60°E", "179°E"} <= set(words)


def test_a_footprint_beyond_180_is_compared_where_it_is() -> None:
    published = shapely.box(-181, -18, -179, -17)
    stored = shapely.MultiPolygon(
        [shapely.box(179, -18, 180, -17), shapely.box(-180, -18, -179, -17)]
    )
    words = texts(maps.draw_repair(published, stored, title="S2B_Y"))
    assert words.count("180°") == 2
    assert "0°" not in words


def test_a_bow_tie_shows_the_order_of_its_vertices_on_the_same_ground() -> None:
    words = texts(sample_pictures()["bow-tie"])
    assert {"1", "2", "3", "4"} <= set(words)
    assert words.count("178.5°E") == 2


def test_shifting_keeps_single_geometries_single() -> None:
    assert shift_east(shapely.Point(1, 2), 3).equals(shapely.Point(4, 2))
