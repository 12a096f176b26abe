"""Charts say what the numbers say."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scene_pipeline.pictures import charts
from scene_pipeline.pictures.charts import STATE_MARKS, StreamBar
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline_tests.unit.picture_samples import (
    SVG,
    find_text,
    sample_pictures,
    texts,
)

NOW = datetime(2024, 6, 16, 9, tzinfo=UTC)


def bars_of(picture: str) -> list[ET.Element]:
    return [e for e in ET.fromstring(picture).iter(f"{SVG}rect") if e.get("height") == "18"]


def test_the_frontier_line_is_at_the_end_of_its_holders_bar() -> None:
    picture = sample_pictures()["frontier"]
    first, held = bars_of(picture)
    line = next(
        e for e in ET.fromstring(picture).iter(f"{SVG}path") if e.get("stroke-width") == "2"
    )
    at = float(re.match(r"M([\d.]+)", line.get("d"))[1])
    end = float(held.get("x")) + float(held.get("width"))
    assert end == pytest.approx(at, abs=0.15)
    assert float(first.get("width")) > float(held.get("width"))
    assert first.get("fill") != held.get("fill")
    assert find_text(picture, "usgs-landsat").get("font-weight") == "bold"
    assert "usgs-landsat holds the frontier since 2024-06-13 09:00 UTC" in texts(picture)
    assert {"blocked", "429 for 3 hours", "no bound yet", "pending"} <= set(texts(picture))


def test_without_a_frontier_there_is_no_line() -> None:
    picture = charts.draw_frontier([StreamBar("a", None)], frontier_at=None, now=NOW)
    assert "no frontier yet: not every stream has a bound" in texts(picture)
    assert 'stroke-width="2"' not in picture
    assert bars_of(picture) == []


@pytest.mark.parametrize("age", [timedelta(minutes=5), timedelta(days=3), timedelta(days=4000)])
def test_axis_labels_do_not_crowd(age: timedelta) -> None:
    picture = charts.draw_frontier([StreamBar("a", NOW - age)], frontier_at=NOW - age, now=NOW)
    x = [
        float(e.get("x"))
        for e in ET.fromstring(picture).iter(f"{SVG}text")
        if re.match(r"\d\d", e.text)
    ]
    assert len(x) >= 2
    assert min(np.diff(x)) > 55


days = st.dates(date(2024, 1, 1), date(2024, 3, 1))
keys = st.builds(PartitionKey, days, st.sampled_from(["7-0-70", "7-127-70", "7-126-71"]))


@given(st.dictionaries(keys, st.sampled_from(list(STATE_MARKS)), min_size=1, max_size=60))
def test_a_strip_shows_exactly_the_keys_in_their_states(states: dict[PartitionKey, str]) -> None:
    picture = charts.draw_strip(states)
    tiles = sorted({key.tile for key in states})
    first = min(key.day for key in states)
    columns = (max(key.day for key in states) - first).days + 1
    cell = min(22.0, (900 - 92 - 12) / columns)
    by_fill = {mark.fill: state for state, mark in STATE_MARKS.items()}
    shown: dict[PartitionKey, str] = {}
    for path in ET.fromstring(picture).iter(f"{SVG}path"):
        for x, y, span in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v", path.get("d")):
            start = round((float(x) - 92) / cell)
            for column in range(start, start + round((float(span) + 1) / cell)):
                key = PartitionKey(first + timedelta(days=column), tiles[int((float(y) - 66) / 20)])
                assert key not in shown
                shown[key] = by_fill[path.get("fill")]
    assert shown == states
    for state in set(states.values()):
        assert f"{state} {list(states.values()).count(state)}" in texts(picture)


def test_a_year_of_a_hundred_tiles_stays_readable_in_size() -> None:
    states = {
        PartitionKey(date(2024, 1, 1) + timedelta(days=day), f"7-{row}-50"): (
            "failed" if (day * row) % 97 == 1 else "materialized"
        )
        for day in range(365)
        for row in range(100)
    }
    assert len(charts.draw_strip(states)) < 60_000
