"""Presets: what is declared, with a reason that can be read, and how a stream overrides it."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from scene_pipeline.errors import SettingsError
from scene_pipeline.ingest.sources import declaration_of, open_source
from scene_pipeline.ingest.sources.archive import Archive
from scene_pipeline.ingest.sources.base import Declaration
from scene_pipeline.ingest.sources.presets import PRESETS
from scene_pipeline.ingest.sources.stac_api import StacApi
from scene_pipeline.settings import FinalitySettings, Settings, StreamSettings
from scene_pipeline_tests.services.http_server import answer_json, serve
from scene_pipeline_tests.services.sources import iterate_pages, make_query, open_local

ENGINE = sa.create_engine("sqlite://")


def test_the_four_providers_are_known() -> None:
    assert set(PRESETS) == {
        "earth-search", "planetary-computer", "copernicus-dataspace", "usgs-landsat",
    }  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_preset_opens_with_its_declaration_and_reason(name: str) -> None:
    preset = PRESETS[name]
    stream = StreamSettings(source=name, collection="sentinel-2-l2a")
    source = open_source(stream, Settings(), ENGINE)
    assert isinstance(source, StacApi)
    assert source.address == preset.url
    declared = source.declaration
    assert declared.finality == "lag"
    assert declared.lag_hours is not None
    assert declared.lag_hours >= 24
    assert declared.requests_per_s <= 5
    assert len(preset.reason) > 100
    assert len(preset.sources) >= 2
    assert all(address.startswith("https://") for address in preset.sources)


def test_collection_has_its_own_lag() -> None:
    landsat = StreamSettings(source="planetary-computer", collection="landsat-c2-l2")
    assert declaration_of(landsat).lag_hours == 720
    sentinel = StreamSettings(source="planetary-computer", collection="sentinel-2-l2a")
    assert declaration_of(sentinel).lag_hours == 168


def test_lag_covers_what_published_items_show(real_data: Path) -> None:
    """`created` minus `datetime` of real Landsat Items: the declared lag covers nine tenths."""
    archive = Archive(real_data / "items" / "landsat.ndjson.gz", Declaration())
    query = make_query("landsat-c2-l2", limit=1000)
    items = [item for page in iterate_pages(archive, query) for item in page.items]
    served = [
        item for item in items if "planetarycomputer.microsoft.com" in json.dumps(item["links"])
    ]
    lags_h = sorted(
        (
            datetime.fromisoformat(p["created"]) - datetime.fromisoformat(p["datetime"])
        ).total_seconds()
        / 3600
        for p in (item["properties"] for item in served)
    )
    assert len(lags_h) > 100
    declared = declaration_of(
        StreamSettings(source="planetary-computer", collection="landsat-c2-l2")
    )
    assert declared.lag_hours is not None
    assert lags_h[int(0.9 * len(lags_h))] < declared.lag_hours < lags_h[-1]


def test_stream_overrides_its_preset() -> None:
    stream = StreamSettings(
        source="earth-search",
        collection="sentinel-2-l2a",
        finality=FinalitySettings(rule="none"),
        cadence_hours=5,
        requests_per_s=1,
    )
    declared = declaration_of(stream)
    assert (declared.finality, declared.lag_hours) == ("none", None)
    assert (declared.cadence_hours, declared.requests_per_s) == (5, 1)
    assert declared.matched == "exact", "what is not overridden stays"


def test_unknown_server_is_declared_to_prove_nothing() -> None:
    declared = declaration_of(StreamSettings(url="https://stac.example.org", collection="c"))
    assert (declared.finality, declared.matched) == ("none", "none")


def test_operator_declares_what_a_server_of_ones_own_does() -> None:
    options = {"matched": "exact", "paging": "offset", "token_lifetime_s": 900}
    own = StreamSettings(url="https://stac.example.org", collection="c", options=options)
    declared = declaration_of(own)
    assert (declared.matched, declared.paging, declared.token_lifetime_s) == (
        "exact",
        "offset",
        900,
    )
    preset = StreamSettings(source="earth-search", options={"matched": "none"})
    assert declaration_of(preset).matched == "none"
    assert declaration_of(preset).lag_hours == 72


def test_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="earth-serch") as caught:
        open_source(StreamSettings(source="earth-serch"), Settings(), ENGINE)
    assert "earth-search" in caught.value.next_step


@pytest.mark.parametrize(
    "options",
    [{"metod": "GET"}, {"method": "PUT"}, {"max_page_mb": 0}, {"allowed_hosts": "a"}],
)
def test_unknown_option_is_refused_by_name(options: dict[str, object]) -> None:
    stream = StreamSettings(url="https://stac.example.org", collection="c", options=options)
    with pytest.raises(SettingsError, match=next(iter(options))) as caught:
        open_source(stream, Settings(), ENGINE)
    assert "allowed_hosts" in caught.value.next_step


def test_pages_are_never_larger_than_the_provider_bears() -> None:
    page = {"type": "FeatureCollection", "features": []}
    with serve(lambda _: answer_json(page)) as server:
        declaration = PRESETS["copernicus-dataspace"].declaration
        source = open_local(server.url, declaration=declaration, method="POST", sortby="no")
        source.fetch_page(make_query(limit=5000), None)
        source.fetch_page(make_query(limit=50), None)
    assert [request.document["limit"] for request in server.requests] == [200, 50]
