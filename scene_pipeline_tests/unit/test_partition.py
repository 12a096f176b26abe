"""Raw scenes of a key to the rows of its partition."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import shapely

from scene_pipeline.errors import DataError
from scene_pipeline.scenes.grid import WebMercatorGrid
from scene_pipeline.scenes.item import parse_and_repair, scenes_to_table
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.mercator import project
from scene_pipeline.scenes.partition import BuiltPartition, build_partition, empty_partition
from scene_pipeline.scenes.schema import SCENE_COLUMNS, arrow_schema
from scene_pipeline_tests.services.items import make_item, make_ring

DAY = date(2024, 6, 1)
GRID = WebMercatorGrid(7, (5.7, 45.0, 11.2, 48.0))
TILE = "7-66-45"  # 5.625 to 8.4375 degrees east, 45.089 to 47.040 degrees north
KEY = PartitionKey(DAY, TILE)


def raw_of(*rings: Any, **properties: Any) -> pa.Table:
    items = []
    for number, ring in enumerate(rings):
        item = make_item(f"scene-{number}", **properties)
        item["geometry"] = {"type": "Polygon", "coordinates": [ring]}
        items.append(item)
    return scenes_to_table(parse_and_repair(items).scenes).drop_columns(["item", "digest"])


def build(raw: pa.Table, **changes: Any) -> BuiltPartition:
    arguments: dict[str, Any] = {"key": KEY, "grid": GRID, "region": "alps", "raw_seq": 5}
    return build_partition(raw, **(arguments | changes))


INSIDE = make_ring(6, 45.5, 7, 46.5)
HALF = make_ring(7.9375, 46, 8.9375, 46.5)  # half of it is east of the tile
OUTSIDE = make_ring(9, 46, 10, 46.5)


def test_rows_have_the_schema_and_say_where_they_are() -> None:
    built = build(raw_of(INSIDE, HALF))
    assert built.rows.schema.equals(arrow_schema(SCENE_COLUMNS))
    rows = {row["item_id"]: row for row in built.rows.to_pylist()}
    for row in rows.values():
        assert (row["region"], row["tile"], row["acq_date"], row["raw_seq"]) == (
            "alps",
            TILE,
            DAY,
            5,
        )
        assert row["acquired_at"] == datetime(2024, 6, 1, 10, 20, 30, tzinfo=UTC)
        assert json.loads(row["properties"])["assets"]
        assert list(row["bbox"].values()) == list(shapely.from_wkb(row["geometry"]).bounds)
    assert rows["scene-0"]["area_share"] == pytest.approx(1, abs=1e-12)
    assert rows["scene-1"]["area_share"] == pytest.approx(0.5, abs=1e-9)


def test_a_piece_is_the_footprint_cut_along_the_tile() -> None:
    piece = shapely.from_wkb(build(raw_of(HALF)).rows["geometry"][0].as_py())
    (west, south), (_, north) = project([(7.9375, 46), (8.9375, 46.5)])
    edge = GRID.bounds(TILE)[2]
    assert piece.geom_type == "MultiPolygon"
    assert piece.equals(shapely.box(west, south, edge, north))


def test_counts_and_bounds() -> None:
    built = build(raw_of(INSIDE, HALF, OUTSIDE))
    assert dict(built.counts) == {"scenes": 3, "rows": 2, "repaired": 0, "outside": 1}
    boxes = np.array([list(box.values()) for box in built.rows["bbox"].to_pylist()])
    assert built.bounds == (*boxes[:, :2].min(axis=0), *boxes[:, 2:].max(axis=0))


def test_repairs_are_recorded() -> None:
    bow_tie = [[6, 45.5], [7, 46.5], [7, 45.5], [6, 46.5], [6, 45.5]]
    high = [[*point, 7.0] for point in INSIDE]
    built = build(raw_of(INSIDE, bow_tie, high))
    repairs = {row["item_id"]: row["repairs"] for row in built.rows.to_pylist()}
    assert repairs == {"scene-0": [], "scene-1": ["made valid"], "scene-2": ["height dropped"]}
    assert built.counts["repaired"] == 2


def test_no_scene_and_no_piece_are_typed_and_empty() -> None:
    for built in (empty_partition(), build(raw_of().slice(0, 0)), build(raw_of(OUTSIDE))):
        assert built.rows.num_rows == 0
        assert built.rows.schema.equals(arrow_schema(SCENE_COLUMNS))
        assert built.bounds is None
        assert built.counts["rows"] == 0
    assert build(raw_of(OUTSIDE)).counts["outside"] == 1


def test_the_order_of_the_input_does_not_matter() -> None:
    rings = [make_ring(6 + x / 10, 45.2 + x / 20, 6.2 + x / 10, 45.4 + x / 20) for x in range(20)]
    raw = raw_of(*rings, INSIDE, INSIDE)
    shuffled = raw.take(np.random.default_rng(3).permutation(raw.num_rows))
    assert build(raw).rows.equals(build(shuffled).rows)


def test_neighbours_on_the_ground_share_row_groups() -> None:
    rng = np.random.default_rng(5)
    corners = rng.uniform((5.7, 45.2), (8.2, 46.8), (4000, 2))
    raw = raw_of(*(make_ring(x, y, x + 0.1, y + 0.1) for x, y in corners))
    bounds = np.array([list(box.values()) for box in build(raw).rows["bbox"].to_pylist()])
    area = (bounds[:, 2:].max(axis=0) - bounds[:, :2].min(axis=0)).prod()
    groups = [group.reshape(-1, 4) for group in np.array_split(bounds, 16)]
    covered = sum((g[:, 2:].max(axis=0) - g[:, :2].min(axis=0)).prod() for g in groups)
    assert covered < 4 * area  # 16 groups in random order would cover 16 times the area


def _another_day(raw: pa.Table) -> pa.Table:
    days = pa.array([date(2024, 6, 2)] * raw.num_rows, pa.date32())
    return raw.set_column(raw.column_names.index("acq_date"), "acq_date", days)


def _unusable(raw: pa.Table) -> pa.Table:
    wkb = pa.array([shapely.to_wkb(shapely.Point(6, 45))] * raw.num_rows, pa.binary())
    return raw.set_column(raw.column_names.index("geometry"), "geometry", wkb)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_another_day, "another day, 2024-06-02"),
        (_unusable, "its footprint cannot be used: not polygonal"),
        (lambda raw: pa.concat_tables([raw, raw]), "there twice"),
    ],
)
def test_a_landed_scene_that_cannot_be_treated_fails_its_key_by_name(
    spoil: Callable[[pa.Table], pa.Table], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        build(spoil(raw_of(INSIDE)))
    assert message in caught.value.what
    assert "sentinel-2-l2a/scene-0" in caught.value.what
    assert str(KEY) in caught.value.where


def test_pieces_of_all_tiles_make_up_the_scene() -> None:
    ring = make_ring(6, 45.2, 11, 47.5)
    pieces, shares = [], 0.0
    for tile in GRID.keys:
        rows = build(raw_of(ring), key=PartitionKey(DAY, tile)).rows.to_pylist()
        pieces += [shapely.from_wkb(row["geometry"]) for row in rows]
        shares += sum(row["area_share"] for row in rows)
    (west, south), (east, north) = project([(6, 45.2), (11, 47.5)])
    assert len(pieces) == 4
    assert shares == pytest.approx(1, abs=1e-9)
    assert shapely.union_all(pieces).equals(shapely.box(west, south, east, north))


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    rings = [make_ring(6 + x / 20, 45.2, 6.3 + x / 20, 46.9) for x in range(40)]
    raw = raw_of(*rings, OUTSIDE, [[6, 45.5], [7, 46.5], [7, 45.5], [6, 46.5], [6, 45.5]])
    whole = build(raw)
    monkeypatch.setattr("scene_pipeline.scenes.partition._CHUNK_ROWS", 7)
    chunked = build(raw)
    assert chunked.rows.equals(whole.rows)
    assert (chunked.counts, chunked.bounds) == (whole.counts, whole.bounds)
    with pytest.raises(DataError, match="scene-0 cannot be treated"):
        build(_unusable(raw))
