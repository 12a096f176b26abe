"""One Item to one scene, or a rejection with its reason."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
import shapely

from scene_pipeline.errors import SceneRejectedError
from scene_pipeline.scenes.item import (
    parse_and_repair,
    parse_instant,
    parse_item,
    scenes_to_table,
)
from scene_pipeline.scenes.schema import RAW_COLUMNS, arrow_schema
from scene_pipeline_tests.services.items import make_item, make_ring, make_scene


def test_every_column_comes_from_where_the_schema_says() -> None:
    scene = make_scene(
        start_datetime="2024-06-01T10:20:00Z",
        end_datetime="2024-06-01T10:21:00Z",
        created="2024-06-02T00:00:00Z",
        updated="2024-06-03T00:00:00Z",
        constellation="sentinel-2",
        gsd=10,
        **{
            "grid:code": "MGRS-32TLS",
            "eo:cloud_cover": 12.5,
            "view:sun_elevation": 60.25,
            "view:off_nadir": 0,
            "processing:version": "05.10",
            "s2:mean": [1, None, {"a": "b"}],
        },
    )
    assert scene.acquired_at == datetime(2024, 6, 1, 10, 20, 30, tzinfo=UTC)
    assert scene.acq_date == date(2024, 6, 1)
    assert scene.start_at == datetime(2024, 6, 1, 10, 20, tzinfo=UTC)
    assert scene.end_at == datetime(2024, 6, 1, 10, 21, tzinfo=UTC)
    assert scene.created_at == datetime(2024, 6, 2, tzinfo=UTC)
    assert scene.updated_at == datetime(2024, 6, 3, tzinfo=UTC)
    assert (scene.platform, scene.constellation) == ("sentinel-2a", "sentinel-2")
    assert (scene.gsd_m, scene.cloud_cover_pct) == (10.0, 12.5)
    assert (scene.sun_elevation_deg, scene.off_nadir_deg) == (60.25, 0.0)
    assert (scene.grid_code, scene.processing_baseline) == ("MGRS-32TLS", "05.10")
    assert scene.item_href == "https://stac.example/items/scene"
    assert json.loads(scene.properties) == {
        "assets": {"B04": "https://data.example/scene/B04.tif"},
        "grid:code": "MGRS-32TLS",
        "s2:mean": [1, None, {"a": "b"}],
    }


def test_absent_is_null_never_a_guess() -> None:
    item = make_item()
    item["properties"] = {"datetime": "2024-06-01T10:20:30Z", "gsd": None}
    item["links"] = []
    del item["assets"]
    scene = parse_item(item)
    for name in [
        "start_at",
        "end_at",
        "created_at",
        "updated_at",
        "platform",
        "constellation",
        "grid_code",
        "gsd_m",
        "cloud_cover_pct",
        "sun_elevation_deg",
        "off_nadir_deg",
        "processing_baseline",
        "item_href",
    ]:
        assert getattr(scene, name) is None, name
    assert json.loads(scene.properties) == {"assets": {}}


def test_an_empty_text_stays_empty() -> None:
    """A37: '' must not become null on its way."""
    assert make_scene(constellation="").constellation == ""


@pytest.mark.parametrize(
    ("properties", "grid_code"),
    [
        ({"s2:mgrs_tile": "32TLS"}, "MGRS-32TLS"),
        (
            {"mgrs:utm_zone": 7, "mgrs:latitude_band": "V", "mgrs:grid_square": "EJ"},
            "MGRS-7VEJ",
        ),
        (
            {"sentinel:utm_zone": 7, "sentinel:latitude_band": "V", "sentinel:grid_square": "EJ"},
            "MGRS-7VEJ",
        ),
        (
            {"landsat:wrs_path": "033", "landsat:wrs_row": "32", "landsat:wrs_type": "1"},
            "WRS1-033032",
        ),
        ({"eo:column": "033", "eo:row": "32"}, "WRS2-033032"),
        ({"landsat:wrs_path": "n/a", "landsat:wrs_row": "32"}, None),
        ({"mgrs:utm_zone": 7}, None),
    ],
)
def test_grid_codes_of_older_items(properties: dict[str, Any], grid_code: str | None) -> None:
    assert make_scene(**properties).grid_code == grid_code


@pytest.mark.parametrize(
    ("old", "column", "value"),
    [
        ({"eo:platform": "landsat-8", "platform": None}, "platform", "landsat-8"),
        ({"eo:constellation": "landsat"}, "constellation", "landsat"),
        ({"eo:gsd": 30}, "gsd_m", 30.0),
        ({"eo:sun_elevation": 12}, "sun_elevation_deg", 12.0),
        ({"eo:off_nadir": 1.5}, "off_nadir_deg", 1.5),
        ({"sentinel:processing_baseline": "02.14"}, "processing_baseline", "02.14"),
        ({"processing:version": 3.5}, "processing_baseline", "3.5"),
    ],
)
def test_names_of_older_versions(old: dict[str, Any], column: str, value: Any) -> None:
    scene = make_scene(**old)
    assert getattr(scene, column) == value
    assert not set(old) & set(json.loads(scene.properties))


def test_an_unknown_platform_is_a_fact_not_an_error() -> None:
    """A51: pipelines with a list of platforms lost Sentinel-2C."""
    assert make_scene(platform="sentinel-2z").platform == "sentinel-2z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-06-01T10:20:30Z", "2024-06-01T10:20:30"),
        ("2024-06-01T10:20:30.123Z", "2024-06-01T10:20:30.123000"),
        ("2024-06-01T10:20:30+02:00", "2024-06-01T08:20:30"),
        ("2021-04-01 23:00:00.123456+00:00", "2021-04-01T23:00:00.123456"),
        ("2024-06-01T10:20:30.1234567Z", "2024-06-01T10:20:30.123456"),
        ("2024-06-01T23:59:59.999999999Z", "2024-06-01T23:59:59.999999"),
        ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999"),
        ("2024-06-01", "2024-06-01T00:00:00"),
        ("2024-06-01T10:20:30", "2024-06-01T10:20:30"),
        ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.999999"),
        (" 2024-06-01T00:00:00Z ", "2024-06-01T00:00:00"),
    ],
)
def test_instants_are_utc_and_floored(text: str, expected: str) -> None:
    """A33: mixed offsets and precisions; rounding would move a scene into the next day."""
    assert parse_instant(text).isoformat() == f"{expected}+00:00"


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2024-13-01T00:00:00Z", "2024-06-01T25:00:00Z", "0001-01-01T00:00+14:00"],
)
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_instant(text)


def test_the_day_is_the_utc_day() -> None:
    local = datetime(2024, 3, 10, 23, 30, tzinfo=timezone(timedelta(hours=-8)))
    assert make_scene(datetime=local.isoformat()).acq_date == date(2024, 3, 11)


def test_an_interval_is_placed_by_its_start() -> None:
    """A49: an Item belongs to exactly one day, [start, next)."""
    scene = make_scene(
        datetime=None, start_datetime="2024-06-01T23:59:00Z", end_datetime="2024-06-02T00:01:00Z"
    )
    assert scene.acq_date == date(2024, 6, 1)
    midnight = make_scene(datetime="2024-06-02T00:00:00Z", start_datetime="2024-06-01T23:59:00Z")
    assert midnight.acq_date == date(2024, 6, 2)


def _without(name: str) -> dict[str, Any]:
    item = make_item()
    del item[name]
    return item


def _with(name: str, value: Any) -> dict[str, Any]:
    return {**make_item(), name: value}


REJECTED = {
    "not an Item": [None, [], "x", {}, _without("properties"), _with("properties", [])],
    "id missing": [_without("id"), _with("id", ""), _with("id", 5)],
    "collection missing": [
        _without("collection"),
        _with("collection", None),
        _with("collection", 5),
    ],
    "datetime missing": [
        make_item(datetime=None),
        make_item(datetime=None, end_datetime="2024-06-01T00:00:00Z"),
    ],
    "time unparsable": [
        make_item(datetime="soon"),
        make_item(datetime=1717236000),
        make_item(updated="2024-99-01T00:00:00Z"),
        make_item(datetime=["2024-06-01T00:00:00Z"]),
    ],
    "property type": [
        make_item(**{"eo:cloud_cover": "3"}),
        make_item(**{"eo:cloud_cover": True}),
        make_item(gsd=float("nan")),
        make_item(gsd=float("inf")),
        make_item(platform=["a"]),
        make_item(constellation={}),
    ],
    "text not storable": [
        make_item(comment="a\0b"),
        make_item("a\0b"),
        make_item(comment="\ud800"),
        make_item(**{"k\0": 1}),
    ],
    "geometry null": [_with("geometry", None), _without("geometry")],
    "geometry unparsable": [
        _with("geometry", {"type": "Polygon", "coordinates": [[[0, 0], [1, 1]]]}),
        _with("geometry", {"type": "Polygon", "coordinates": "x"}),
        _with("geometry", {"type": "Circle", "coordinates": [0, 0]}),
        _with("geometry", {}),
        _with("geometry", "POLYGON ((0 0, 1 0, 1 1, 0 0))"),
    ],
}


@pytest.mark.parametrize(
    ("reason", "item"), [(reason, item) for reason, items in REJECTED.items() for item in items]
)
def test_a_rejection_has_its_reason(reason: str, item: Any) -> None:
    """A50: a null geometry is refused, never replaced by the whole world."""
    with pytest.raises(SceneRejectedError) as caught:
        parse_item(item)
    assert caught.value.reason == reason
    parsed = parse_and_repair([make_item("before"), item, make_item("after")])
    assert [scene.item_id for scene in parsed.scenes] == ["before", "after"]
    assert [(each.reason, each.item) for each in parsed.rejected] == [(reason, item)]
    assert parsed.rejected[0].text


def test_what_is_no_number_is_null() -> None:
    """As on the way in over HTTP: JSON has no word for it."""
    assert '"mean":null' in parse_item(make_item(mean=float("nan"))).properties


def test_whole_numbers_beyond_64_bits_are_kept() -> None:
    item = make_item(**{"s2:orbit": 12345678901234567890123})
    assert '"s2:orbit":12345678901234567890123' in parse_item(item).item


def test_what_only_looks_like_nul_is_kept() -> None:
    scene = make_scene(comment="a\\u0000b")
    assert json.loads(scene.properties)["comment"] == "a\\u0000b"


def test_items_of_old_catalogs_take_the_streams_collection() -> None:
    item = _without("collection")
    assert parse_item(item, default_collection="from-the-stream").collection == "from-the-stream"
    item["properties"]["collection"] = "from-the-properties"
    scene = parse_item(item, default_collection="from-the-stream")
    assert scene.collection == "from-the-properties"


def test_links_as_an_object() -> None:
    """STAC before 0.6 kept links by relation."""
    item = _with("links", {"self": {"rel": "self", "href": "https://old.example/x.json"}})
    assert parse_item(item).item_href == "https://old.example/x.json"


def test_height_stays_in_raw() -> None:
    ring = [[*point, 100.0] for point in make_ring(6, 45, 7, 46)]
    scene = parse_item(_with("geometry", {"type": "Polygon", "coordinates": [ring]}))
    assert shapely.has_z(scene.geometry)
    parsed = parse_and_repair([_with("geometry", {"type": "Polygon", "coordinates": [ring]})])
    assert not shapely.has_z(parsed.footprints[0])
    assert parsed.repairs == [("height dropped",)]


def test_the_digest_is_of_the_content_not_of_its_order() -> None:
    item = make_item()
    reordered = json.loads(
        json.dumps(item, sort_keys=True), object_pairs_hook=lambda p: dict(p[::-1])
    )
    assert parse_item(item).digest == parse_item(reordered).digest
    assert parse_item(item).digest != make_scene(datetime="2024-06-01T10:20:31Z").digest
    assert json.loads(parse_item(item).item) == item


def test_a_collections_area_bound_is_held() -> None:
    world = _with("geometry", {"type": "Polygon", "coordinates": [make_ring(-180, -90, 180, 90)]})
    assert [each.reason for each in parse_and_repair([world]).rejected] == ["area over bound"]
    assert len(parse_and_repair([world], max_area_km2=600e6).scenes) == 1
    assert parse_and_repair([make_item()], max_area_km2=100).rejected[0].reason == "area over bound"


def test_the_raw_table_is_sorted_and_typed() -> None:
    scenes = [
        make_scene("b", datetime="2024-06-02T00:00:00Z"),
        make_scene("c"),
        make_scene("a"),
    ]
    table = scenes_to_table(scenes)
    assert table.schema.equals(arrow_schema(RAW_COLUMNS))
    assert table["item_id"].to_pylist() == ["a", "c", "b"]
    assert scenes_to_table(list(reversed(scenes))).equals(table)
    assert shapely.from_wkb(table["geometry"][0].as_py()).equals(scenes[2].geometry)


def test_a_page_without_scenes_is_an_empty_typed_table() -> None:
    parsed = parse_and_repair([])
    assert (parsed.scenes, parsed.rejected, len(parsed.footprints)) == ([], [], 0)
    table = scenes_to_table(parsed.scenes)
    assert table.num_rows == 0
    assert table.schema.equals(arrow_schema(RAW_COLUMNS))
    assert table.schema.field("acquired_at").type == pa.timestamp("us", "UTC")
