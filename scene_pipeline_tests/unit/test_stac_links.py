"""Next links: every recorded shape, and the rules of the specification."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scene_pipeline.errors import SourceFaultError
from scene_pipeline.ingest.http import Reply, Request
from scene_pipeline.ingest.http_parse import measure_depth
from scene_pipeline.ingest.sources.stac_api import find_next, format_token, parse_token
from scene_pipeline_tests.services.replay import read_exchanges

ROOT = "https://api.example.org/v1"
SEARCH = Request("POST", f"{ROOT}/search", {"collections": ["c"], "limit": 10})


def reply_with(*links: Any, url: str = f"{ROOT}/search") -> Reply:
    return Reply({"type": "FeatureCollection", "features": [], "links": list(links)}, url, None)


def test_every_recorded_shape_is_followed_as_the_link_says(real_data: Path) -> None:
    shapes = json.loads((real_data / "paging_next_link_shapes.json").read_text())
    assert len(shapes) >= 16
    followed = 0
    for shape in shapes:
        link, made = shape["example"], shape["request"]
        request = Request(made["method"], made["url"], json.loads(made["body"] or "null"))
        following = find_next(request, reply_with(link, url=made["url"]))
        if link["rel"] != "next":
            assert following is None, "only `next` leads on"
            continue
        assert following is not None
        followed += 1
        assert (following.method, following.url) == (link["method"], link["href"])
        # None of the recorded servers asks for a merge: the body is the link's, whole.
        assert following.body == (link["body"] if link["method"] == "POST" else None)
    assert followed >= 14


def test_requests_are_those_that_the_recorded_client_made_next(real_data: Path) -> None:
    """Where a record goes on, the request after a page is the one computed from its link."""
    checked = 0
    for path in sorted((real_data / "paging").glob("*.ndjson.gz")):
        pages = [exchange for exchange in read_exchanges(path) if exchange.is_page]
        for page, after in itertools.pairwise(pages):
            request = Request(page.method, page.url, page.body)  # type: ignore[arg-type]
            following = find_next(request, Reply(page.document, page.url, None))
            # The client also starts anew inside a record: those are no continuations.
            restarted = (after.body or {}).get("token", (after.body or {}).get("next")) is None
            if following is None or restarted:
                continue
            assert (following.method, following.url, following.body) == (
                after.method, after.url, after.body,
            )  # fmt: skip
            checked += 1
    assert checked >= 6


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ({"href": f"{ROOT}/search?token=t"}, Request("GET", f"{ROOT}/search?token=t")),
        ({"href": "/v1/search?token=t"}, Request("GET", f"{ROOT}/search?token=t")),
        ({"href": "?token=t", "method": "get"}, Request("GET", f"{ROOT}/search?token=t")),
        # POST without a body: pystac-client sends an empty object, so do we.
        ({"href": "/s", "method": "POST"}, Request("POST", "https://api.example.org/s", {})),
        ({"href": "/s", "method": "POST", "body": {"token": "t"}, "merge": False},
         Request("POST", "https://api.example.org/s", {"token": "t"})),
        ({"href": "/s", "method": "POST", "body": {"token": "t", "limit": 5}, "merge": True},
         Request("POST", "https://api.example.org/s",
                 {"collections": ["c"], "limit": 5, "token": "t"})),
        ({"href": "/s", "headers": {"Search-After": "LC8"}},
         Request("GET", "https://api.example.org/s", None, {"Search-After": "LC8"})),
    ],
)  # fmt: skip
def test_link_becomes_the_request(link: dict[str, Any], expected: Request) -> None:
    assert find_next(SEARCH, reply_with({"rel": "next", **link})) == expected


def test_merge_goes_on_from_page_to_page() -> None:
    second = find_next(
        SEARCH,
        reply_with({"rel": "next", "href": "/s", "method": "POST", "merge": True,
                    "body": {"token": "a"}, "headers": {"x-page": "2"}}),
    )  # fmt: skip
    assert second is not None
    third = find_next(
        second,
        reply_with({"rel": "next", "href": "/s", "method": "POST", "merge": True,
                    "body": {"token": "b"}}),
    )  # fmt: skip
    assert third is not None
    assert third.body == {"collections": ["c"], "limit": 10, "token": "b"}
    assert third.headers == {"x-page": "2"}


def test_same_page_in_several_forms_is_followed_in_ours() -> None:
    html = {"rel": "next", "type": "text/html", "href": "/html"}
    get = {"rel": "next", "type": "application/geo+json", "href": "/get"}
    post = {"rel": "next", "href": "/post", "method": "POST", "body": {"token": "t"}}
    following = find_next(SEARCH, reply_with(html, get, post))
    assert following == Request("POST", "https://api.example.org/post", {"token": "t"})


@pytest.mark.parametrize("links", [None, [], "next", [None, 7], [{"rel": "prev", "href": "/p"}]])
def test_no_next_link_is_the_end(links: Any) -> None:
    assert find_next(SEARCH, Reply({"links": links}, ROOT, None)) is None


@pytest.mark.parametrize(
    "link",
    [
        {},
        {"href": None},
        {"href": ["/s"]},
        {"href": "http://[bad"},
        {"href": "/s", "method": "DELETE"},
        {"href": "/s", "method": "POST", "body": ["token"]},
        {"href": "/s", "headers": "X: y"},
        {"href": "/s", "headers": {"x": "a\r\nHost: elsewhere"}},
        {"href": "/s", "headers": {"x": "\u2603"}},
    ],
)
def test_link_that_cannot_be_followed_is_refused(link: dict[str, Any]) -> None:
    with pytest.raises(SourceFaultError):
        find_next(SEARCH, reply_with({"rel": "next", **link}))


TEXT = st.text() | st.text('[]{}"\\\\ab')
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(
    body=st.none() | st.dictionaries(st.text(), JSON, max_size=4),
    headers=st.dictionaries(st.text(), st.text(), max_size=2),
)
def test_token_is_the_whole_request(body: dict[str, Any] | None, headers: dict[str, str]) -> None:
    request = Request("POST", f"{ROOT}/search?x=1", body, headers)
    assert parse_token(format_token(request)) == request


def test_token_too_long_to_keep_is_refused() -> None:
    with pytest.raises(SourceFaultError, match="characters"):
        format_token(Request("POST", ROOT, {"token": "x" * 200_000}))


def depth_of(value: Any) -> int:
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth_of, parts), default=0)
    return 0


@given(value=JSON, ascii_only=st.booleans())
@example(value=["[[[", '"', "\\", '\\"[', {"]": "}"}], ascii_only=True)
def test_depth_is_counted_on_the_bytes_as_on_the_document(value: Any, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    assert measure_depth(body) == depth_of(value)
