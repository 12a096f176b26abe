"""Servers that are broken or hostile: bounded in time and memory, refused by name."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import pytest

from scene_pipeline.errors import (
    ScenePipelineError,
    SettingsError,
    SourceFaultError,
    SourceUnavailableError,
    TokenExpiredError,
)
from scene_pipeline.ingest.http import Request
from scene_pipeline.ingest.http_parse import MAX_DEPTH, parse_date, parse_root
from scene_pipeline.ingest.sources.base import FOREIGN_CHARS, Query
from scene_pipeline.ingest.sources.stac_api import format_token
from scene_pipeline_tests.services.http_server import Answer, Incoming, answer_json, serve
from scene_pipeline_tests.services.sources import StoppedClock, make_query, open_local

SECRET = "Bearer sk-3f9a0c77d1e24b"
DIRECT = {"method": "POST", "sortby": "no"}


def page_of(*features: Any, **link: Any) -> dict[str, Any]:
    links = [{"rel": "next", **link}] if link else []
    return {"type": "FeatureCollection", "features": list(features), "links": links}


def fetch_from(respond: Callable[[Incoming], Answer], **how: Any) -> Any:
    """The first page of a server that answers everything with ``respond``."""
    with serve(respond) as server:
        source = open_local(server.url, **DIRECT, **how)
        return source.fetch_page(make_query(), None)


# -- where it may go --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "href",
    [
        "https://elsewhere.example/search?token=t",
        "http://127.0.0.1.elsewhere.example/search",
        "http://127.0.0.1:1/search",
        "http://127.0.0.1@elsewhere.example/search",
        "//elsewhere.example/search",
        "https://127.0.0.1/search",
        "ftp://127.0.0.1/search",
        "file:///etc/passwd",
        "http://[::1]/search",
        "http://localhost/search",
    ],
)
def test_next_link_outside_the_allow_list_is_refused_unasked(href: str) -> None:
    def respond(incoming: Incoming) -> Answer:
        return answer_json(page_of({"id": "a"}, href=href))

    with serve(respond) as server:
        source = open_local(server.url, secrets={"Authorization": SECRET}, **DIRECT)
        page = source.fetch_page(make_query(), None)
        assert page.next_token is not None
        with pytest.raises(SourceFaultError, match="not its own"):
            source.fetch_page(make_query(), page.next_token)
        assert len(server.requests) == 1


def test_own_address_with_a_password_is_refused() -> None:
    with serve(lambda _: answer_json(page_of())) as server:
        token = format_token(Request("GET", server.url.replace("//", "//user:pw@") + "/search"))
        with pytest.raises(SourceFaultError):
            open_local(server.url).fetch_page(make_query(), token)
        assert not server.requests


def test_named_host_is_followed_without_the_credentials() -> None:
    with serve(lambda _: answer_json(page_of({"id": "b"}))) as other:
        link = {"href": f"{other.url}/more", "headers": {"Search-After": "a"}}
        with serve(lambda _: answer_json(page_of({"id": "a"}, **link))) as server:
            source = open_local(
                server.url,
                secrets={"X-Key": "sk-secret-key"},
                allowed_hosts=(other.url.removeprefix("http://"),),
                **DIRECT,
            )
            first = source.fetch_page(make_query(), None)
            second = source.fetch_page(make_query(), first.next_token)
    assert [item["id"] for item in second.items] == ["b"]
    assert server.requests[0].headers["x-key"] == "sk-secret-key"
    assert "x-key" not in other.requests[0].headers
    assert other.requests[0].headers["search-after"] == "a"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", ["http://elsewhere.example/", "ftp://127.0.0.1/"])
def test_redirect_outside_the_allow_list_is_refused(status: int, location: str) -> None:
    def respond(_: Incoming) -> Answer:
        return Answer(b"", status, {"location": location})

    with serve(respond) as server:
        token = format_token(Request("GET", f"{server.url}/search"))
        with pytest.raises(SourceFaultError, match="not its own"):
            open_local(server.url).fetch_page(make_query(), token)
        assert len(server.requests) == 1


def test_redirects_at_home_are_followed_and_bounded() -> None:
    def respond(incoming: Incoming) -> Answer:
        if incoming.path == "/search":
            return Answer(b"", 308, {"location": "/v2/search"})
        if incoming.path == "/v2/search":
            return answer_json(page_of({"id": incoming.document["limit"]}, href="?token=2"))
        return Answer(b"", 302, {"location": incoming.path + "0"})

    with serve(respond) as server:
        source = open_local(server.url, **DIRECT)
        page = source.fetch_page(make_query(limit=7), None)
        assert page.items == [{"id": 7}], "a 308 keeps method and body"
        assert json.loads(page.next_token or "")[1] == f"{server.url}/v2/search?token=2"
        with pytest.raises(SourceFaultError, match="redirects"):
            source.fetch_page(make_query(), page.next_token)
        assert len(server.requests) == 2 + 6


def test_redirect_that_would_drop_the_body_is_refused() -> None:
    with pytest.raises(SourceFaultError, match="POST into a GET"):
        fetch_from(lambda _: Answer(b"", 302, {"location": "/v2/search"}))


# -- how much it may send ---------------------------------------------------------------------


def endless(chunk: bytes) -> Iterator[bytes]:
    return itertools.repeat(chunk)


def traced_peak_mb(act: Callable[[], None]) -> float:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def test_body_without_end_is_cut_at_the_bound() -> None:
    def act() -> None:
        with pytest.raises(SourceFaultError, match="larger than 2 MiB"):
            fetch_from(lambda _: Answer(endless(b" " * 65536)), max_body_bytes=2 * 2**20)

    assert traced_peak_mb(act) < 12


def test_compressed_body_is_bounded_by_its_real_size() -> None:
    bomb = gzip.compress(bytes(40 * 2**20), 9)

    def act() -> None:
        with pytest.raises(SourceFaultError, match="larger than 2 MiB"):
            fetch_from(
                lambda _: Answer(bomb, 200, {"content-encoding": "gzip"}),
                max_body_bytes=2 * 2**20,
            )

    assert traced_peak_mb(act) < 12


def test_body_that_drips_is_given_up_at_the_deadline() -> None:
    clock = StoppedClock()

    def drip() -> Iterator[bytes]:
        while True:
            clock.now_s += 1  # a byte a second
            yield b" "

    with pytest.raises(SourceUnavailableError, match="did not end in time"):
        fetch_from(lambda _: Answer(drip()), clock=clock, deadline_s=20)


@pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "gzip, gzip"])
def test_encoding_that_was_not_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(SourceFaultError, match="content-encoding"):
        fetch_from(lambda _: Answer(b"{}", 200, {"content-encoding": encoding}))


def test_only_gzip_is_asked_for() -> None:
    with serve(lambda _: answer_json(page_of())) as server:
        open_local(server.url, **DIRECT).fetch_page(make_query(), None)
    assert server.requests[0].headers["accept-encoding"] == "gzip"


def test_cut_compressed_body_is_no_page() -> None:
    body = gzip.compress(json.dumps(page_of({"id": "a"})).encode())[:-12]
    with pytest.raises(SourceUnavailableError, match="cut"):
        fetch_from(lambda _: Answer(body, 200, {"content-encoding": "gzip"}))


def nested(levels: int, opening: str, closing: str) -> bytes:
    inside = (opening * levels + closing * levels).encode()
    return b'{"type": "FeatureCollection", "features": [' + inside + b"]}"


@pytest.mark.parametrize("levels", [MAX_DEPTH, 900, 5_000, 200_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_json_is_refused(levels: int, opening: str, closing: str) -> None:
    filling = "" if opening == "[" else "1"
    with pytest.raises(SourceFaultError, match="not usable JSON"):
        fetch_from(lambda _: Answer(nested(levels, opening, filling + closing)[:-1] + b"}"))


def test_json_as_deep_as_real_items_passes() -> None:
    item = {"id": "a", "properties": json.loads("[" * 40 + "]" * 40)}
    assert fetch_from(lambda _: answer_json(page_of(item))).items == [item]


# -- what it may say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "FeatureCollection",
        {},
        {"type": "FeatureCollection"},
        {"type": "FeatureCollection", "features": None},
        {"type": "FeatureCollection", "features": {"0": {}}},
        {"type": "Feature", "features": []},
        {"type": "Catalog", "links": []},
        {"features": []},
        {"code": "NotFound", "description": "no such collection"},
    ],
)
def test_reply_of_another_shape_is_no_empty_page(document: Any) -> None:
    with pytest.raises(SourceFaultError, match="no FeatureCollection"):
        fetch_from(lambda _: answer_json(document))


@pytest.mark.parametrize(
    "body", [b"", b"<html>maintenance</html>", b'{"type": "Feat', b"\xff\xfe", b"{} {}"]
)
def test_reply_that_is_no_json_is_a_fault(body: bytes) -> None:
    with pytest.raises(SourceFaultError, match="not usable JSON"):
        fetch_from(lambda _: Answer(body, 200, {"content-type": "application/json"}))


def test_members_that_are_no_items_are_kept_apart() -> None:
    page = fetch_from(lambda _: answer_json(page_of({"id": "a"}, None, 7, ["b" * 5000], {"id": 1})))
    assert [item["id"] for item in page.items] == ["a", 1]
    assert page.foreign[:2] == ["null", "7"]
    assert [len(text) for text in page.foreign] == [4, 1, FOREIGN_CHARS]


def test_not_a_number_is_read_as_null() -> None:
    body = b'{"type":"FeatureCollection","features":[{"id":"a","x":[NaN,Infinity,-Infinity]}]}'
    assert fetch_from(lambda _: Answer(body)).items == [{"id": "a", "x": [None, None, None]}]


@pytest.mark.parametrize(
    ("document", "matched"),
    [
        ({"numberMatched": 3}, 3),
        ({"context": {"matched": 4}}, 4),
        ({"numberMatched": "3"}, None),
        ({"numberMatched": True}, None),
        ({"numberMatched": -1}, None),
        ({"numberMatched": None, "context": {"matched": 5}}, 5),
        ({"context": [3]}, None),
    ],
)
def test_counts_are_believed_only_when_they_are_counts(
    document: dict[str, Any], matched: int | None
) -> None:
    assert fetch_from(lambda _: answer_json({**page_of(), **document})).matched == matched


@pytest.mark.parametrize(
    "item_id",
    ["../../etc/passwd", "a|b", "a\0b", "'; DROP TABLE items; --", '"', "x" * 10_000, "\u202eabc",
     "\ud800", "", "a/b", ".", "🛰"],
)  # fmt: skip
def test_odd_ids_arrive_as_they_are(item_id: str) -> None:
    page = fetch_from(lambda _: answer_json(page_of({"id": item_id})))
    assert page.items == [{"id": item_id}]


def test_footprint_of_a_million_vertices_is_bounded() -> None:
    ring = ",".join(["[10.123456,45.123456]"] * 1_000_000)
    body = (
        '{"type":"FeatureCollection","features":[{"id":"a","geometry":'
        f'{{"type":"Polygon","coordinates":[[{ring}]]}}}}]}}'
    ).encode()
    assert len(body) > 20 * 2**20
    page = fetch_from(lambda _: Answer(body))
    assert len(page.items[0]["geometry"]["coordinates"][0]) == 1_000_000
    with pytest.raises(SourceFaultError, match="larger than 16 MiB"):
        fetch_from(lambda _: Answer(body), max_body_bytes=16 * 2**20)


@pytest.mark.parametrize(
    ("date_header", "expected"),
    [
        ("Sat, 01 Jun 2024 12:00:00 GMT", datetime(2024, 6, 1, 12, tzinfo=UTC)),
        ("Sat, 01 Jun 2024 14:00:00 +0200", datetime(2024, 6, 1, 12, tzinfo=UTC)),
        ("yesterday", None),
        ("", None),
        ("Fri, 31 Dec 9999 23:59:59 -2300", None),
    ],
)
def test_server_clock_is_read_or_left_out(date_header: str, expected: datetime | None) -> None:
    assert parse_date(date_header) == expected


def test_next_link_too_long_to_keep_is_refused() -> None:
    link = {"href": "/s", "method": "POST", "body": {"token": "x" * 300_000}}
    with pytest.raises(SourceFaultError, match="characters"):
        fetch_from(lambda _: answer_json(page_of({"id": "a"}, **link)))


# -- statuses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 422, 501])
def test_refusal_of_the_first_page_is_a_fault_told_once(status: int) -> None:
    with serve(lambda _: answer_json({"description": "no sortby here"}, status)) as server:
        source = open_local(server.url, **DIRECT)
        with pytest.raises(SourceFaultError, match=f"status {status}.*no sortby here") as caught:
            source.fetch_page(make_query(), None)
        assert not isinstance(caught.value, TokenExpiredError)
        assert len(server.requests) == 1


@pytest.mark.parametrize(("status", "tries"), [(400, 1), (404, 1), (410, 1), (422, 1), (500, 3)])
def test_refusal_of_a_token_means_that_it_expired(status: int, tries: int) -> None:
    """500 too: pgstac answers so when the Item that its token names is gone."""
    with serve(lambda _: answer_json({"description": "unknown token"}, status)) as server:
        token = format_token(Request("GET", f"{server.url}/search?token=old"))
        with pytest.raises(TokenExpiredError, match="unknown token"):
            open_local(server.url).fetch_page(make_query(), token)
        assert len(server.requests) == tries


def test_500_on_the_first_page_is_no_expired_token() -> None:
    with pytest.raises(SourceUnavailableError, match="status 500"):
        fetch_from(lambda _: answer_json({}, 500))


def test_unreachable_server_is_unavailable() -> None:
    with serve(lambda _: answer_json(page_of())) as server:
        url = server.url
    with pytest.raises(SourceUnavailableError, match="ConnectError") as caught:
        open_local(url, **DIRECT).fetch_page(make_query(), None)
    assert caught.value.retry_helps
    assert caught.value.exit_code == 3


# -- secrets ----------------------------------------------------------------------------------


def all_texts(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(error.__dict__)


ECHOES: dict[str, Callable[[str], Answer]] = {
    "as type": lambda key: answer_json({"type": key}),
    "as type list": lambda key: answer_json({"type": [key], "features": []}),
    "in a link without address": lambda key: answer_json(page_of({}, href=None, body={key: key})),
    "as method": lambda key: answer_json(page_of({}, href="/s", method=key)),
    "in a redirect's host": lambda key: Answer(b"", 308, {"location": f"http://{key}.example/"}),
    "in a redirect's path": lambda key: Answer(b"", 308, {"location": f"/{key}/"}),
    "in no JSON": lambda key: Answer(f"<p>{key}</p>".encode()),
    "as encoding": lambda key: Answer(b"", 200, {"content-encoding": key}),
    "where a message is cut": lambda key: answer_json({"x": "y" * 184 + key}, 400),
    **{
        f"with status {status}": lambda key, status=status: answer_json(  # type: ignore[misc]
            {"you sent": SECRET, "key": key}, status
        )
        for status in (400, 401, 403, 404, 429, 500, 503)
    },
}


@pytest.mark.parametrize("echo", ECHOES)
def test_secret_is_in_no_error_log_or_repr(echo: str, caplog: pytest.LogCaptureFixture) -> None:
    """Even a server that echoes the credentials does not bring them into a message."""
    caplog.set_level(logging.DEBUG)
    key = SECRET.removeprefix("Bearer ")
    with serve(lambda _: ECHOES[echo](key)) as server:
        source = open_local(server.url, secrets={"Authorization": SECRET}, **DIRECT)
        with pytest.raises(ScenePipelineError) as caught:
            source.fetch_page(make_query(), None)
        assert server.requests[0].headers["authorization"] == SECRET
    seen = all_texts(caught.value) + repr(source) + repr(source.client)
    assert "127.0.0.1" in seen
    assert key not in seen
    assert key[:8] not in seen, "nor a part of it"
    ours = [record.getMessage() for record in caplog.records if "scene_pipeline" in record.name]
    assert key not in "".join(ours)


def test_secret_is_in_no_log_of_the_libraries(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serve(lambda _: answer_json(page_of())) as server:
        source = open_local(server.url, secrets={"Authorization": SECRET}, **DIRECT)
        source.fetch_page(make_query(), None)
    assert len(caplog.records) > 5
    assert SECRET.removeprefix("Bearer ") not in caplog.text


@pytest.mark.parametrize("value", ["line\nbreak-secret", "sn\u00f6w-secret", "bell\x07-secret"])
def test_header_that_cannot_be_sent_is_refused_without_its_value(value: str) -> None:
    with pytest.raises(SettingsError, match="X-Key") as caught:
        open_local("http://127.0.0.1:1", secrets={"X-Key": value})
    assert (
        "secret"
        not in all_texts(caught.value).replace("test_hostile", "").split("SettingsError")[-1]
    )


@pytest.mark.parametrize(
    "url",
    ["https://user:hunter2@host/v1", "https://host/v1?key=hunter2", "ftp://host/", "host/v1", "",
     "https://"],
)  # fmt: skip
def test_root_that_holds_credentials_or_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_root(url)
    assert "hunter2" not in str(caught.value)


# -- far times --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "interval"),
    [
        (datetime(2024, 6, 1, tzinfo=UTC), datetime(2024, 6, 2, tzinfo=UTC),
         "2024-06-01T00:00:00Z/2024-06-02T00:00:00Z"),
        (datetime(2024, 6, 1, 0, 0, 0, 999_999, tzinfo=UTC),
         datetime(2024, 6, 2, 0, 0, 0, 1, tzinfo=UTC),
         "2024-06-01T00:00:00Z/2024-06-02T00:00:01Z"),
        (datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC),
         "0001-01-01T00:00:00Z/9999-12-31T23:59:59Z"),
    ],
)  # fmt: skip
def test_window_is_asked_for_in_whole_seconds_around_it(
    start: datetime, end: datetime, interval: str
) -> None:
    with serve(lambda _: answer_json(page_of())) as server:
        source = open_local(server.url, **DIRECT)
        source.fetch_page(Query("c", (-180, -90, 180, 90), start, end), None)
    assert server.requests[0].document["datetime"] == interval


@pytest.mark.parametrize(
    ("area", "expected"),
    [
        ((-180.0, -90.0, 180.0, 90.0), {}),
        ((6.0, 45.0, 12.0, 48.0), {"bbox": [6.0, 45.0, 12.0, 48.0]}),
        ((175.5, -21.0, -178.0, -17.0), {"intersects": {"type": "MultiPolygon", "coordinates": [
            [[[175.5, -21], [180, -21], [180, -17], [175.5, -17], [175.5, -21]]],
            [[[-180, -21], [-178, -21], [-178, -17], [-180, -17], [-180, -21]]]]}}),
        ((180.0, -21.0, -178.0, -17.0), {"intersects": {"type": "MultiPolygon", "coordinates": [
            [[[-180, -21], [-178, -21], [-178, -17], [-180, -17], [-180, -21]]]]}}),
    ],
)  # fmt: skip
def test_area_across_the_antimeridian_is_asked_for_in_two_parts(
    area: tuple[float, float, float, float], expected: dict[str, Any]
) -> None:
    at = datetime(2024, 6, 1, tzinfo=UTC)
    with serve(lambda _: answer_json(page_of())) as server:
        open_local(server.url, **DIRECT).fetch_page(Query("c", area, at, at), None)
        open_local(server.url, method="GET", sortby="yes").fetch_page(
            Query("c", area, at, at), None
        )
    body = server.requests[0].document
    assert {name: body[name] for name in body.keys() & {"bbox", "intersects"}} == expected
    asked = dict(parse_qsl(server.requests[1].path.partition("?")[2]))
    assert asked["sortby"] == "+properties.datetime,+id"
    assert asked["collections"] == "c"
    if "bbox" in expected:
        assert asked["bbox"] == "6.0,45.0,12.0,48.0"
    else:
        assert json.loads(asked.get("intersects", "null")) == expected.get("intersects")


def test_whole_numbers_of_any_length_come_in_whole() -> None:
    body = b'{"type":"FeatureCollection","features":[{"id":"a","x":12345678901234567890123}]}'
    assert fetch_from(lambda _: Answer(body)).items[0]["x"] == 12345678901234567890123
