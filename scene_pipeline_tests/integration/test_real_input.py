"""Real Items from end to end, counted against the Items themselves by other code.

Sentinel-2 comes from a real STAC API over HTTP and ends in GeoParquet and PostGIS under each of
the three policies; Landsat and Sentinel-1 come from the files.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import antimeridian
import dagster as dg
import mercantile
import pytest
import shapely
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from scene_pipeline.backfill.assets import WAVES, choose_policy
from scene_pipeline.backfill.key_states import Site
from scene_pipeline.backfill.selection import Selection
from scene_pipeline.backfill.waves import LocalExecutor, Wave, launch_waves
from scene_pipeline.defs.build import build_definitions
from scene_pipeline.defs.makers import FootprintMaker, TableMaker
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.ingest.runner import IngestReport, run_ingest
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.settings import PolicyName, Settings, read_settings
from scene_pipeline.state import tables as t
from scene_pipeline.warehouse.migrate import migrate_warehouse
from scene_pipeline_tests.services.pgstac import PgstacServer

Item = Mapping[str, Any]
Name = tuple[str, str]
Places = dict[Name, set[PartitionKey]]
WORLD = (-180.0, -85.0, 180.0, 85.0)
COLLECTION = "sentinel-2-l2a"


def read_items(path: Path) -> list[Item]:
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in text.splitlines()]


# ---------------------------------------------------------------- what must come out, by other code


def day_of(item: Item) -> date:
    properties = item["properties"]
    text = properties.get("datetime") or properties["start_datetime"]
    return datetime.fromisoformat(text).astimezone(UTC).date()


def tiles_of(item: Item, zoom: int) -> set[str]:
    """Tiles that the footprint overlaps, found in degrees with mercantile's own bounds."""
    geometry = item["geometry"]
    if geometry["type"] == "MultiPolygon":
        geometry = {**geometry, "coordinates": [part for part in geometry["coordinates"] if part]}
    fixed = antimeridian.fix_geojson(
        {"type": "Feature", "properties": {}, "geometry": geometry}, fix_winding=True
    )
    shape = shapely.make_valid(shapely.force_2d(shapely.geometry.shape(fixed["geometry"])))
    return {
        f"{tile.z}-{tile.x}-{tile.y}"
        for tile in mercantile.tiles(*WORLD, zooms=[zoom])
        if shapely.intersection(shape, shapely.box(*mercantile.bounds(tile))).area > 1e-9
    }


def expected_places(items: Iterable[Item], names: Iterable[Name], zoom: int) -> Places:
    """Where the Items called ``names`` belong; one without a Collection stands for any."""
    by_name = {(item.get("collection"), item["id"]): item for item in items}
    places: Places = {}
    for collection, item_id in names:
        item = by_name.get((collection, item_id)) or by_name[None, item_id]
        places[collection, item_id] = {
            PartitionKey(day_of(item), tile) for tile in tiles_of(item, zoom)
        }
    return places


# ---------------------------------------------------------------- the pipeline, on a folder


@dataclass(frozen=True)
class Run:
    """One region under one policy, with its own lake, schema and Dagster instance."""

    settings: Settings
    pipeline: Pipeline
    definitions: dg.Definitions
    instance: dg.DagsterInstance
    policy: PolicyName

    def launch(self, keys: list[PartitionKey]) -> list[Wave]:
        policies = {
            asset: choose_policy(asset, self.settings.policies, self.policy) for asset in WAVES
        }
        return launch_waves(
            Site(self.instance, self.pipeline.state, self.pipeline.definition),
            LocalExecutor(self.definitions.resolve_job_def),
            policies=policies,
            keys=dict.fromkeys(WAVES, keys),
            selection=Selection(),
            advance=lambda *_: None,
        )

    def close(self) -> None:
        self.pipeline.state.dispose()
        self.instance.dispose()


def settings_of(base: Path, items: list[Item], *, zoom: int, **changes: Any) -> Settings:
    days = sorted(map(day_of, items))
    values: dict[str, Any] = {
        "region": "world",
        "start_date": days[0],
        "end_date": days[-1] + timedelta(days=1),
        "area": WORLD,
        "zoom": zoom,
        "maps": False,
        "state_url": f"sqlite:///{base}/state.db",
        "lake": f"{base}/lake",
        "dagster_home": f"{base}/home",
        "retries": {"max_retries": 0},
    }
    return read_settings(**{**values, **changes})


def open_run(settings: Settings, policy: PolicyName) -> Run:
    return Run(
        settings,
        Pipeline(settings),
        build_definitions(settings),
        dg.DagsterInstance.ephemeral(),
        policy,
    )


def keys_of_days(pipeline: Pipeline, days: Iterable[date]) -> list[PartitionKey]:
    return [PartitionKey(day, tile) for day in sorted(days) for tile in pipeline.definition.tiles]


