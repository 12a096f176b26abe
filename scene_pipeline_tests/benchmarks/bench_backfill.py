"""Backfills: what planning costs in a large archive, and what a run costs a key."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa
from dagster._core.storage.event_log.schema import AssetEventTagsTable, SqlEventLogStorageTable

from scene_pipeline.backfill.assets import FOOTPRINTS, choose_policy
from scene_pipeline.backfill.key_states import read_key_states
from scene_pipeline.backfill.launch import Place
from scene_pipeline.backfill.plan import plan_runs
from scene_pipeline.backfill.selection import Selection, choose_keys
from scene_pipeline.backfill.ticks import Cursor, evaluate_tick
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.state import tables as t
from scene_pipeline_tests.benchmarks.harness import Result, benchmark, compare
from scene_pipeline_tests.services.small_region import (
    REGION,
    START,
    SmallRegion,
    make_instance,
)

TILES = tuple(f"t{number:03d}" for number in range(300))
ROUNDS = 9


class Archive:
    """A region of 300 tiles with ``days`` days materialized, but for the last thirty's gaps."""

    def __init__(self, base: Path, days: int, *, tiles: tuple[str, ...] = TILES) -> None:
        base.mkdir(parents=True, exist_ok=True)
        self.region = SmallRegion(base, tiles=tiles, start=START - timedelta(days=days - 30))
        self.instance = make_instance(base)
        self.last = START + timedelta(days=29)
        self.region.publish(self.last)

    def keys(self) -> Iterator[PartitionKey]:
        """Every key up to the last day."""
        return self.region.definition.iter_window(self.region.definition.start, self.last)

    def seed(self, *, gap_every: int = 10) -> None:
        """Events of every key, in bulk; of the last thirty days each tenth key is missing."""
        made = [
            str(key)
            for number, key in enumerate(self.keys())
            if key.day < START or number % gap_every
        ]
        asset = dg.AssetKey([REGION, FOOTPRINTS.name]).to_string()
        at = datetime(2024, 7, 1)  # noqa: DTZ001  as Dagster stores it
        storage = self.instance.event_log_storage
        with storage.index_connection() as connection:  # type: ignore[attr-defined]
            for kind in ("ASSET_MATERIALIZATION_PLANNED", "ASSET_MATERIALIZATION"):
                for part in _parts(made):
                    connection.execute(
                        SqlEventLogStorageTable.insert(),
                        [
                            {
                                "run_id": "seed", "event": "{}", "dagster_event_type": kind,
                                "timestamp": at, "asset_key": asset, "partition": name,
                            }
                            for name in part
                        ],
                    )  # fmt: skip
            connection.execute(
                sa.insert(AssetEventTagsTable).from_select(
                    ["event_id", "asset_key", "key", "value", "event_timestamp"],
                    sa.select(
                        SqlEventLogStorageTable.c.id,
                        SqlEventLogStorageTable.c.asset_key,
                        sa.literal("dagster/data_version"),
                        sa.literal("1.3.1"),
                        SqlEventLogStorageTable.c.timestamp,
                    ).where(
                        SqlEventLogStorageTable.c.dagster_event_type == "ASSET_MATERIALIZATION"
                    ),
                )
            )
            connection.commit()
        with self.region.engine.begin() as connection:
            for keys in _parts(list(self.keys())):
                connection.execute(
                    t.raw_versions.insert(),
                    [
                        {
                            "region": REGION, "day": key.day, "tile": key.tile,
                            "raw_seq": 1, "reported_seq": 1,
                        }
                        for key in keys
                    ],
                )  # fmt: skip

    def plan(self, days: int = 30) -> int:
        """Plan the last ``days`` days, as `backfill plan` does; returns the keys to run."""
        keys = self.region.definition.iter_window(self.last - timedelta(days=days - 1), self.last)
        site = self.region.site(self.instance)
        states = read_key_states(site, FOOTPRINTS, keys=keys, now=datetime.now(UTC))
        policy = choose_policy(FOOTPRINTS, self.region.policies, "single_run")
        choice = choose_keys(states, Selection())
        plan = plan_runs(choice, self.region.definition, asset=FOOTPRINTS, policy=policy)
        return len(plan.keys)

    def tick(self) -> int:
        """One tick of the sensor over the newest day; what it stored is taken back."""
        tick = evaluate_tick(
            self.region.site(self.instance),
            cursor=Cursor(self.last - timedelta(days=1)),
            policies=self.region.policies,
            bounds=self.region.settings.sensor,
            now=datetime.now(UTC),
            place=Place(),
        )
        with self.region.engine.begin() as connection:
            connection.execute(t.plans.delete())
            connection.execute(t.claims.delete())
        return len(tick.requested)


def _parts(items: Sequence[Any], size: int = 20_000) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


@contextmanager
def seeded(*days: int, tiles: tuple[str, ...] = TILES) -> Iterator[list[Archive]]:
    """Archives of these many days, seeded, in a folder that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        archives = [Archive(Path(folder) / str(count), count, tiles=tiles) for count in days]
        for archive in archives:
            archive.seed()
        yield archives
        for archive in archives:
            archive.instance.dispose()
            archive.region.engine.dispose()


def _measure_peak(base: Path, days: int) -> float:
    """Peak memory, in MB, of a process that plans once."""
    code = (
        "import sys; from pathlib import Path;"
        "from scene_pipeline_tests.benchmarks.bench_backfill import Archive;"
        "from scene_pipeline_tests.services.memory import peak_rss_mb;"
        "Archive(Path(sys.argv[1]), int(sys.argv[2])).plan(); print(peak_rss_mb())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, str(base), str(days)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    return float(answer.stdout)


@benchmark("plan_1m_vs_10k")
def bench_plan() -> Result:
    """Planning 30 days of 300 tiles: with a million keys materialized, and with ten thousand."""
    with seeded(3334, 34) as (large, small):
        assert large.plan() == small.plan() == 900
        extra = {
            "peak_mb_1m": _measure_peak(large.region.base, 3334),
            "peak_mb_10k": _measure_peak(small.region.base, 34),
        }
        return compare(large.plan, small.plan, rounds=ROUNDS, target=1.3, extra=extra)


@benchmark("tick_100k_vs_1k")
def bench_tick() -> Result:
    """A tick that launches a day of 25 tiles: with 100,000 keys behind it, and with 1,000."""
    with seeded(4000, 40, tiles=TILES[:25]) as (large, small):
        assert large.tick() == small.tick() > 0
        return compare(large.tick, small.tick, rounds=ROUNDS, target=1.3)
