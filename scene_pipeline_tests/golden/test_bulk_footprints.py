"""Fifty thousand real footprints: the grids of Landsat and Sentinel-2."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import shapely

from scene_pipeline.scenes.footprint import project_footprints, repair_footprints
from scene_pipeline.scenes.mercator import HALF_WORLD_M, lonlat_area_km2

FILES = {"wrs2_descending.parquet": 28_892, "sentinel-2-grid_LAND.parquet": 20_430}


@pytest.fixture(scope="module", params=list(FILES))
def footprints(request: pytest.FixtureRequest, real_data: Path) -> Any:
    frame = gpd.read_parquet(real_data / "bulk" / request.param, columns=["geometry"])
    assert len(frame) == FILES[request.param]
    return frame.geometry.to_numpy()


def test_all_are_accepted_and_what_is_split_already_stays(footprints: Any) -> None:
    repaired = repair_footprints(footprints)
    assert set(repaired.reasons) == {None}
    changed = Counter(repair for found in repaired.repairs for repair in found)
    assert set(changed) <= {"height dropped", "made valid"}
    assert shapely.is_valid(repaired.geometry).all()
    flat = shapely.force_2d(footprints)
    same = [not set(found) - {"height dropped"} for found in repaired.repairs]
    assert np.mean(same) > 0.99
    assert shapely.equals(repaired.geometry[same], flat[same]).all()


def test_areas_are_those_of_one_scene(footprints: Any) -> None:
    """A split that went wrong has hundreds of times the area of its neighbours."""
    areas = lonlat_area_km2(repair_footprints(footprints).geometry)
    middle = np.median(areas)
    assert areas.min() > middle / 100
    assert areas.max() < middle * 3


def test_projections_are_valid_and_in_the_square(footprints: Any) -> None:
    projected = project_footprints(repair_footprints(footprints).geometry)
    kept = projected[~shapely.is_missing(projected)]
    assert len(kept) > len(footprints) * 0.9
    assert shapely.is_valid(kept).all()
    assert np.abs(shapely.bounds(kept)).max() <= HALF_WORLD_M
