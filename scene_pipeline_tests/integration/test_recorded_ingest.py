"""Every recorded sequence, ingested over HTTP: a record that stops proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from scene_pipeline.errors import SourceUnavailableError
from scene_pipeline_tests.conftest import REAL_DATA
from scene_pipeline_tests.services.http_region import (
    ingest,
    make_settings,
    read_ids,
)
from scene_pipeline_tests.services.http_server import serve
from scene_pipeline_tests.services.replay import Exchange, Replay, read_exchanges


def read_searches(path: Path) -> list[Exchange]:
    return [e for e in read_exchanges(path) if e.is_page and e.url.endswith("/search")]


RECORDS = [path for path in sorted((REAL_DATA / "paging").glob("*.gz")) if read_searches(path)]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name.split(".ndjson")[0])
def test_recorded_sequence_is_as_finished_as_its_record(path: Path, tmp_path: Path) -> None:
    """A record that ends on a page with `next` is unfinished: no bound, ever."""
    searches = read_searches(path)
    replay = Replay(read_exchanges(path), any_search=True)
    with serve(replay.respond) as server:
        replay.url = server.url
        root = searches[0].url.removesuffix("/search").replace(replay.origin, server.url)
        collection = searches[0].document["features"][0]["collection"]
        settings = make_settings(root, tmp_path, collection=collection)
        report = ingest(settings)
    recorded = {item_id for page in searches for item_id in page.ids}
    assert report.items > 0
    assert read_ids(settings) <= recorded
    assert set(searches[0].ids) <= read_ids(settings)
    if searches[0].next_link is not None:
        assert report.bound is None
        assert isinstance(report.error, SourceUnavailableError)
        assert report.state == "blocked"


def test_some_records_finish_and_most_do_not() -> None:
    finished = [path for path in RECORDS if read_searches(path)[0].next_link is None]
    assert len(finished) >= 5
    assert len(RECORDS) - len(finished) >= 10
