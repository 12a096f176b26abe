"""Lake files: what goes in comes out, and what is not ours is refused by name."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scene_pipeline.errors import DataError, LakeFileError
from scene_pipeline.lake.geoparquet import (
    FileInfo,
    _fragment,
    _meets,
    decode_geoparquet,
    encode_geoparquet,
    read_info,
)
from scene_pipeline.scenes.item import scenes_to_table
from scene_pipeline.scenes.schema import (
    RAW_COLUMNS,
    SCENE_COLUMNS,
    SCHEMA_VERSION,
    arrow_schema,
)
from scene_pipeline_tests.services.items import make_scene
from scene_pipeline_tests.services.scene_rows import REGION, key_of, make_partition

KEY = key_of()
INFO = FileInfo("partition", REGION, str(KEY), 7)


def encode(rows: pa.Table, info: FileInfo = INFO) -> bytes:
    return encode_geoparquet(rows, info)


def metadata_of(content: bytes) -> dict[bytes, bytes]:
    metadata: dict[bytes, bytes] = pq.read_metadata(pa.BufferReader(content)).metadata
    return metadata


@pytest.mark.parametrize("rows", [0, 1, 333])
def test_a_partition_comes_back_as_it_was(rows: int) -> None:
    table = make_partition(KEY, rows).rows
    info, back = decode_geoparquet(encode(table), where="x")
    assert back.equals(table)
    assert back.schema.equals(arrow_schema(SCENE_COLUMNS), check_metadata=True)
    assert info == INFO


def test_nulls_empty_texts_and_json_come_back() -> None:
    """A29, A37: an empty text is no null, an all-null column keeps its type."""
    nullable = [column.name for column in SCENE_COLUMNS if column.nullable]
    columns: dict[str, Any] = {name: [None, None] for name in nullable}
    columns["platform"] = ["", None]
    columns["properties"] = ['{"a":[1,null,{"b":"\\u00e9"}],"c":""}', "{}"]
    table = make_partition(KEY, 2, columns=columns).rows
    _, back = decode_geoparquet(encode(table), where="x")
    assert back.equals(table)
    assert back["platform"].to_pylist() == ["", None]
    assert json.loads(back["properties"][0].as_py())["a"][2] == {"b": "é"}


def test_microseconds_and_utc_come_back() -> None:
    instant = datetime(2024, 6, 1, 23, 59, 59, 999999, tzinfo=UTC)
    table = make_partition(KEY, 1, columns={"acquired_at": [instant], "updated_at": [instant]}).rows
    _, back = decode_geoparquet(encode(table), where="x")
    assert back["acquired_at"].to_pylist() == [instant]
    assert back.schema.field("updated_at").type == pa.timestamp("us", "UTC")


def test_drifting_days_read_as_one_dataset() -> None:
    """A29: day 1 has an integer cloud cover, day 2 a fraction, day 3 none, day 4 no scene."""
    covers: list[list[Any]] = [[3], [3.5], [None], []]
    parts = []
    for day, cover in enumerate(covers, 1):
        table = make_partition(key_of(day), len(cover), columns={"cloud_cover_pct": cover}).rows
        info = FileInfo("partition", REGION, str(key_of(day)), 1)
        parts.append(pq.read_table(pa.BufferReader(encode_geoparquet(table, info))))
    together = pa.concat_tables(parts, promote_options="none")
    assert together["cloud_cover_pct"].to_pylist() == [3.0, 3.5, None]


def test_the_same_rows_are_the_same_bytes() -> None:
    table = make_partition(KEY, 50).rows
    assert encode(table) == encode(table)


def test_a_null_that_the_schema_forbids_is_refused() -> None:
    with pytest.raises(DataError, match="item_id has 1 null"):
        encode(make_partition(KEY, 2, columns={"item_id": ["a", None]}).rows)


def test_columns_that_do_not_fit_are_refused() -> None:
    table = make_partition(KEY, 2).rows
    with pytest.raises(DataError, match="schema"):
        encode(table.drop_columns(["platform"]))
    text = table.set_column(table.column_names.index("gsd_m"), "gsd_m", pa.array(["x", "y"]))
    with pytest.raises(DataError, match="schema"):
        encode(text)


def test_a_wider_type_that_fits_is_taken() -> None:
    table = make_partition(KEY, 2).rows
    for name, type_ in (("platform", pa.large_string()), ("raw_seq", pa.int32())):
        index = table.column_names.index(name)
        table = table.set_column(index, name, table[name].cast(type_))
    _, back = decode_geoparquet(encode(table), where="x")
    assert back.equals(make_partition(KEY, 2).rows)


def test_the_footer_alone_says_what_a_file_is() -> None:
    content = encode(make_partition(KEY, 5_000).rows)
    assert read_info(content[-65536:], where="x") == (INFO, 5_000)


def test_geo_metadata() -> None:
    table = make_partition(KEY, 333).rows
    geo = json.loads(metadata_of(encode(table))[b"geo"])
    column = geo["columns"]["geometry"]
    assert (geo["version"], geo["primary_column"]) == ("1.1.0", "geometry")
    assert column["geometry_types"] == ["MultiPolygon"]
    assert column["crs"]["id"] == {"authority": "EPSG", "code": 3857}
    sides = ["xmin", "ymin", "xmax", "ymax"]
    assert column["covering"] == {"bbox": {side: ["bbox", side] for side in sides}}
    boxes = np.array([[row[side] for side in sides] for row in table["bbox"].to_pylist()])
    expected = [*boxes[:, :2].min(axis=0), *boxes[:, 2:].max(axis=0)]
    assert column["bbox"] == expected
    segment = encode_geoparquet(scenes_to_table([make_scene()]), FileInfo("segment", REGION))
    raw = json.loads(metadata_of(segment)[b"geo"])["columns"]["geometry"]
    assert raw["crs"]["id"] == {"authority": "OGC", "code": "CRS84"}
    empty = json.loads(metadata_of(encode(table.slice(0, 0)))[b"geo"])
    assert "bbox" not in empty["columns"]["geometry"]


def test_row_groups_are_even_and_prunable() -> None:
    table = pa.concat_tables([make_partition(KEY, 5_000).rows] * 9)
    metadata = pq.read_metadata(pa.BufferReader(encode(table)))
    sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert sizes == [15_000, 15_000, 15_000]
    columns = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
    for path, number in columns.items():
        statistics = metadata.row_group(0).column(number).statistics
        kept = path.partition(".")[0] not in {"properties", "geometry", "repairs"}
        assert (statistics is not None and statistics.has_min_max) == (
            kept and table[path.partition(".")[0]].null_count < table.num_rows
        ), path
        assert metadata.row_group(0).column(number).compression == "ZSTD"


def _encode_foreign(**changes: Any) -> bytes:
    """One of our files with another `scene_pipeline` entry."""
    table = pq.read_table(pa.BufferReader(encode(make_partition(KEY, 2).rows)))
    metadata = dict(table.schema.metadata)
    metadata[b"scene_pipeline"] = json.dumps(json.loads(metadata[b"scene_pipeline"]) | changes)
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    return bytes(sink.getvalue())


def _encode_plain(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


_WHOLE_ROWS = make_partition(KEY, 333).rows
WHOLE = encode(_WHOLE_ROWS)
FOREIGN = {
    "empty": b"",
    "text": b"<html>502 Bad Gateway</html>",
    "magic alone": b"PAR1PAR1",
    "first half": WHOLE[: len(WHOLE) // 2],
    "no footer": WHOLE[:-1],
    "second half": WHOLE[len(WHOLE) // 2 :],
    "plain parquet": _encode_plain(pa.table({"a": [1]})),
    "our columns without our mark": _encode_plain(make_partition(KEY, 2).rows),
    "newer schema": _encode_foreign(schema_version=str(int(SCHEMA_VERSION) + 1)),
    "unknown kind": _encode_foreign(kind="mosaic"),
    "unknown field": _encode_foreign(colour="red"),
    "a segment": encode_geoparquet(scenes_to_table([make_scene()]), FileInfo("segment", REGION)),
}


@pytest.mark.parametrize("name", list(FOREIGN))
def test_a_file_that_is_not_ours_is_refused_by_name(name: str) -> None:
    with pytest.raises(LakeFileError) as caught:
        decode_geoparquet(FOREIGN[name], where="lake/tile=7-66-45.parquet")
    assert caught.value.where == "lake/tile=7-66-45.parquet"
    assert caught.value.next_step


def test_other_columns_under_our_mark_are_refused() -> None:
    table = make_partition(KEY, 2).rows.drop_columns(["platform"])
    own = {b"scene_pipeline": metadata_of(WHOLE)[b"scene_pipeline"]}
    with pytest.raises(LakeFileError, match="columns"):
        decode_geoparquet(_encode_plain(table.replace_schema_metadata(own)), where="x")


def test_segments_refuse_partitions() -> None:
    with pytest.raises(LakeFileError, match="a partition where a segment is due"):
        decode_geoparquet(WHOLE, where="x", kind="segment")


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_flipped_byte_never_passes_for_other_data(position: int, mask: int) -> None:
    """Refused by name, or without effect on the rows; every page carries a checksum."""
    content = bytearray(WHOLE)
    content[position] ^= mask
    with suppress(LakeFileError):
        _, rows = decode_geoparquet(bytes(content), where="x")
        assert rows.equals(_WHOLE_ROWS)


def test_some_columns() -> None:
    _, rows = decode_geoparquet(WHOLE, where="x", columns=["item_id", "bbox"])
    assert rows.column_names == ["item_id", "bbox"]
    content = encode_geoparquet(scenes_to_table([make_scene()]), FileInfo("segment", REGION))
    names = [column.name for column in RAW_COLUMNS if column.name != "item"]
    _, raw = decode_geoparquet(content, where="x", kind="segment", columns=names)
    assert raw.column_names == names


_BIG = make_partition(KEY, 25_000).rows
_SORTED = _BIG.take(np.lexsort([[row["ymin"] for row in _BIG["bbox"].to_pylist()]]))
_BIG_FILE = encode(_SORTED)
_SIDE = st.floats(-60_000, 380_000)


@given(st.lists(st.tuples(_SIDE, _SIDE, st.floats(0, 2e5), st.floats(0, 2e5)), max_size=3))
def test_reading_by_box_is_the_full_scan_filtered(corners: list[tuple[float, ...]]) -> None:
    boxes = [(x, y, x + width, y + height) for x, y, width, height in corners]
    _, found = decode_geoparquet(_BIG_FILE, where="x", boxes=boxes)
    xmin, ymin, xmax, ymax = (
        _SORTED["bbox"].combine_chunks().field(n).to_numpy() for n in range(4)
    )
    meets = np.zeros(len(xmin), dtype=bool)
    for box in boxes:
        meets |= (xmin <= box[2]) & (xmax >= box[0]) & (ymin <= box[3]) & (ymax >= box[1])
    assert found.equals(_SORTED.filter(pa.array(meets)).combine_chunks()) or found.equals(
        _SORTED.filter(pa.array(meets))
    )


def test_a_box_skips_row_groups() -> None:
    def groups(*boxes: tuple[float, float, float, float]) -> list[int]:
        return [group.id for group in _fragment(_BIG_FILE).subset(_meets(boxes)).row_groups]

    assert groups((-60_000, -60_000, 380_000, 380_000)) == [0, 1]
    assert groups((0, -60_000, 1, -50_000)) == [0]
    assert groups((0, 300_000, 1, 310_000)) == [1]
    assert groups((0, 300_000, 1, 310_000), (0, -60_000, 1, -50_000)) == [0, 1]
    assert groups((1e7, 0, 1.1e7, 1)) == []
