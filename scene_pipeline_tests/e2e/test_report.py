"""``scene-pipeline report`` over a real region, read in a real browser without a network."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from scene_pipeline.cli.main import cli
from scene_pipeline.ingest.quarantine import list_quarantine
from scene_pipeline.settings import load_settings
from scene_pipeline.state.tables import metadata
from scene_pipeline_tests.services.browser import LAPTOP, PHONE, Browser
from scene_pipeline_tests.services.built_region import BuiltRegion


def write_report(region: BuiltRegion, path: Path) -> dict[str, Any]:
    """Run the command as a user would, with the region's settings file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCENE_PIPELINE_CONFIG", str(region.config))
        load_settings.cache_clear()
        result = CliRunner().invoke(cli, ["report", "-o", str(path), "--json"])
        load_settings.cache_clear()
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="module")
def report(built_region: BuiltRegion, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the built region."""
    path = tmp_path_factory.mktemp("report") / "new folder" / "report.html"
    document = write_report(built_region, path)
    assert document["bytes"] == path.stat().st_size < 200_000
    assert document["attention"] == ["Keys of footprint_table", "Quarantine"]
    return path


def test_it_says_what_the_region_holds(report: Path, built_region: BuiltRegion) -> None:
    text = report.read_text()
    assert "Complete through 2024-06-03" in text
    alts = re.findall(r'<img alt="([^"]*)"', text)
    assert len(alts) == 4
    states = {alt.split(" by tile")[0]: alt for alt in alts if alt.startswith("States")}
    assert "1 failed" in states["States of footprint_table"]
    assert "failed" not in states["States of scene_footprints"]
    for alt in states.values():
        assert sum(int(n) for n in re.findall(r"(\d+) [a-z]", alt.split(": ")[1])) == 18
    assert str(built_region.damaged) in text
    waiting = Counter(i.reason for i in list_quarantine(built_region.pipeline.state, "fiji"))
    assert waiting, "the simulator always publishes an unusable Item"
    for reason, number in waiting.items():
        assert re.search(
            rf">{re.escape(reason)}</td><td[^>]*>simulator-sim-optical</td><td[^>]*>{number}<", text
        )


def test_it_changes_nothing(built_region: BuiltRegion, tmp_path: Path) -> None:
    def read_all() -> dict[Path, bytes]:
        lake = (built_region.base / ".scene_pipeline" / "lake").rglob("*")
        return {path: path.read_bytes() for path in lake if path.is_file()}

    def count_rows() -> dict[str, int]:
        engine = built_region.pipeline.state
        with engine.connect() as connection:
            return {
                name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
                for name, table in metadata.tables.items()
            }

    files, rows = read_all(), count_rows()
    assert len(files) > 18
    assert rows["items"] > 0
    write_report(built_region, tmp_path / "again.html")
    assert read_all() == files
    assert count_rows() == rows


def test_a_repaired_scene_shows_before_and_after(built_region: BuiltRegion) -> None:
    key = dg.AssetKey(["fiji", "scene_footprints"])
    with dg.DagsterInstance.from_config(built_region.settings.dagster_home) as instance:
        made = [
            record.asset_materialization
            for record in instance.fetch_materializations(key, limit=100).records
        ]
    repaired = [m for m in made if m is not None and m.metadata["repaired"].value]
    assert 0 < len(repaired) < len(made)
    for materialization in made:
        assert materialization is not None
        assert ("repair" in materialization.metadata) == (materialization in repaired)
    picture = repaired[0].metadata["repair"].value
    drawn = base64.b64decode(re.search(r"base64,([^)]+)", picture)[1]).decode()
    assert "as published" in drawn
    assert "as stored" in drawn


# Text whose contrast with what is behind it is below WCAG's 4.5 to 1.
PALE = """[...document.querySelectorAll('body *')].filter(e => {
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) return false;
  if (!e.getClientRects().length) return false;
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let ground = e;
  while (ground && /^rgba\\(.*, 0\\)$/.test(getComputedStyle(ground).backgroundColor))
    ground = ground.parentElement;
  const back = light(ground ? getComputedStyle(ground).backgroundColor : 'rgb(255, 255, 255)');
  const ink = light(getComputedStyle(e).color);
  return (Math.max(back, ink) + 0.05) / (Math.min(back, ink) + 0.05) < 4.5;
}).map(e => e.outerHTML.slice(0, 200))"""


@pytest.mark.browser
@pytest.mark.parametrize("size", [PHONE, LAPTOP], ids=["phone", "laptop"])
def test_it_fits_its_width_and_shows_its_pictures(
    report: Path, browser: Browser, size: tuple[int, int]
) -> None:
    browser.open(report.as_uri(), size=size)
    assert browser.ask("innerWidth") == size[0]
    assert browser.ask(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    pictures = browser.ask(
        "[...document.images].map(i => [i.complete && i.naturalWidth > 200, i.alt.length > 30])"
    )
    assert pictures == [[True, True]] * 4
    assert browser.ask(PALE) == []
    small = browser.ask(
        "[...document.querySelectorAll('p,td,th,caption,a,code')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize)).filter(s => s < 13)"
    )
    assert small == []
    assert browser.complaints() == []


@pytest.mark.browser
def test_a_keyboard_reaches_everything(report: Path, browser: Browser) -> None:
    browser.open(report.as_uri(), size=PHONE)
    browser.press("Tab")
    assert browser.ask("document.activeElement.innerText") == "Skip to the report"
    assert browser.ask("document.activeElement.getBoundingClientRect().left >= 0")
    browser.press("Enter")
    browser.wait_for("document.activeElement.id === 'main'")
    browser.open(report.as_uri(), size=PHONE)
    wanted = browser.ask("document.querySelectorAll('a, .frame').length")
    reached = []
    for _ in range(wanted):
        browser.press("Tab")
        reached.append(
            browser.ask(
                "[document.activeElement.innerText || document.activeElement.ariaLabel,"
                " getComputedStyle(document.activeElement).outlineStyle]"
            )
        )
    assert len({name for name, _ in reached}) == wanted
    assert {outline for _, outline in reached} == {"solid"}


@pytest.mark.browser
def test_a_wide_picture_scrolls_by_the_arrow_keys(report: Path, browser: Browser) -> None:
    browser.open(report.as_uri(), size=PHONE)
    browser.ask("document.querySelector('figure .frame').focus()")
    frame = "document.querySelector('figure .frame')"
    assert browser.ask(f"{frame}.scrollWidth > {frame}.clientWidth")
    browser.press("ArrowRight")
    browser.wait_for(f"{frame}.scrollLeft > 0")


@pytest.mark.browser
def test_it_prints_whole(report: Path, browser: Browser) -> None:
    browser.open(report.as_uri())
    pages = len(re.findall(rb"/Type\s*/Page\b", browser.print_pdf()))
    assert 2 <= pages <= 6
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert browser.ask(
            "[...document.images].every(i => i.getBoundingClientRect().right <= innerWidth)"
        )
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
