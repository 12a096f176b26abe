"""``scene-pipeline dev`` in a real browser: act through GraphQL, look at the pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scene_pipeline.pictures import svg
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline_tests.services.browser import Browser
from scene_pipeline_tests.services.built_region import START, build_region
from scene_pipeline_tests.services.dagster import wait_until
from scene_pipeline_tests.services.pages import DagsterPages, run_dev

pytestmark = [pytest.mark.browser, pytest.mark.daemon]

ASSETS = {"ingest_frontier", "raw_scenes", "scene_footprints", "footprint_table", "daily_coverage"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterPages]:
    """The UI over a region of its own: these tests launch runs."""
    with run_dev(build_region(tmp_path_factory.mktemp("dev"), damage=True)) as running:
        yield running


def test_the_graph_shows_every_asset(pages: DagsterPages, browser: Browser) -> None:
    pages.open_graph(browser)
    drawn = browser.ask(
        "[...document.querySelectorAll('svg foreignObject')].map(e => e.textContent)"
    )
    assert len(drawn) == len(ASSETS)
    for name in ASSETS:
        assert sum(name in text for text in drawn) == 1, drawn
    # Frontier to raw to footprints, then to table and coverage.
    assert browser.ask("document.querySelectorAll('svg path[marker-end]').length") == 4
    assert browser.complaints() == []


def test_a_partition_made_from_the_ui_shows_its_map(pages: DagsterPages, browser: Browser) -> None:
    key = PartitionKey(START, "7-0-70")
    run_id = pages.launch_run("scenes_per_partition_job", key=key)
    assert pages.wait_for_run(run_id) == "SUCCESS"
    pages.open_partition(browser, "scene_footprints", str(key))
    browser.wait_for_words("Materialized", run_id[:8], "rows", "seconds_build", "EPSG:3857")
    picture = pages.open_picture(browser)
    assert str(key) in picture["alt"]
    assert picture["width"] > 300
    assert picture["shares"][svg.SEA] > 0.2
    assert picture["shares"][svg.INK] > 0.002
    assert len(picture["shares"]) > 50


def test_a_day_shows_its_map_and_its_table(pages: DagsterPages, browser: Browser) -> None:
    day = pages.region.days[1].isoformat()
    pages.open_partition(browser, "daily_coverage", day)
    browser.wait_for_words("covered_share", "cloud_cover_pct", "7-126-71")
    picture = pages.open_picture(browser)
    assert day in picture["alt"]
    assert picture["width"] == 640


def test_ingest_shows_the_frontier_as_a_chart(pages: DagsterPages, browser: Browser) -> None:
    assert pages.wait_for_run(pages.launch_run("ingest_job")) == "SUCCESS"
    browser.open(f"{pages.url}/assets/fiji/ingest_frontier?view=overview")
    browser.wait_for_words("simulator-sim-optical", "complete_through")
    picture = pages.open_picture(browser)
    assert "everything before 2024-06-04 00:00 UTC is complete" in picture["alt"]
    assert picture["shares"][svg.VERMILION] > 0.002  # the holder's bar


def test_a_failed_key_is_named_with_its_reason(pages: DagsterPages, browser: Browser) -> None:
    damaged = pages.region.damaged
    assert damaged is not None
    pages.open_partition(browser, "footprint_table", str(damaged))
    browser.wait_for_words("failed, and did not materialize this asset", "Failed (1)")
    run = browser.wait_for(
        "[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))"
        ".find(href => /^.runs.[0-9a-f-]{36}/.test(href || ''))"
    )
    # Tall: the page draws only the events that are in view.
    browser.open(f"{pages.url}{run.partition('?')[0]}", size=(1280, 4000))
    browser.wait_for_words("RUN_FAILURE", f"1 of 18 keys failed: {damaged}", "backfill diagnose")
    browser.click("[Show JSON]")
    browser.wait_for_words(str(damaged), "LakeFileError")


def test_a_backfill_counts_as_it_goes(pages: DagsterPages, browser: Browser) -> None:
    days = [day.isoformat() for day in pages.region.days[1:]]
    backfill = pages.launch_backfill("daily_coverage", days)

    def shown() -> list[str]:
        """Targeted, in progress, succeeded and failed, as the backfill's page says."""
        browser.open(f"{pages.url}/runs/b/{backfill}")
        browser.wait_for_words("% completed")
        words = browser.words()
        return words[words.index("% completed") :].split()[2:6]

    assert shown()[0] == "2"
    wait_until(lambda: shown()[1] == "2", "partitions in progress on the page", every_s=1)
    assert pages.wait_for_backfill(backfill) == "COMPLETED_SUCCESS"
    assert shown() == ["2", "0", "2", "0"]
    browser.open(f"{pages.url}/runs?view=backfills")
    browser.wait_for_words(backfill, "2 partitions")
