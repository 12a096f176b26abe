"""All real Items through parsing and repair: as one batch and one by one, equal and explained."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import shapely
from pyproj import Geod

from scene_pipeline.scenes.footprint import project_footprints, repair_footprints
from scene_pipeline.scenes.grid import WebMercatorGrid
from scene_pipeline.scenes.item import Parsed, parse_and_repair, scenes_to_table
from scene_pipeline.scenes.schema import RAW_COLUMNS, arrow_schema
from scene_pipeline_tests.services.items import read_real_items

_GEOD = Geod(ellps="WGS84")


@pytest.fixture(scope="module")
def items(real_data: Path) -> list[dict[str, Any]]:
    return read_real_items(real_data)


@pytest.fixture(scope="module")
def parsed(items: list[dict[str, Any]]) -> Parsed:
    return parse_and_repair(items)


def test_every_item_has_one_outcome(items: list[dict[str, Any]], parsed: Parsed) -> None:
    assert len(items) == 3915
    assert len(parsed.scenes) + len(parsed.rejected) == len(items)
    assert len(parsed.footprints) == len(parsed.repairs) == len(parsed.scenes)
    outcomes = Counter(scene.item_id for scene in parsed.scenes)
    outcomes += Counter(each.item.get("id", "") for each in parsed.rejected)
    assert outcomes == Counter(item.get("id", "") for item in items)


def test_rejections_are_those_that_other_code_finds(
    items: list[dict[str, Any]], parsed: Parsed
) -> None:
    assert Counter(each.reason for each in parsed.rejected) == Counter(
        map(_judge, items)
    ) - Counter({None: len(items)})


def _judge(item: dict[str, Any]) -> str | None:
    """The outcome, from the Item's JSON alone."""
    geometry = item.get("geometry")
    if not item.get("id"):
        return "id missing"
    if not (item.get("collection") or item["properties"].get("collection")):
        return "collection missing"
    if not (item["properties"].get("datetime") or item["properties"].get("start_datetime")):
        return "datetime missing"
    if geometry is None:
        return "geometry null"
    if geometry.get("type") not in {"Polygon", "MultiPolygon", "Point"} or _is_odd(geometry):
        return "geometry unparsable"
    if geometry["coordinates"] == []:
        return "geometry empty"
    if geometry["type"] == "Point":
        return "not polygonal"
    positions = list(_positions(geometry["coordinates"]))
    if any(abs(position[1]) > 90 for position in positions):
        return "latitude out of range"
    (west, south), (east, north) = np.min(positions, axis=0)[:2], np.max(positions, axis=0)[:2]
    boxed = len({tuple(position[:2]) for position in positions}) <= 8
    share = (east - west) / 360 * (np.sin(np.radians(north)) - np.sin(np.radians(south))) / 2
    return "area over bound" if boxed and east - west >= 360 and share > 0.5 else None


def _is_odd(geometry: dict[str, Any]) -> bool:
    """Coordinates that are no nested lists of numbers, or rings that no ring can be."""
    depth = {"Point": 1, "Polygon": 3, "MultiPolygon": 4}[geometry["type"]]
    if _depth(geometry["coordinates"]) not in {depth, 0}:
        return True
    rings = geometry["coordinates"] if geometry["type"] == "Polygon" else []
    return any(ring and ring[0] != ring[-1] for ring in rings)


def _depth(coordinates: Any) -> int:
    """How deep the lists are nested; 0 for an empty list, -1 where no number is at the bottom."""
    if coordinates == []:
        return 0
    depth = 0
    while isinstance(coordinates, list) and coordinates:
        coordinates = coordinates[-1]
        depth += 1
    return depth if isinstance(coordinates, (int, float)) else -1


def _positions(coordinates: Any) -> Iterator[list[float]]:
    if coordinates and all(isinstance(part, (int, float)) for part in coordinates):
        yield coordinates
        return
    for part in coordinates:
        yield from _positions(part)


def test_a_batch_equals_its_items_one_by_one(items: list[dict[str, Any]], parsed: Parsed) -> None:
    scenes = iter(range(len(parsed.scenes)))
    rejected = iter(parsed.rejected)
    for item in items:
        alone = parse_and_repair([item])
        if alone.rejected:
            assert alone.rejected == [next(rejected)]
            continue
        index = next(scenes)
        assert alone.scenes == [parsed.scenes[index]]
        assert alone.repairs == [parsed.repairs[index]]
        assert shapely.to_wkb(alone.footprints[0]) == shapely.to_wkb(parsed.footprints[index])


def test_repairing_what_is_repaired_changes_nothing(parsed: Parsed) -> None:
    again = repair_footprints(parsed.footprints)
    assert set(again.repairs) == {()}
    assert shapely.equals_exact(again.geometry, parsed.footprints, tolerance=0).all()
    assert shapely.is_valid(parsed.footprints).all()


