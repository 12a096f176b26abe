"""Renew the pictures that the README shows: ``make screenshots``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from click.testing import CliRunner

from scene_pipeline.cli.main import cli
from scene_pipeline.settings import load_settings
from scene_pipeline_tests.services.browser import Browser, run_browser
from scene_pipeline_tests.services.built_region import BuiltRegion, build_region
from scene_pipeline_tests.services.pages import DagsterPages, run_dev

TARGET = Path(__file__).resolve().parents[1] / "docs" / "pictures"
SIZE = (1280, 800)
WIDE = (2000, 700)  # the graph shows more than names once it has room


def take_pages(pages: DagsterPages, browser: Browser) -> None:
    """The graph, a day's map as Dagster shows it, and the states of a table's partitions."""
    assert pages.wait_for_run(pages.launch_run("ingest_job")) == "SUCCESS"
    pages.open_graph(browser, size=WIDE)
    save(browser, "asset-graph", size=WIDE)
    pages.open_partition(browser, "daily_coverage", pages.region.days[1].isoformat())
    pages.open_picture(browser)
    save(browser, "day-map")
    pages.open_partition(browser, "footprint_table", str(pages.region.damaged))
    browser.wait_for_words("Failed (1)")
    save(browser, "failed-key")


def take_report(region: BuiltRegion, browser: Browser, folder: Path) -> None:
    """The top of the report."""
    path = folder / "report.html"
    load_settings.cache_clear()
    environment = {"SCENE_PIPELINE_CONFIG": str(region.config)}
    result = CliRunner().invoke(cli, ["report", "-o", str(path)], env=environment)
    assert result.exit_code == 0, result.output
    browser.open(path.as_uri(), size=SIZE)
    save(browser, "report")


def save(browser: Browser, name: str, *, size: tuple[int, int] = SIZE) -> None:
    """Let the page come to rest, then keep it."""
    browser.resize(*size)
    browser.wait_for("document.getAnimations().every(a => a.playState !== 'running')")
    path = TARGET / f"{name}.png"
    browser.save_picture(path)
    print(f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def main() -> int:
    """Build a region, open its pages, write the pictures."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as base, run_browser() as browser:
        region = build_region(Path(base) / "region", days=10, damage=True)
        take_report(region, browser, Path(base))
        with run_dev(region) as pages:
            take_pages(pages, browser)
    return 0


if __name__ == "__main__":
    sys.exit(main())
