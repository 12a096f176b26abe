"""429 and its kin on GET and POST, and one request rate for all streams and processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy as sa

from scene_pipeline.errors import SourceUnavailableError
from scene_pipeline.ingest.http import MAX_HOLD_S, Request
from scene_pipeline.ingest.http_parse import parse_retry_after
from scene_pipeline.ingest.sources import declaration_of, open_source
from scene_pipeline.ingest.sources.stac_api import format_token
from scene_pipeline.ingest.throttle import SharedThrottle
from scene_pipeline.settings import Caps, Settings, StreamSettings
from scene_pipeline.state.database import migrate_state, open_state
from scene_pipeline.state.tables import throttles
from scene_pipeline_tests.services.http_server import Answer, Incoming, answer_json, serve
from scene_pipeline_tests.services.sources import StoppedClock, make_query, open_local

PAGE = {"type": "FeatureCollection", "features": [{"id": "a"}], "links": []}


def refuse_first(count: int, answer: Answer) -> Callable[[Incoming], Answer]:
    """Answer ``count`` requests with ``answer``, the later ones with a page."""
    left = iter(range(count))
    return lambda _: answer if next(left, None) is not None else answer_json(PAGE)


def token_for(method: Literal["GET", "POST"], url: str) -> str:
    return format_token(Request(method, f"{url}/search", {"x": 1} if method == "POST" else None))


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [429, 503])
def test_pause_in_seconds_is_kept(method: Literal["GET", "POST"], status: int) -> None:
    clock = StoppedClock()
    with serve(refuse_first(2, answer_json({}, status, retry_after="7"))) as server:
        source = open_local(server.url, clock=clock)
        page = source.fetch_page(make_query(), token_for(method, server.url))
    assert page.items == [{"id": "a"}]
    assert clock.pauses_s == [7.0, 7.0]
    assert [(r.method, r.document) for r in server.requests] == [
        (method, {"x": 1} if method == "POST" else None)
    ] * 3


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_pause_until_a_date_counts_from_the_servers_clock(method: Literal["GET", "POST"]) -> None:
    """A server whose clock is years off still gets the pause that it means."""
    clock = StoppedClock()
    at = datetime(2011, 6, 1, 12, 0, 0, tzinfo=UTC)
    assert parse_retry_after("Wed, 01 Jun 2011 12:00:09 GMT", at) == 9.0
    until = format_datetime(datetime.now(UTC).replace(microsecond=0), usegmt=True)
    with serve(refuse_first(1, answer_json({}, 429, retry_after=until))) as server:
        source = open_local(server.url, clock=clock)
        source.fetch_page(make_query(), token_for(method, server.url))
    assert len(server.requests) == 2
    assert all(pause_s <= 1 for pause_s in clock.pauses_s), "the date is now, or just past"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_pauses_grow_where_none_is_named(method: Literal["GET", "POST"], status: int) -> None:
    clock = StoppedClock()
    count = 2 if status == 500 else 5
    with serve(refuse_first(count, answer_json({}, status))) as server:
        source = open_local(server.url, clock=clock, deadline_s=120)
        source.fetch_page(make_query(), token_for(method, server.url))
    assert len(clock.pauses_s) == count
    for number, pause_s in enumerate(clock.pauses_s):
        assert 2**number / 2 <= pause_s <= 2**number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None), ("0", 0.0), (" 120 ", 120.0), ("-5", None), ("1.5", None), ("1e9", None),
        ("inf", None), ("soon", None), ("", None), ("9" * 400, 999_999_999_999.0),
        ("Wed, 01 Jun 2011 12:00:09 GMT", 9.0), ("Wed, 01 Jun 2011 11:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 -2300", None),
    ],
)  # fmt: skip
def test_retry_after_is_read_by_its_specification(text: str | None, expected: float | None) -> None:
    assert parse_retry_after(text, datetime(2011, 6, 1, 12, tzinfo=UTC)) == expected


def test_deadline_bounds_the_waits() -> None:
    clock = StoppedClock()
    with serve(lambda _: answer_json({}, 429, retry_after="20")) as server:
        source = open_local(server.url, clock=clock, deadline_s=70)
        with pytest.raises(SourceUnavailableError, match="429") as caught:
            source.fetch_page(make_query(), token_for("POST", server.url))
    assert caught.value.retry_helps
    assert clock.now_s - 1000 <= 70
    assert len(server.requests) == 4


def test_pause_past_the_deadline_is_not_begun_but_known_to_all() -> None:
    clock = StoppedClock()
    with serve(lambda _: answer_json({}, 429, retry_after="900")) as server:
        source = open_local(server.url, clock=clock, deadline_s=60)
        with pytest.raises(SourceUnavailableError):
            source.fetch_page(make_query(), token_for("GET", server.url))
        assert clock.pauses_s == []
        with pytest.raises(SourceUnavailableError, match="no turn"):
            source.fetch_page(make_query(), token_for("GET", server.url))
        assert len(server.requests) == 1, "nobody asks again while the provider wants rest"


def test_pause_of_a_century_is_cut() -> None:
    clock = StoppedClock()
    with serve(lambda _: answer_json({}, 429, retry_after=str(10**10))) as server:
        source = open_local(server.url, clock=clock)
        with pytest.raises(SourceUnavailableError):
            source.fetch_page(make_query(), token_for("GET", server.url))
    assert source.client.throttle.holds_s == [MAX_HOLD_S]  # type: ignore[attr-defined]


# -- the shared rate --------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def state_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/state.db"
        return
    url = request.getfixturevalue("postgis_url")
    migrate_state(url)
    yield url


@pytest.fixture
def state(state_url: str) -> Iterator[sa.Engine]:
    engine = open_state(state_url)
    yield engine
    engine.dispose()


def read_row(engine: sa.Engine, source: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(sa.select(throttles).where(throttles.c.source == source)).one()


def test_slots_are_one_interval_apart(state: sa.Engine) -> None:
    throttle = SharedThrottle(state, "https://a", requests_per_s=0.001)
    waits_s = [throttle.reserve(1e6) for _ in range(5)]
    for number, wait_s in enumerate(waits_s):
        # Time passes between the calls, so each wait is a little below its multiple.
        assert wait_s is not None
        assert 1000 * number - 500 < wait_s <= 1000 * number + 1e-3
    assert read_row(state, "https://a").requests == 5


def test_slot_out_of_reach_is_left_to_others(state: sa.Engine) -> None:
    throttle = SharedThrottle(state, "https://a", requests_per_s=0.01)
    assert throttle.reserve(1) == 0
    before = read_row(state, "https://a")
    assert throttle.reserve(50) is None
    assert read_row(state, "https://a") == before
    assert throttle.reserve(150) is not None


def test_hold_moves_everybody_and_is_never_cut(state: sa.Engine) -> None:
    one = SharedThrottle(state, "https://a", requests_per_s=1000)
    other = SharedThrottle(state, "https://a", requests_per_s=1000)
    one.hold(500)
    one.hold(2)
    assert other.reserve(100) is None
    wait_s = other.reserve(1000)
    assert wait_s is not None
    assert 400 < wait_s <= 500.01
    assert SharedThrottle(state, "https://b", requests_per_s=1).reserve(0) is not None
    assert read_row(state, "https://a").refused == 2


def test_threads_share_one_rate(state: sa.Engine) -> None:
    def take(_: int) -> float | None:
        return SharedThrottle(state, "https://a", requests_per_s=0.001).reserve(1e6)

    with ThreadPoolExecutor(8) as pool:
        waits_s = list(pool.map(take, range(40)))
    assert None not in waits_s
    row = read_row(state, "https://a")
    assert row.requests == 40
    # Every slot but the first was queued: had two callers shared one, the last would be nearer.
    assert 38_500 < max(wait_s or 0 for wait_s in waits_s) <= 39_000 + 1e-3


PROGRAM = """
import sys
from scene_pipeline.ingest.throttle import SharedThrottle
from scene_pipeline.state.database import open_state
engine = open_state(sys.argv[1])
first = SharedThrottle(engine, "https://a", requests_per_s=0.001).reserve(1e9)
print(first)
for _ in range(19):
    SharedThrottle(engine, "https://a", requests_per_s=0.001).reserve(1e9)
