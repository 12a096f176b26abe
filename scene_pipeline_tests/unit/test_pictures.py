"""Pictures as files: alone, small, escaped, readable with any colour vision."""

from __future__ import annotations

import base64
import re
from itertools import combinations
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from scene_pipeline.pictures import maps, markdown_image, svg
from scene_pipeline.pictures.charts import STATE_MARKS
from scene_pipeline.pictures.markdown import try_drawing
from scene_pipeline_tests.unit.picture_samples import (
    FIJI_BOUNDS,
    SVG,
    read_path,
    sample_pictures,
    texts,
)


@pytest.fixture(scope="module")
def samples() -> dict[str, str]:
    return sample_pictures()


def test_every_picture_stands_alone_and_is_small(samples: dict[str, str]) -> None:
    assert len(samples) == 7
    for name, picture in samples.items():
        root = ET.fromstring(picture)
        assert root.find(f"{SVG}title").text, name
        assert len(picture) < 20_000, name
        targets = re.findall(r"url\(([^)]*)\)|href=|<script|<image|<style", picture)
        assert set(targets) <= {"#none"}, name


corners = st.lists(
    st.tuples(st.floats(0, 500, width=32), st.floats(0, 500, width=32)), min_size=3, max_size=12
)


@given(st.lists(corners, min_size=1, max_size=4))
def test_a_path_stays_within_half_a_pixel_of_its_shapes(
    rings: list[list[tuple[float, ...]]],
) -> None:
    hulls = [shapely.MultiPoint(ring).convex_hull for ring in rings]
    shapes = np.array([hull for hull in hulls if hull.geom_type == "Polygon" and hull.area > 4])
    drawn = read_path(svg.path_data(shapes)) if len(shapes) else []
    assert len(drawn) == len(shapes)
    for shape, ring in zip(shapes, drawn, strict=True):
        assert shapely.hausdorff_distance(shape.exterior, shapely.LinearRing(ring)) < 0.5


def test_rounding_does_not_add_up_along_a_ring() -> None:
    angles = np.linspace(0, 2 * np.pi, 2000, endpoint=False)
    circle = shapely.Polygon(250 + 240.04 * np.column_stack((np.cos(angles), np.sin(angles))))
    (ring,) = read_path(svg.path_data(circle, tolerance_px=0))
    assert np.abs(np.hypot(*(ring - 250).T) - 240.04).max() < 0.1


def test_names_from_outside_cannot_become_markup() -> None:
    hostile = """</text><script>alert("1")</script> & 'x' ]]>"""
    picture = maps.draw_partition_map([], FIJI_BOUNDS["7-0-70"], title=hostile, note=hostile)
    assert texts(picture).count(hostile) == 2
    assert ET.fromstring(picture).find(f".//{SVG}script") is None


def test_a_picture_that_fails_is_a_reason_and_no_error() -> None:
    assert try_drawing(lambda: "<svg/>") == ("<svg/>", "")
    assert try_drawing(lambda: None) == (None, "")
    drawn, why = try_drawing(lambda: maps.draw_partition_map([b"not WKB"], FIJI_BOUNDS, title="t"))
    assert drawn is None
    assert why.startswith("not drawn: GEOSException: ")


def test_a_markdown_image_carries_the_picture_whole() -> None:
    picture = "<svg>(a) [b] ü</svg>"
    markdown = markdown_image(picture, "map](http://x) of\nJune [1]")
    alt, data = re.fullmatch(
        r"!\[([^\[\]]*)\]\(data:image/svg\+xml;base64,([^()]+)\)", markdown
    ).groups()
    assert base64.b64decode(data).decode() == picture
    assert alt == "map (http://x) of June 1"


def linear(color: str) -> np.ndarray:
    values = np.array([int(color[index : index + 2], 16) for index in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio."""
    light = sorted(float(linear(color) @ (0.2126, 0.7152, 0.0722)) for color in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def test_words_have_contrast_on_every_ground() -> None:
    for words in (svg.INK, svg.MUTED):
        for ground in (svg.PAPER, svg.SEA, svg.LAND):
            assert contrast(words, ground) >= 4.5, (words, ground)
    for mark in (svg.BLUE, svg.VERMILION, svg.INK):
        for ground in (svg.PAPER, svg.SEA, svg.LAND):
            assert contrast(mark, ground) >= 3, (mark, ground)


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
_VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.01182, 0.04294, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.3039],
        ]
    ),
}


def lab(color: str, vision: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) as an eye with ``vision`` sees it."""
    rgb = np.clip(vision @ linear(color), 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ rgb / (0.9505, 1, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", list(_VISION))
def test_states_can_be_told_apart_with_every_kind_of_colour_vision(vision: str) -> None:
    solid = {s: m.fill for s, m in STATE_MARKS.items() if m.fill.startswith("#")}
    assert len(solid) == len(STATE_MARKS) - 1  # the hatched one needs no hue
    for (one, first), (other, second) in combinations(solid.items(), 2):
        distance = np.linalg.norm(lab(first, _VISION[vision]) - lab(second, _VISION[vision]))
        assert distance >= 12, (one, other)
