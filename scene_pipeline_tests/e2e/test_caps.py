"""Caps under a burst: writers that the server counts, and a daily run behind a full queue.

The table is locked by the test until every writer that the caps let through stands before it: so
the server sees them all at once, however fast each one is.
"""

from __future__ import annotations

import json
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
import sqlalchemy as sa

from scene_pipeline.backfill.assets import FOOTPRINTS
from scene_pipeline.backfill.dagster_internals import create_planned_run, load_job, open_workspace
from scene_pipeline.backfill.tags import BACKFILL_TAG, PARTITION_TAG
from scene_pipeline.defs.home import render_config
from scene_pipeline.defs.schedules import build_schedules
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.warehouse.migrate import migrate_warehouse
from scene_pipeline.warehouse.roles import Roles
from scene_pipeline_tests.services.archive_region import START, ArchiveRegion
from scene_pipeline_tests.services.dagster import DagsterServices, run_services, wait_until
from scene_pipeline_tests.services.postgres import PostgresCluster

pytestmark = [pytest.mark.daemon, pytest.mark.postgres]

AT_ONCE, CAP = 3, 2
_SETTINGS = """\
region = "alps"
start_date = {start}
end_date = {end}
# Two tiles.
area = [6.0, 45.2, 11.2, 46.9]
zoom = 7
maps = false
state_url = "sqlite:///{base}/state.db"
lake = "{base}/lake"
warehouse_url = "{warehouse_url}"
# Its checks and counts come as another role, which the cap is not about.
warehouse_reader_url = "{reader_url}"
warehouse_schema = "scenes"
dagster_home = "{base}/dagster_home"
[policies]
batched = 1
[caps]
backfill_runs = {at_once}
postgis_writers = 50
[sensor]
daily_lookback_days = 1
[[streams]]
path = "{base}/items.ndjson"
collection = "made-up"
options = {{complete_through = "{end}"}}
"""
DAYS = 8


class Burst:
    """Seven days of files, ready to be loaded into the table by seven runs; a day is left."""

    def __init__(self, base: Path, cluster: PostgresCluster) -> None:
        self.database = cluster.new_database()
        self.cluster = cluster
        named = [f"{name}_{self.database}" for name in ("owner", "writer", "reader")]
        self.roles = Roles(*named, writer_limit=50)
        url = sa.make_url(cluster.url(self.database)).set(drivername="postgresql+psycopg")
        migrate_warehouse(url, schema="scenes", roles=self.roles, with_roles=True)
        self.config = base / "scene_pipeline.toml"
        self.config.write_text(
            _SETTINGS.format(
                base=base, start=START, end=START + timedelta(days=DAYS), at_once=AT_ONCE,
                warehouse_url=cluster.url(self.database, user=self.roles.writer),
                reader_url=cluster.url(self.database, user=self.roles.reader),
            )
        )  # fmt: skip
        self.region = ArchiveRegion(base, days=DAYS, **tomllib.loads(self.config.read_text()))
        self.region.ingest(self.region.one_scene_a_key(self.region.window(DAYS)))

    @property
    def dagster_config(self) -> str:
        """Of `infra/`, but with no place beside the backfill's: only priority lets a run by."""
        text = render_config(self.region.settings)
        changes = {
            f"max_concurrent_runs: {AT_ONCE + 2}": f"max_concurrent_runs: {AT_ONCE}",
            # One after the other, so that the order in which the queue lets runs go can be read.
            "dequeue_use_threads: true": "dequeue_use_threads: false",
        }
        for old, new in changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text

    @contextmanager
    def locked_table(self) -> Iterator[None]:
        """No writer gets on for the length of the block."""
        with psycopg.connect(self.cluster.url(self.database)) as session:
            session.execute("LOCK TABLE scenes.scene_footprints IN ACCESS EXCLUSIVE MODE")
            yield

    def count_writers(self) -> int:
        """Open connections of the writer role, as the server counts them."""
        with psycopg.connect(self.cluster.url(self.database)) as session:
            counted = session.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = %s", [self.roles.writer]
            ).fetchone()
        return counted[0] if counted else 0

    def launch(self, services: DagsterServices, first: int, last: int) -> dg.RunsFilter:
        """`backfill launch --no-wait` of the table's days ``first`` to ``last``; its runs."""
        answer = services.run_command(
            "scene_pipeline", "backfill", "launch", "--asset", "footprint_table", "--no-wait",
            "--from", str(START + timedelta(days=first)), "--to",
            str(START + timedelta(days=last)), "--workspace", str(services.workspace), "--json",
        )  # fmt: skip
        (wave,) = json.loads(answer.stdout)["waves"]
        assert wave["runs"] == last - first + 1
        return dg.RunsFilter(tags={BACKFILL_TAG: wave["backfill"]})

    def start_daily_run(self, services: DagsterServices) -> dg.RunsFilter:
        """What the daily schedule asks for now, its first run alone."""
        (schedule,) = [s for s in build_schedules(self.region.pipeline) if s.name == "daily_scenes"]
        requests = schedule(dg.build_schedule_context(instance=services.instance))
        request: Any = next(iter(requests))
        with open_workspace(
            services.instance, workspace_file=str(services.workspace), module=""
        ) as workspace:
            create_planned_run(
                services.instance,
                workspace,
                load_job(services.instance, workspace, "daily_scenes_job", region="alps"),
                run_id=str(uuid.uuid4()),
                tags={**request.tags, PARTITION_TAG: request.partition_key},
            )
        return dg.RunsFilter(job_name="daily_scenes_job")