def lake_places(pipeline: Pipeline, keys: list[PartitionKey]) -> Places:
    found: Places = {}
    for key in keys:
        rows = pipeline.lake.read(key).rows
        names = list(zip(rows["collection"].to_pylist(), rows["item_id"].to_pylist(), strict=True))
        assert len(set(names)) == len(names)
        for name in names:
            found.setdefault(name, set()).add(key)
    return found


def count_outcomes(report: IngestReport) -> dict[str, int]:
    return {
        name: sum(getattr(stream, name) for stream in report.streams)
        for name in ("items", "landed", "outside", "known", "older")
    } | {"quarantined": sum(count for s in report.streams for _, count in s.quarantined)}


def require_every_item_has_an_outcome(report: IngestReport, count: int) -> dict[str, int]:
    outcomes = count_outcomes(report)
    assert outcomes["items"] == count
    ends = ("landed", "outside", "known", "older", "quarantined")
    assert sum(outcomes[name] for name in ends) == count, outcomes
    for stream in report.streams:
        assert all(reason for reason, _ in stream.quarantined)
    return outcomes


# ---------------------------------------------------------------- Sentinel-2 over HTTP into PostGIS


@pytest.fixture(scope="module")
def sentinel2(real_data: Path) -> list[Item]:
    items = read_items(real_data / "items" / "sentinel-2.ndjson.gz")
    chosen = [item for item in items if item.get("collection") == COLLECTION]
    assert len(chosen) == 177
    return chosen


@dataclass(frozen=True)
class Ingested:
    """The raw lake and state after one ingest, to be copied for each policy."""

    base: Path
    report: IngestReport
    url: str


@pytest.fixture(scope="module")
def ingested(
    tmp_path_factory: pytest.TempPathFactory, pgstac_server: PgstacServer, sentinel2: list[Item]
) -> Ingested:
    pgstac_server.load(COLLECTION, sentinel2)
    base = tmp_path_factory.mktemp("raw")
    report = run_ingest(sentinel2_settings(base, sentinel2, pgstac_server.url))
    assert report.errors == ()
    return Ingested(base, report, pgstac_server.url)


def sentinel2_settings(base: Path, items: list[Item], url: str, **changes: Any) -> Settings:
    stream = {
        "url": url,
        "collection": COLLECTION,
        "page_limit": 25,
        "window_days": 4000,
        "finality": {"rule": "lag", "hours": 48},
        "requests_per_s": 1000,
    }
    caps = {"stac_requests_per_s": 1000}
    return settings_of(base, items, zoom=2, streams=[stream], caps=caps, **changes)


@pytest.fixture
def copies(
    ingested: Ingested, sentinel2: list[Item], postgis_url: str, tmp_path: Path
) -> Iterator[Any]:
    """Makes a run of a policy on its own copy of what was ingested."""
    opened: list[Run] = []

    def copy_for(policy: PolicyName) -> Run:
        base = tmp_path / policy
        shutil.copytree(ingested.base, base)
        settings = sentinel2_settings(
            base, sentinel2, ingested.url, warehouse_url=postgis_url, warehouse_schema=policy
        )
        url = make_url(postgis_url).set(drivername="postgresql+psycopg")
        migrate_warehouse(url, schema=policy)
        opened.append(open_run(settings, policy))
        return opened[-1]

    yield copy_for
    for run in opened:
        run.close()


@pytest.mark.stac
@pytest.mark.postgres
def test_pages_of_25_bring_every_item_and_a_frontier(
    ingested: Ingested, sentinel2: list[Item]
) -> None:
    outcomes = require_every_item_has_an_outcome(ingested.report, len(sentinel2))
    assert outcomes["quarantined"] == 0
    assert ingested.report.streams[0].pages >= len(sentinel2) // 25
    frontier = ingested.report.frontier
    assert frontier is not None
    assert frontier.covers(max(map(day_of, sentinel2)))


def busiest_days(items: Iterable[Item], count: int | None) -> list[date]:
    """The days with most Items, or every day that has one."""
    return [day for day, _ in Counter(map(day_of, items)).most_common(count)]


def some_or_all(count: int) -> Any:
    """Cases: the busiest days, and in the long run all of the 125."""
    cases = [count, pytest.param(None, marks=pytest.mark.full)]
    return pytest.mark.parametrize("count", cases, ids=[f"{count} days", "all days"])


