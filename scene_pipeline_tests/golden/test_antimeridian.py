"""Footprints against the antimeridian package's goldens and two peers on real footprints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely

from scene_pipeline.scenes.footprint import repair_footprints

# Ours keeps lines straight in lon/lat, which is the package's "flat" reading.
FLAT = (
    "almost-180",
    "crossing-latitude",
    "extra-crossing",
    "latitude-band",
    "north-pole",
    "one-hole",
    "over-180",
    "point-on-antimeridian",
    "simple",
    "south-pole",
    "split",
    "two-holes",
)
# Where GDAL's -wrapdateline means the same (it leaves poles and wide rings alone).
GDAL = ("almost-180", "latitude-band", "over-180", "point-on-antimeridian", "simple")


def repair(shape: Any) -> Any:
    geometries = np.empty(1, dtype=object)
    geometries[0] = shape
    repaired = repair_footprints(geometries)
    assert repaired.reasons == [None]
    return repaired.geometry[0]


def agreement(one: Any, other: Any) -> float:
    """Intersection over union."""
    other = shapely.make_valid(other)
    return float(one.intersection(other).area / one.union(other).area)


def read_geometry(path: Path) -> Any:
    document = json.loads(path.read_text())
    if document["type"] == "FeatureCollection":
        document = document["features"][0]["geometry"]
    return shapely.from_geojson(json.dumps(document))


@pytest.mark.parametrize("name", FLAT)
def test_the_flat_goldens(real_data: Path, name: str) -> None:
    folder = real_data / "golden" / "antimeridian"
    shape = repair(read_geometry(folder / "input" / f"{name}.json"))
    expected = read_geometry(folder / "output" / "flat" / f"{name}.json")
    assert agreement(shape, expected) > 1 - 1e-9
    assert shape.symmetric_difference(expected).area < 1e-6


@pytest.mark.parametrize("name", GDAL)
def test_gdals_goldens(real_data: Path, name: str) -> None:
    folder = real_data / "golden" / "antimeridian"
    shape = repair(read_geometry(folder / "input" / f"{name}.json"))
    assert agreement(shape, read_geometry(folder / "ogr2ogr" / f"{name}.json")) > 1 - 1e-9


def test_every_golden_input_is_judged(real_data: Path) -> None:
    """Those without a flat golden: holes wound the other way, and a line, which is refused."""
    folder = real_data / "golden" / "antimeridian" / "input"
    names = {path.stem for path in folder.glob("*.json")}
    assert names - set(FLAT) == {"line", "one-ccw-hole", "simple-with-ccw-hole"}
    hole, reverse = (repair(read_geometry(folder / f"one-{n}hole.json")) for n in ("", "ccw-"))
    assert agreement(hole, reverse) > 1 - 1e-9
    assert repair(read_geometry(folder / "simple-with-ccw-hole.json")).area == 64
    line = np.array([read_geometry(folder / "line.json")], dtype=object)
    assert repair_footprints(line).reasons == ["not polygonal"]


def read_oracle(real_data: Path) -> list[dict[str, Any]]:
    path = real_data / "golden" / "peer_oracle" / "antimeridian_real_footprints.ndjson"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_both_peers_where_they_agree(real_data: Path) -> None:
    agreed = [row for row in read_oracle(real_data) if (row.get("iou") or 0) > 0.99]
    assert len(agreed) == 14
    for row in agreed:
        shape = repair(shapely.from_geojson(json.dumps(row["input"])))
        for peer in ("antimeridian_fix_shape", "ff_rework"):
            expected = shapely.from_geojson(json.dumps(row[peer]))
            assert agreement(shape, expected) > 0.999, (row["id"], peer)


def test_one_of_the_peers_where_they_differ(real_data: Path) -> None:
    """Two whole orbits of Sentinel-3 and a self-crossing scene over the Aleutians."""
    apart = [row for row in read_oracle(real_data) if 0.1 < (row.get("iou") or 0) <= 0.99]
    assert len(apart) == 3
    for row in apart:
        shape = repair(shapely.from_geojson(json.dumps(row["input"])))
        expected = [
            shapely.from_geojson(json.dumps(row[peer]))
            for peer in ("antimeridian_fix_shape", "ff_rework")
        ]
        assert max(agreement(shape, each) for each in expected) > 0.998, row["id"]


def test_metres_in_a_lonlat_field_are_refused(real_data: Path) -> None:
    """Five real Sentinel-1 Items, which both peers turn into a world or worse."""
    metres = [row for row in read_oracle(real_data) if row.get("iou") == 0]
    assert len(metres) == 5
    shapes = shapely.from_geojson([json.dumps(row["input"]) for row in metres])
    assert set(repair_footprints(shapes).reasons) == {"latitude out of range"}
