"""Archives of Items: ndjson, ndjson.gz, stac-geoparquet, folders; every member has an outcome."""

from __future__ import annotations

import gzip
import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from scene_pipeline.errors import SettingsError, SourceUnavailableError, TokenExpiredError
from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.sources import Page, open_source
from scene_pipeline.ingest.sources.archive import Archive
from scene_pipeline.ingest.sources.base import FOREIGN_CHARS, Declaration
from scene_pipeline.settings import FinalitySettings, Settings, StreamSettings
from scene_pipeline_tests.conftest import REAL_DATA
from scene_pipeline_tests.services.sources import iterate_pages, make_query

ITEMS = [{"type": "Feature", "id": f"i{n}", "collection": "c"} for n in range(25)]


def open_archive(path: Path) -> Archive:
    return Archive(path, Declaration())


def read_pages(path: Path, *, collection: str = "", limit: int = 10) -> list[Page]:
    return list(iterate_pages(open_archive(path), make_query(collection, limit=limit)))


def write_ndjson(path: Path, *members: Any) -> Path:
    path.write_text("".join(json.dumps(member) + "\n" for member in members))
    return path


def ids_of(pages: list[Page]) -> list[str]:
    return [item["id"] for page in pages for item in page.items]


@pytest.fixture(params=["ndjson", "ndjson.gz", "folder", "collection.json"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same Items in every form."""
    path = tmp_path / f"items.{request.param}"
    text = "".join(json.dumps(item) + "\n" for item in ITEMS)
    if request.param == "ndjson":
        path.write_text(text)
    elif request.param == "ndjson.gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif request.param == "collection.json":
        path.write_text(json.dumps({"type": "FeatureCollection", "features": ITEMS}))
    else:
        for item in ITEMS:
            file = path / f"{int(item['id'][1:]):03d}" / "item.json"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps(item))
        (path / "catalog.json").write_text('{"type": "Catalog", "id": "x"}')
        (path / "collection.json").write_text('{"type": "Collection", "id": "c"}')
    return path


@pytest.mark.parametrize("limit", [1, 10, 25, 1000])
def test_every_form_gives_every_item_once(archive: Path, limit: int) -> None:
    pages = read_pages(archive, limit=limit)
    assert ids_of(pages) == [item["id"] for item in ITEMS]
    assert len(pages) in {math.ceil(25 / limit), math.ceil(25 / limit) + 1}
    assert not any(page.foreign for page in pages)


def test_another_process_resumes_at_the_token(archive: Path) -> None:
    query = make_query("", limit=10)
    token = open_archive(archive).fetch_page(query, None).next_token
    rest = list(iterate_pages(open_archive(archive), query, token))
    assert ids_of(rest) == [item["id"] for item in ITEMS[10:]]


def test_token_may_be_asked_for_twice(archive: Path) -> None:
    source, query = open_archive(archive), make_query("", limit=10)
    token = source.fetch_page(query, None).next_token
    assert source.fetch_page(query, token) == source.fetch_page(query, token)
    assert source.fetch_page(query, None).items[0]["id"] == "i0"


def test_page_fetched_ahead_does_not_disturb_the_next(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The open file is shared by threads, which here take turns after every few instructions."""
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    path = write_ndjson(tmp_path / "a.ndjson", *({"id": f"i{n}"} for n in range(2000)))
    source, query = open_archive(path), make_query("", limit=500)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            token = source.fetch_page(query, None).next_token
            pages = list(pool.map(lambda token: source.fetch_page(query, token), [token] * 4))
            assert [ids_of([page]) for page in pages] == [[f"i{n}" for n in range(500, 1000)]] * 4


def test_changed_archive_expires_its_tokens(tmp_path: Path) -> None:
    path = write_ndjson(tmp_path / "a.ndjson", *ITEMS)
    source, query = open_archive(path), make_query("", limit=10)
    token = source.fetch_page(query, None).next_token
    write_ndjson(path, *ITEMS, {"id": "new"})
    with pytest.raises(TokenExpiredError, match="changed"):
        source.fetch_page(query, token)
    assert ids_of(list(iterate_pages(source, query)))[-1] == "new"


def test_collection_is_chosen_and_items_without_one_are_kept(tmp_path: Path) -> None:
    """Whether an Item without a Collection is usable is for the parser to say."""
    members = [
        {"id": "a", "collection": "c"},
        {"id": "b", "collection": "d"},
        {"id": "n"},
        {"id": "l", "collection": ["c"]},
    ]
    path = write_ndjson(tmp_path / "a.ndjson", *members)
    assert ids_of(read_pages(path, collection="c")) == ["a", "n"]
    assert ids_of(read_pages(path)) == ["a", "b", "n", "l"]


def test_members_that_are_no_items_have_an_outcome(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    long = '["' + "x" * 5000 + '"]'
    path.write_bytes(
        f'{{"id": "a"}}\n\n  \n{{"id": \n7\n{long}\n'.encode() + b'\xff\xfe\n{"id": "z"}'
    )
    (page,) = read_pages(path)
    assert ids_of([page]) == ["a", "z"]
    assert [text[:6] for text in page.foreign] == ['{"id":', "7\n", '["xxxx', "\ufffd\ufffd\n"]
    assert max(map(len, page.foreign)) == FOREIGN_CHARS


def test_deep_member_is_no_item(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text("[" * 100_000 + "]" * 100_000 + '\n{"id": "a", "x": NaN}\n')
    (page,) = read_pages(path)
    assert page.items == [{"id": "a", "x": None}]
    assert len(page.foreign) == 1


def test_line_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scene_pipeline.ingest.sources.archive.MAX_LINE_BYTES", 1000)
    path = tmp_path / "a.ndjson"
    path.write_text('{"id": "a"}\n' + "x" * 2500 + '\n{"id": "b"}\n')
    (page,) = read_pages(path)
    assert ids_of([page]) == ["a", "b"]
    assert len(page.foreign) == 3


@pytest.mark.parametrize("name", ["missing.ndjson", "missing.parquet", "missing"])
def test_missing_archive_is_unavailable(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceUnavailableError, match="cannot be read") as caught:
        read_pages(tmp_path / name)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [("bad.ndjson.gz", gzip.compress(b"x" * 99)[:12] + b"\xff" * 60),
     ("cut.ndjson.gz", gzip.compress(b'{"id": "a"}\n' * 1000)[:-20]), ("no.ndjson.gz", b"plain"),
     ("cut.parquet", b"PAR1 but no more")],
    # The content of a gzip holds the time: two test processes would not agree on the names.
    ids=["bad gzip", "cut gzip", "no gzip", "cut parquet"],
)  # fmt: skip
def test_damaged_archive_is_unavailable(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceUnavailableError, match="cannot be read"):
        read_pages(tmp_path / name)


# -- completeness is the operator's word ------------------------------------------------------


def test_newest_item_proves_nothing(tmp_path: Path) -> None:
    path = write_ndjson(tmp_path / "a.ndjson", *ITEMS)
    stream = StreamSettings(path=str(path), collection="c")
    source = open_source(stream, Settings(), engine=None)  # type: ignore[arg-type]
    assert source.declaration.finality == "none"
    assert source.complete_through(make_query()) is None


def test_operator_declares_completeness(tmp_path: Path) -> None:
    stream = StreamSettings(path=str(tmp_path), options={"complete_through": "2024-07-01"})
    source = open_source(stream, Settings(), engine=None)  # type: ignore[arg-type]
    assert source.declaration.finality == "explicit"
    assert source.complete_through(make_query()) == Bound(datetime(2024, 7, 1, tzinfo=UTC))
    lag = stream.model_copy(update={"finality": FinalitySettings(rule="lag", hours=0)})
    assert open_source(lag, Settings(), engine=None).declaration.finality == "lag"  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"complete_through": "soon"}, {"days": 3}])