def starts(services: DagsterServices, runs: dg.RunsFilter) -> list[float]:
    """When the queue let each run go, earliest first; 0 while it waits."""
    found = []
    for run in services.instance.get_runs(runs):
        events = services.instance.get_records_for_run(
            run.run_id, of_type=dg.DagsterEventType.PIPELINE_STARTING
        ).records
        found.append(events[0].timestamp if events else 0.0)
    return sorted(found)


def test_writers_with_and_without_caps_and_a_daily_run_that_overtakes(
    tmp_path: Path, postgres: PostgresCluster
) -> None:
    burst = Burst(tmp_path, postgres)
    module = tmp_path / "location.py"
    module.write_text("from scene_pipeline.definitions import defs\n")
    with run_services(
        tmp_path,
        module,
        config=burst.dagster_config,
        environment={"SCENE_PIPELINE_CONFIG": str(burst.config)},
    ) as services:
        burst.region.instance = services.instance
        burst.region.launch(burst.region.window(DAYS - 1), FOOTPRINTS, policy="single_run")
        set_slots = services.instance.event_log_storage.set_concurrency_slots
        set_slots("postgis", 50)
        services.start_daemon()

        # Without caps every run of the backfill writes at once.
        with burst.locked_table():
            uncapped = burst.launch(services, 0, 3)
            wait_until(lambda: burst.count_writers() == AT_ONCE, "each run's writer")
            daily = burst.start_daily_run(services)
            assert starts(services, daily) == [0]
        services.wait_for_runs(uncapped, 4)
        services.wait_for_runs(daily, 1)
        began = starts(services, uncapped)
        assert began[AT_ONCE - 1] < starts(services, daily)[0] < began[AT_ONCE]

        # With them, the others wait: the queue holds back most, the role's limit is the wall.
        set_slots("postgis", CAP)
        burst.cluster.execute(f'ALTER ROLE "{burst.roles.writer}" CONNECTION LIMIT {CAP}')
        counted: list[int] = []
        with burst.locked_table():
            capped = burst.launch(services, 4, 6)
            wait_until(lambda: burst.count_writers() == CAP, "two writers")

        def all_done() -> bool:
            counted.append(burst.count_writers())
            return (
                services.instance.get_runs_count(
                    dg.RunsFilter(tags=capped.tags, statuses=[dg.DagsterRunStatus.SUCCESS])
                )
                == 3
            )

        wait_until(all_done, "the capped runs", every_s=0.05)
        assert max(counted) <= CAP
    keys: list[PartitionKey] = burst.region.window(DAYS)
    assert sum(burst.region.pipeline.warehouse.count_rows(keys).values()) == len(keys) - 1
    burst.region.pipeline.state.dispose()