def test_repairs_that_should_keep_the_area_keep_it(items: list[dict[str, Any]]) -> None:
    """On the ellipsoid, within 0.1 %, against the published ring put together by hand."""
    shapes = shapely.from_geojson([json.dumps(item.get("geometry")) for item in items], "ignore")
    shapes = shapes[shapely.get_type_id(shapes) == 3]
    keeping = {"height dropped", "split at antimeridian", "longitudes wrapped"}
    repaired = repair_footprints(shapes)
    checked = 0
    for shape, result, repairs in zip(shapes, repaired.geometry, repaired.repairs, strict=True):
        if result is None or not set(repairs) <= keeping:
            continue
        if not repairs and checked > 400:
            continue  # what was not touched needs no more than a sample
        whole = shape
        if repairs and "height dropped" not in repairs and shape.bounds[2] - shape.bounds[0] > 180:
            whole = shapely.transform(shape, lambda xy: np.column_stack([xy[:, 0] % 360, xy[:, 1]]))
        assert _ground(result) == pytest.approx(_ground(whole), rel=1e-3)
        checked += 1
    assert checked > 400


def _ground(shape: Any) -> float:
    dense = shapely.segmentize(shapely.force_2d(shape), 0.5)
    return abs(float(_GEOD.geometry_area_perimeter(shapely.orient_polygons(dense))[0]))


def test_days_and_instants_are_those_of_pandas(parsed: Parsed) -> None:
    """Another parser, on every instant that the real Items have."""
    for scene in parsed.scenes:
        properties = json.loads(scene.item)["properties"]
        text = properties.get("datetime") or properties["start_datetime"]
        expected = pd.Timestamp(text)
        expected = expected.tz_localize(UTC) if expected.tz is None else expected.tz_convert(UTC)
        assert scene.acquired_at == expected.floor("us").to_pydatetime(warn=False)
        assert scene.acq_date == expected.date()


def test_34_items_have_their_datetime_on_another_day_than_their_start(
    items: list[dict[str, Any]],
) -> None:
    """A49: the day is the datetime's, whatever the interval says."""
    scenes = parse_and_repair(items, default_collection="none", max_area_km2=1e9).scenes
    apart = [
        scene
        for scene in scenes
        if scene.start_at is not None
        and json.loads(scene.item)["properties"].get("datetime")
        and scene.start_at.date() != scene.acquired_at.date()
    ]
    assert len(apart) == 34
    assert all(scene.acq_date == scene.acquired_at.date() for scene in apart)


def test_tiles_are_those_that_geopandas_would_join(parsed: Parsed) -> None:
    """Each scene is in exactly the tiles whose box its projected footprint overlaps."""
    import geopandas as gpd

    grid = WebMercatorGrid(3, (-180, -85.06, 180, 85.06))
    owners, tiles = grid.tiles_for(parsed.footprints)
    boxes = shapely.box(*np.array([grid.bounds(key) for key in grid.keys]).T)
    left = gpd.GeoDataFrame(geometry=project_footprints(parsed.footprints), crs=3857)
    right = gpd.GeoDataFrame(geometry=boxes, crs=3857)
    joined = gpd.sjoin(left, right, predicate="intersects")
    areas = shapely.area(
        shapely.intersection(left.geometry[joined.index].to_numpy(), boxes[joined["index_right"]])
    )
    joined = joined[areas >= 1.0]
    expected = set(zip(joined.index, joined["index_right"], strict=True))
    assert set(zip(owners.tolist(), tiles.tolist(), strict=True)) == expected
    assert len(owners) == len(expected) > len(parsed.scenes)


def test_all_of_it_is_one_raw_table(items: list[dict[str, Any]]) -> None:
    """Over fifty property keys of these Items have several JSON types; one schema holds all."""
    types: dict[str, set[str]] = {}
    for item in items:
        for name, value in item["properties"].items():
            types.setdefault(name, set()).add(type(value).__name__)
    assert sum(len(kinds) > 1 for kinds in types.values()) > 50
    scenes = parse_and_repair(items, default_collection="none").scenes
    table = scenes_to_table(scenes)
    assert table.schema.equals(arrow_schema(RAW_COLUMNS))
    by_id = {(scene.collection, scene.item_id, scene.digest): scene for scene in scenes}
    for row in table.select(["collection", "item_id", "digest", "properties", "item"]).to_pylist():
        scene = by_id[row["collection"], row["item_id"], row["digest"]]
        assert (row["properties"], row["item"]) == (scene.properties, scene.item)
        left = json.loads(row["properties"])
        published = json.loads(row["item"])["properties"]
        assert all(left[name] == published[name] for name in left if name != "assets")
