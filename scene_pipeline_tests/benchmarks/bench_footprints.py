"""Footprints: repair, split and projection against the chain that a geopandas user writes."""

from __future__ import annotations

from typing import Any

import geopandas as gpd
import numpy as np
import shapely

from scene_pipeline.scenes.footprint import repair_and_project
from scene_pipeline_tests.benchmarks.harness import Result, benchmark, compare


def make_footprints(count: int, *, area: tuple[float, float, float, float]) -> Any:
    """Scenes as archives have them, with real shares of each kind.

    Of the real Sentinel-2, Landsat and NAIP Items nine in ten are quadrilaterals, one in twenty
    has a swath edge of a dozen vertices, one in two hundred touches the antimeridian; a bow-tie
    in a thousand is what makes a user call ``make_valid``.
    """
    rng = np.random.default_rng(7)
    centres = rng.uniform(area[:2], area[2:], (count, 2))
    corners = np.array([(-0.7, -0.6), (0.7, -0.5), (0.6, 0.6), (-0.8, 0.5)])
    shapes = np.empty(count, dtype=object)
    for number, centre in enumerate(centres):
        ring = corners + centre + rng.normal(0, 0.02, (4, 2))
        if number % 20 == 0:  # the swath ends inside: its edge is a line of short steps
            edge = np.linspace(ring[1], ring[2], 9) + rng.normal(0, 0.003, (9, 2))
            ring = np.concatenate([ring[:1], edge, ring[3:]])
        if number % 1000 == 500:
            ring = ring[[0, 2, 1, 3]]
        if number % 200 == 199:
            ring[:, 0] = (ring[:, 0] - centre[0] + 360) % 360 - 180
        shapes[number] = shapely.Polygon(ring)
    return shapes


@benchmark("footprints_10k_vs_naive")
def measure_footprints() -> Result:
    """``to_crs``, ``is_valid``, ``make_valid``: the other side leaves the antimeridian wrong."""
    shapes = make_footprints(10_000, area=(-170, -70, 170, 70))
    frame = gpd.GeoDataFrame(geometry=shapes, crs="OGC:CRS84")

    def naive() -> Any:
        projected = frame.to_crs(3857)
        if not projected.is_valid.all():
            projected.geometry = projected.make_valid()
        return projected

    assert all(reason is None for reason in repair_and_project(shapes).reasons)
    return compare(lambda: repair_and_project(shapes), naive, rounds=15, target=0.65)