def test_unknown_option_is_refused_by_name(tmp_path: Path, options: dict[str, Any]) -> None:
    stream = StreamSettings(path=str(tmp_path), options=options)
    with pytest.raises(SettingsError, match=next(iter(options))):
        open_source(stream, Settings(), engine=None)  # type: ignore[arg-type]


# -- stac-geoparquet --------------------------------------------------------------------------


def test_geoparquet_rows_become_items(tmp_path: Path) -> None:
    box = pa.struct([(side, pa.float64()) for side in ("xmin", "ymin", "xmax", "ymax")])
    polygon = shapely.box(1, 2, 3, 4)
    rows = pa.table(
        {
            "type": ["Feature", "Feature"],
            "id": ["a", "b"],
            "collection": ["c", "c"],
            "geometry": pa.array([polygon.wkb, None], pa.binary()),
            "proj:geometry": pa.array([None, b"not WKB"], pa.binary()),
            "bbox": pa.array([{"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}, None], box),
            "datetime": pa.array([1717200000123456789, None], pa.timestamp("ns", "UTC")),
            "start_datetime": pa.array([None, 1717200000000], pa.timestamp("ms", "UTC")),
            "gsd": [10.0, None],
            "links": [[{"rel": "self", "href": "h", "title": None}], []],
            "assets": pa.array(
                [{"x": {"href": "x.tif"}, "y": None}, {"x": None, "y": {"href": "y.tif"}}],
                pa.struct([(n, pa.struct([("href", pa.string())])) for n in "xy"]),
            ),
        }
    )
    pq.write_table(rows, tmp_path / "a.parquet")
    (page,) = read_pages(tmp_path / "a.parquet")
    first, second = page.items
    assert first == {
        "type": "Feature",
        "id": "a",
        "collection": "c",
        "geometry": shapely.geometry.mapping(polygon)
        | {"coordinates": first["geometry"]["coordinates"]},
        "bbox": [1, 2, 3, 4],
        "properties": {"datetime": "2024-06-01T00:00:00.123456Z", "gsd": 10.0},
        "links": [{"rel": "self", "href": "h"}],
        "assets": {"x": {"href": "x.tif"}},
    }
    assert shapely.geometry.shape(first["geometry"]).equals(polygon)
    assert second["geometry"] is None
    assert "bbox" not in second
    assert second["properties"] == {
        "datetime": None,
        "start_datetime": "2024-06-01T00:00:00Z",
        "proj:geometry": {"type": "WKB", "coordinates": b"not WKB".hex()},
    }
    assert second["assets"] == {"y": {"href": "y.tif"}}


@pytest.mark.parametrize(
    ("name", "count"),
    [pytest.param("naip_10000_stac.parquet", 10_000, marks=pytest.mark.full),
     ("rustac_100-landsat-items.parquet", 100),
     ("rustac_100-sentinel-2-items.parquet", 100), ("stac-geoparquet_naip5.parquet", 5)],
)  # fmt: skip
def test_real_geoparquet_is_read_whole(real_data: Path, name: str, count: int) -> None:
    pages = read_pages(real_data / "bulk" / name, limit=1000)
    assert len(set(ids_of(pages))) == count
    first = pages[0].items[0]
    assert first["type"] == "Feature"
    assert first["geometry"]["type"] == "Polygon"
    assert datetime.fromisoformat(first["properties"]["datetime"]).tzinfo is not None
    # Published bboxes of Landsat are those of the image, wider than the footprint.
    shape = shapely.geometry.shape(first["geometry"])
    assert shapely.box(*first["bbox"]).buffer(1e-4).contains(shape)
    json.dumps(pages[0].items)


REAL_FILES = sorted([*(REAL_DATA / "items").glob("*.ndjson"), *(REAL_DATA / "items").glob("*.gz")])


@pytest.mark.parametrize("path", REAL_FILES, ids=lambda path: path.name.split(".")[0])
def test_real_items_are_all_given(path: Path) -> None:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        expected = sum(1 for line in lines if line.strip())
    pages = read_pages(path, limit=100)
    assert sum(len(page.items) + len(page.foreign) for page in pages) == expected > 0