@pytest.mark.stac
@pytest.mark.postgres
@some_or_all(25)
def test_every_landed_item_is_in_its_partitions_in_lake_and_table(
    copies: Any, sentinel2: list[Item], count: int | None
) -> None:
    run = copies("batched")
    days = busiest_days(sentinel2, count)
    keys = keys_of_days(run.pipeline, days)
    waves = run.launch(keys)
    assert [len(wave.choice.chosen) for wave in waves] == [len(keys), len(keys)]
    in_lake = lake_places(run.pipeline, keys)
    expected = expected_places(sentinel2, winning_items(run.pipeline), zoom=2)
    assert in_lake == {
        name: places for name, places in expected.items() if {key.day for key in places} <= {*days}
    }
    counted = run.pipeline.warehouse.count_rows(keys)
    rows = {key: run.pipeline.lake.read(key).rows.num_rows for key in keys}
    assert {key: counted.get(key, 0) for key in keys} == rows
    assert sum(rows.values()) == sum(map(len, in_lake.values())) >= len(days)
    # Nothing is left to do, and a second launch says so.
    again = run.launch(keys)
    assert [len(wave.choice.chosen) for wave in again] == [0, 0]
    assert all(wave.stored is None for wave in again)


def winning_items(pipeline: Pipeline) -> set[Name]:
    """Items that the registry calls current, neither superseded by a twin nor gone."""
    placed = sa.select(t.placements.c.collection, t.placements.c.item_id).distinct()
    with pipeline.state.connect() as connection:
        return {(row.collection, row.item_id) for row in connection.execute(placed)}


@pytest.mark.stac
@pytest.mark.postgres
@some_or_all(4)
def test_the_three_policies_give_equal_files_and_rows(
    copies: Any, sentinel2: list[Item], count: int | None
) -> None:
    busiest = busiest_days(sentinel2, count)
    outcomes, runs = [], []
    for policy in ("per_partition", "batched", "single_run"):
        run = copies(policy)
        keys = keys_of_days(run.pipeline, busiest)
        waves = run.launch(keys)
        files = {key: run.pipeline.store.read(run.pipeline.lake.path(key)) for key in keys}
        rows = {key: run.pipeline.warehouse.read(key).to_pylist() for key in keys}
        outcomes.append((files, rows))
        runs.append(len(waves[0].stored.plan.runs))
        assert run.launch(keys)[0].stored is None
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert sum(map(len, outcomes[0][1].values())) >= len(busiest)
    # 16 tiles a day: one run a key, one a day (16 of at most 20 keys), one a stretch of days.
    stretches = sum(day - timedelta(days=1) not in busiest for day in busiest)
    assert runs == [16 * len(busiest), len(busiest), stretches]


# ---------------------------------------------------------------- Landsat and Sentinel-1 from files


@pytest.mark.parametrize(("name", "zoom"), [("landsat.ndjson.gz", 1), ("sentinel-1.ndjson", 2)])
def test_every_item_of_a_file_ends_landed_outside_or_quarantined(
    real_data: Path, tmp_path: Path, name: str, zoom: int
) -> None:
    path = real_data / "items" / name
    items = read_items(path)
    collections = Counter(item.get("collection") for item in items)
    stray = collections.pop(None)
    end = max(map(day_of, items)) + timedelta(days=1)
    streams = [
        {
            "name": f"archive-{number}",
            "path": str(path),
            "collection": collection,
            "options": {"complete_through": end.isoformat()},
        }
        for number, collection in enumerate(collections)
    ]
    settings = settings_of(tmp_path, items, zoom=zoom, streams=streams)
    report = run_ingest(settings)
    assert report.errors == ()
    # Members without a Collection are given to every stream, and each stream accounts for them.
    outcomes = require_every_item_has_an_outcome(report, len(items) + stray * (len(streams) - 1))
    assert outcomes["landed"] > len(items) // 2

    run = open_run(settings, "batched")
    keys = keys_of_days(run.pipeline, {day_of(item) for item in items})
    build_without_dagster(run.pipeline, keys)
    in_lake = lake_places(run.pipeline, keys)
    names = winning_items(run.pipeline)
    assert in_lake == expected_places(items, names, zoom=zoom)
    counted = run.pipeline.warehouse.count_rows(keys)
    assert sum(counted.values()) == sum(map(len, in_lake.values()))

    # The busiest days again, as runs: nothing changes, and every key is done.
    some = keys_of_days(run.pipeline, busiest_days(items, 5))
    for wave in run.launch(some):
        assert wave.account is not None
        outcomes = {state: len(found) for state, found in wave.account.by_outcome.items() if found}
        assert outcomes == {"done": len(some)}
    assert lake_places(run.pipeline, keys) == in_lake
    run.close()


def build_without_dagster(pipeline: Pipeline, keys: list[PartitionKey]) -> None:
    """What the assets' runs do, without 14 ms of events a key."""
    for maker in (FootprintMaker(pipeline), TableMaker(pipeline)):
        done = set()
        for key, made in maker.make(keys):
            assert not isinstance(made, Exception), (key, made)
            for stored_key, stored in maker.store([made]):
                assert not isinstance(stored, Exception), (key, stored)
                done.add(stored_key)
        assert done == set(keys)
