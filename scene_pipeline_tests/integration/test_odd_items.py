"""Items that no server should send: each has an outcome, and nothing escapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from scene_pipeline.state.database import migrate_state
from scene_pipeline_tests.services.http_region import (
    BEFORE_TODAY,
    ingest,
    make_item,
    make_settings,
)
from scene_pipeline_tests.services.http_server import Answer, Incoming, answer_json, serve

ODD_IDS = [
    "../../../../tmp/escape", "a|b", "a/b", "nul\0inside", "'; DROP TABLE items; --", '"', "%s",
    "x" * 10_000, "\u202ereversed", "lone \ud800 surrogate", ".", "\U0001f6f0", " ", "line\nbreak",
]  # fmt: skip
ODD_TIMES = [
    "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.9999999Z", "2024-08-01T00:00:00Z",
    "0000-01-01T00:00:00Z", "2024-13-01T00:00:00Z", "2024-06-31T00:00:00Z", "yesterday", "",
    "2024-06-05", "2024-06-05T24:00:00Z", "2024-06-05T12:00:60Z", "2024-06-05T12:00:00+99:99",
]  # fmt: skip


def make_odd_items() -> list[dict[str, Any]]:
    """Members that servers should not send, each in one way odd."""
    plain = make_item("plain", "2024-06-05T12:00:00Z")
    odd: list[Any] = [plain]
    odd += [{**plain, "id": item_id} for item_id in ODD_IDS]
    odd += [make_item(f"time{n}", at) for n, at in enumerate(ODD_TIMES)]
    ring = [[10 + n * 1e-7, 1.0 + (n % 7) * 1e-7] for n in range(50_000)]
    strange_geometries: list[Any] = [
        None, {}, 7, "POLYGON", {"type": "Polygon"}, {"type": "Polygon", "coordinates": None},
        {"type": "Polygon", "coordinates": [[["a", "b"]]]}, {"type": "Sphere", "coordinates": []},
        {"type": "Point", "coordinates": [1, 2]}, {"type": "Polygon", "coordinates": []},
        {"type": "Polygon", "coordinates": [[[1e308, 1e308], [2, 2], [1, 3], [1e308, 1e308]]]},
        {"type": "Polygon", "coordinates": [[*ring, [10.5, 2.0], ring[0]]]},
        {"type": "GeometryCollection", "geometries": [{"type": "Point", "coordinates": [1, 2]}]},
    ]  # fmt: skip
    odd += [
        {**plain, "id": f"shape{n}", "geometry": shape}
        for n, shape in enumerate(strange_geometries)
    ]
    changes: list[dict[str, Any]] = [
        {"id": 7}, {"id": None}, {"id": ["a"]}, {"id": ""}, {"collection": None},
        {"collection": "../c"}, {"collection": {"a": 1}}, {"properties": None}, {"properties": []},
        {"properties": {}}, {"bbox": "none"}, {"links": 7}, {"assets": []}, {"type": "Sphere"},
        {"stac_version": 7},
    ]  # fmt: skip
    odd += [{**plain, "id": f"change{n}", **change} for n, change in enumerate(changes)]
    nested = json.loads("[" * 50 + "]" * 50)
    properties: list[dict[str, Any]] = [
        {"eo:cloud_cover": "many"}, {"eo:cloud_cover": 1e400}, {"gsd": True}, {"gsd": [1]},
        {"platform": {"a": 1}}, {"platform": "x\0y"}, {"updated": "never"}, {"created": 7},
        {"deep": nested}, {"big": 10**300}, {"k\0ey": 1}, {"\ud800": "\udfff"}, {"grid:code": 5},
    ]  # fmt: skip
    odd += [
        {**plain, "id": f"property{n}", "properties": {**plain["properties"], **extra}}
        for n, extra in enumerate(properties)
    ]
    return [*odd, None, 7, "Item", [], {}]


@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
)
def test_odd_items_each_have_an_outcome(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    items = make_odd_items()
    pages = [items[start : start + 10] for start in range(0, len(items), 10)]

    def respond(incoming: Incoming) -> Answer:
        number = (incoming.document or {}).get("page", 0)
        link = {"rel": "next", "method": "POST", "href": "/search", "body": {"page": number + 1}}
        links = [link] if number + 1 < len(pages) else []
        return answer_json({"type": "FeatureCollection", "features": pages[number], "links": links})

    folder = tmp_path / "region"
    folder.mkdir()
    with serve(respond) as server:
        settings = make_settings(server.url, folder)
        if database == "postgresql":
            url = request.getfixturevalue("postgis_url")
            migrate_state(url)
            settings = settings.model_copy(update={"state_url": SecretStr(url)})
        report = ingest(settings)
        again = ingest(settings)
    assert report.error is None, report.error
    assert report.items == len(items)
    outcomes = report.landed + report.outside + report.known + report.older
    assert outcomes + sum(count for _, count in report.quarantined) == len(items)
    assert report.landed >= 15
    assert len(dict(report.quarantined)) >= 5, "reasons tell kinds of fault apart"
    assert report.bound == BEFORE_TODAY, "no Item of the future moves it"
    assert list(tmp_path.iterdir()) == [folder]
    assert {path.name for path in folder.iterdir()} <= {
        "lake", "state.db", "state.db-wal", "state.db-shm",
    }  # fmt: skip
    assert again.error is None
    assert (again.items, again.landed) == (len(items), 0), "a replay changes nothing"
