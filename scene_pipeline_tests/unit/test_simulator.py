"""The simulated provider: physics against published orbits, and the Items that the demo needs."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import shapely

from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.sources import Query, open_source
from scene_pipeline.ingest.sources.simulator import MISSIONS, Mission, Simulator, simulate_items
from scene_pipeline.settings import Settings, StreamSettings

FIJI = (175.5, -21.0, -178.0, -17.0)
START = datetime(2024, 6, 1, tzinfo=UTC)
END = datetime(2024, 6, 15, tzinfo=UTC)
DEMO = Query("sim-optical", FIJI, START, END, limit=250)


def read_all(query: Query, source: Simulator) -> tuple[list[dict], int]:
    items, token, pages = [], None, 0
    while True:
        page = source.fetch_page(query, token)
        items += page.items
        pages += 1
        token = page.next_token
        if token is None:
            return items, pages


def read_tles(path: Path) -> dict[str, tuple[float, float]]:
    """Name -> (inclination in degrees, revolutions a day)."""
    lines = path.read_text().splitlines()
    second = {lines[i]: lines[i + 2] for i in range(0, len(lines), 3)}
    return {name: (float(line[8:16]), float(line[52:63])) for name, line in second.items()}


@pytest.mark.parametrize(("platform", "flown"), [("sim-2a", "SENTINEL-2A"), ("sim-8", "LANDSAT 9")])
def test_orbit_is_that_of_the_flown_satellite(real_data: Path, platform: str, flown: str) -> None:
    inclination_deg, revolutions = read_tles(real_data / "tle" / "eo_satellites.tle")[flown]
    axis_km, inclination = MISSIONS[platform].orbit
    assert math.degrees(inclination) == pytest.approx(inclination_deg, abs=0.05)
    # A TLE counts anomalistic revolutions; the nodal period differs by under a thousandth.
    mean_motion = math.sqrt(398600.4418 / axis_km**3) * 86400 / (2 * math.pi)
    assert mean_motion == pytest.approx(revolutions, rel=1.5e-3)


@pytest.mark.parametrize(("platform", "height_km"), [("sim-2a", 786.1), ("sim-8", 699.6)])
def test_height_follows_from_the_repeat_cycle(platform: str, height_km: float) -> None:
    # 786 km is ESA's figure for Sentinel-2; Landsat's semi-major axis is 7,077.7 km (USGS).
    assert MISSIONS[platform].orbit[0] - 6378.137 == pytest.approx(height_km, abs=0.5)


def test_ground_track_repeats_after_its_cycle() -> None:
    cycle = timedelta(days=MISSIONS["sim-2a"].cycle_days)
    first = simulate_items("c", FIJI, START, START + cycle, ("sim-2a",))
    second = simulate_items("c", FIJI, START + cycle, START + 2 * cycle, ("sim-2a",))
    codes = [[item["properties"]["grid:code"] for item in run] for run in (first, second)]
    assert len(codes[0]) > 50
    assert sorted(codes[0]) == sorted(codes[1])


def test_overpasses_keep_their_local_time() -> None:
    for item in simulate_items("c", FIJI, START, END, ("sim-2a",)):
        if item["geometry"] is None:
            continue
        at = datetime.fromisoformat(item["properties"]["datetime"])
        lon = item["geometry"]["coordinates"][0][0][0]
        local_h = (at.hour + at.minute / 60 + lon / 15) % 24
        # 10:30 at the node; 20 degrees south of it the sun is a little further on.
        assert local_h == pytest.approx(10.5, abs=0.5)


@pytest.mark.parametrize("lat_deg", [-60.0, -20.0, 0.0, 45.0, 70.0])
def test_swath_has_its_width(lat_deg: float) -> None:
    mission = MISSIONS["sim-2a"]
    along = -math.asin(math.sin(math.radians(lat_deg)) / math.sin(mission.orbit[1]))
    half = mission.swath_km / 2 / 6378.137
    (w_lon, w_lat), (e_lon, e_lat) = (mission.locate(30.0, along, a) for a in (-half, half))
    cosine = math.sin(math.radians(w_lat)) * math.sin(math.radians(e_lat)) + math.cos(
        math.radians(w_lat)
    ) * math.cos(math.radians(e_lat)) * math.cos(math.radians(e_lon - w_lon))
    assert math.acos(cosine) * 6378.137 == pytest.approx(mission.swath_km, abs=0.01)


def test_demo_has_every_case_that_it_shows() -> None:
    items, pages = read_all(DEMO, Simulator(START.date()))
    assert 200 <= len(items) <= 500
    assert pages == 2
    assert len({item["id"] for item in items}) == len(items)
    days = {item["properties"]["datetime"][:10] for item in items}
    assert 8 <= len(days) <= 12, "some days of the fourteen have no scene"
    usable = [item for item in items if item["geometry"] is not None]
    assert 1 <= len(items) - len(usable) <= 10
    crossing = [item for item in usable if item["bbox"][0] > item["bbox"][2]]
    assert crossing
    bow_ties = [
        item
        for item in usable
        if item not in crossing and not shapely.geometry.shape(item["geometry"]).is_valid
    ]
    assert bow_ties
    assert {item["properties"]["platform"] for item in items} == set(MISSIONS)


def test_items_are_in_keyset_order_and_inside_the_window() -> None:
    items, _ = read_all(DEMO, Simulator(START.date()))
    keys = [(item["properties"]["datetime"], item["id"]) for item in items]
    assert keys == sorted(keys)
    # Cut exactly at an Item: it belongs to the later window alone.
    middle = datetime.fromisoformat(items[len(items) // 2]["properties"]["datetime"])
    parts = [
        read_all(Query("sim-optical", FIJI, start, end), Simulator(START.date()))[0]
        for start, end in ((START, middle), (middle, END))
    ]
    assert [*parts[0], *parts[1]] == items, "half-open windows neither lose nor double"


@pytest.mark.parametrize("limit", [1, 7, 250, 10_000])
def test_pages_of_any_size_give_the_same_items(limit: int) -> None:
    start, end = datetime(2024, 6, 4, tzinfo=UTC), datetime(2024, 6, 8, tzinfo=UTC)
    source = Simulator(START.date())
    items, pages = read_all(Query("c", FIJI, start, end, limit=limit), source)
    assert items == list(simulate_items("c", FIJI, start, end, tuple(MISSIONS)))
    assert pages == max(1, math.ceil(len(items) / limit))


def test_items_are_the_same_on_every_machine() -> None:
    """A digest over the demo: a change of it changes every golden of the demo."""
    program = (
        "import hashlib, json\n"
        "from datetime import datetime, UTC\n"
        "from scene_pipeline.ingest.sources.simulator import MISSIONS, simulate_items\n"
        f"items = simulate_items('c', {FIJI!r}, datetime(2024, 6, 1, tzinfo=UTC),"
        " datetime(2024, 6, 15, tzinfo=UTC), tuple(MISSIONS))\n"
        "print(hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest())"
    )
    fresh = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()
    items = simulate_items("c", FIJI, START, END, tuple(MISSIONS))
    here = hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()
    assert fresh == here
    assert (len(items), here[:16]) == (278, "d510a098bd5a2ec6")


def test_says_itself_how_far_it_is_complete() -> None:
    source = Simulator(date(2024, 6, 1), days=3)
    assert source.complete_through(DEMO) == Bound(datetime(2024, 6, 4, tzinfo=UTC))
    items, _ = read_all(DEMO, source)
    assert items
    assert max(item["properties"]["datetime"] for item in items) < "2024-06-04"


def test_longer_simulation_continues_the_shorter_one() -> None:
    short, _ = read_all(DEMO, Simulator(START.date(), days=5))
    long, _ = read_all(DEMO, Simulator(START.date(), days=14))
    assert long[: len(short)] == short
    assert Simulator(START.date(), days=5).scope == Simulator(START.date(), days=14).scope


def test_polar_area_is_observed_to_the_inclination_limit() -> None:
    items = simulate_items(
        "c", (-180.0, 78.0, 180.0, 90.0), START, START + timedelta(hours=3), ("sim-2b",)
    )
    assert items
    assert all(
        abs(lat) <= 90 for i in items if i["geometry"] for _, lat in i["geometry"]["coordinates"][0]
    )


def test_settings_choose_days_and_missions() -> None:
    stream = StreamSettings(
        source="simulator", collection="x", options={"days": 2, "missions": ["sim-8"]}
    )
    source = open_source(stream, Settings(), engine=None)  # type: ignore[arg-type]
    assert isinstance(source, Simulator)
    assert (source.days, source.missions) == (2, ("sim-8",))
    assert isinstance(MISSIONS["sim-8"], Mission)
