"""One picture of every kind, and how tests read them back."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import shapely

from scene_pipeline.pictures import charts, maps
from scene_pipeline.pictures.charts import STATE_MARKS, StreamBar
from scene_pipeline.scenes.coverage import COVERAGE_COLUMNS
from scene_pipeline.scenes.grid import WebMercatorGrid
from scene_pipeline.scenes.keys import PartitionKey

SVG = "{http://www.w3.org/2000/svg}"
FIJI = WebMercatorGrid(7, (175.5, -21.0, -178.0, -17.0))
FIJI_BOUNDS = {tile: FIJI.bounds(tile) for tile in FIJI.keys}
NUMBER = re.compile(r"-?\d*\.?\d+")


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(picture).iter(f"{SVG}text")]


def find_text(picture: str, words: str) -> ET.Element:
    found = [e for e in ET.fromstring(picture).iter(f"{SVG}text") if e.text == words]
    assert len(found) == 1, (words, texts(picture))
    return found[0]


def read_path(data: str) -> list[np.ndarray]:
    """The rings of a path of ``M x y l dx dy … z`` groups."""
    rings = []
    for group in data.split("z")[:-1]:
        numbers = [float(text) for text in NUMBER.findall(group)]
        rings.append(np.cumsum(np.reshape(numbers, (-1, 2)), axis=0))
    return rings


def coverage(shares: dict[str, float | None]) -> pa.Table:
    rows = {
        "tile": list(shares),
        "scenes": [0 if share is None else 2 for share in shares.values()],
        "covered_share": [share or 0.0 for share in shares.values()],
        "cloud_cover_pct": [None if share is None else 40.0 for share in shares.values()],
    }
    return pa.table(rows, schema=COVERAGE_COLUMNS)


def footprints(tile: str, count: int) -> list[shapely.Geometry]:
    west, south, east, north = FIJI_BOUNDS[tile]
    step = (east - west) / (count + 2)
    return [
        shapely.box(west + index * step, south, west + (index + 2) * step, north)
        for index in range(count)
    ]


def sample_pictures() -> dict[str, str]:
    """One picture of every kind, also looked at in a browser."""
    now = datetime(2024, 6, 16, 9, tzinfo=UTC)
    bow_tie = shapely.Polygon([(178.1, -17.2), (179, -18.1), (179, -17.2), (178.1, -18.1)])
    across = shapely.Polygon([(179.2, -17), (-179.3, -17.2), (-179.5, -18.3), (179, -18.1)])
    halves = shapely.MultiPolygon(
        [shapely.box(179, -18, 180, -17), shapely.box(-180, -18, -179, -17)]
    )
    names = list(STATE_MARKS)
    states = {
        PartitionKey(date(2024, 6, 1) + timedelta(days=day), tile): names[(day + 2 * row) % 9]
        for day in range(30)
        for row, tile in enumerate(FIJI.keys)
    }
    tile = "7-127-70"
    return {
        "partition": maps.draw_partition_map(
            footprints(tile, 5), FIJI_BOUNDS[tile], title=f"2024-06-01|{tile}",
            note="5 scenes", repaired=[False, True, False, False, False],
        ),
        "empty": maps.draw_partition_map([], FIJI_BOUNDS[tile], title=f"2024-06-01|{tile}"),
        "day": maps.draw_day_map(
            coverage(dict(zip(FIJI.keys, (1, 0.5, None, 0.3, 0.1), strict=False))),
            FIJI_BOUNDS, title="fiji, 2024-06-01", pieces={tile: footprints(tile, 5)},
        ),
        "bow-tie": maps.draw_repair(bow_tie, shapely.make_valid(bow_tie), title="S2A_X"),
        "antimeridian": maps.draw_repair(across, halves, title="S2B_Y", note="split at ±180"),
        "frontier": charts.draw_frontier(
            [
                StreamBar("earth-search-sentinel-2-l2a", now - timedelta(days=2)),
                StreamBar("usgs-landsat", now - timedelta(days=4), "blocked", "429 for 3 hours"),
                StreamBar("newcomer", None, "pending"),
            ],
            frontier_at=now - timedelta(days=4), now=now, holder="usgs-landsat",
            holder_since=now - timedelta(days=3),
        ),
        "strip": charts.draw_strip(states, tiles=FIJI.keys),
    }  # fmt: skip