engine.dispose()
"""


def test_processes_share_one_rate(state_url: str, state: sa.Engine) -> None:
    del state
    running = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, state_url], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    outputs = [float(process.communicate()[0]) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    engine = open_state(state_url)
    row = read_row(engine, "https://a")
    wait_s = SharedThrottle(engine, "https://a", requests_per_s=0.001).reserve(1e9)
    engine.dispose()
    assert row.requests == 60
    assert min(outputs) == pytest.approx(0, abs=1e-3), "exactly one of them came first"
    assert wait_s is not None
    assert 59_000 < wait_s <= 60_000, "sixty slots of a thousand seconds, none shared"


def test_streams_of_one_host_share_its_rate_whatever_their_path(
    state: sa.Engine, tmp_path: Path
) -> None:
    settings = Settings(caps=Caps(stac_requests_per_s=1000))
    with serve(lambda _: answer_json(PAGE)) as server:
        for collection in ("a", "b"):
            stream = StreamSettings(
                url=f"{server.url}/{collection}",
                collection=collection,
                requests_per_s=500,
                options={"method": "POST", "sortby": "no"},
            )
            open_source(stream, settings, state).fetch_page(make_query(), None)
        assert read_row(state, server.url).requests == 2


def test_cap_is_a_ceiling_over_preset_and_stream() -> None:
    stream = StreamSettings(source="earth-search", collection="x", requests_per_s=50)
    assert declaration_of(stream).requests_per_s == 50
    assert declaration_of(stream, Settings(caps=Caps(stac_requests_per_s=2))).requests_per_s == 2
    slow = StreamSettings(source="earth-search", collection="x", requests_per_s=0.5)
    assert declaration_of(slow, Settings()).requests_per_s == 0.5
