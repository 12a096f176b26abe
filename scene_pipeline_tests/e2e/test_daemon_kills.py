"""The sensor and the monitor of a real daemon, killed at their work, on SQLite and PostgreSQL."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
import pytest

from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, TrackedAsset, choose_policy
from scene_pipeline.backfill.dagster_internals import open_workspace
from scene_pipeline.backfill.diagnose import diagnose_backfill
from scene_pipeline.backfill.selection import Selection
from scene_pipeline.backfill.tags import BACKFILL_TAG
from scene_pipeline.backfill.waves import DaemonExecutor, Wave, launch_waves
from scene_pipeline_tests.services.dagster import DagsterServices, run_services, wait_until
from scene_pipeline_tests.services.small_region import REGION, START, SmallRegion, window

pytestmark = pytest.mark.daemon


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
)
def sensed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SmallRegion, DagsterServices]]:
    """A daemon whose sensor is on, on either storage."""
    base = tmp_path_factory.mktemp(request.param)
    urls = ["", ""]
    if request.param == "postgres":
        cluster = request.getfixturevalue("postgres")
        urls = [cluster.url(cluster.new_database()) for _ in range(2)]
    region = SmallRegion(base, state_url=urls[0], batched=6, pause_minutes=0.05)
    keys = window(2)
    region.land(keys[:7])
    module = region.write_module(running=True)
    with run_services(base, module, postgres_url=urls[1], look_every_s=2) as services:
        yield region, services
    region.engine.dispose()


def test_the_sensor_builds_covered_days_and_a_killed_daemon_doubles_nothing(
    sensed: tuple[SmallRegion, DagsterServices],
) -> None:
    region, services = sensed
    keys, last = window(2), date(2024, 6, 2)
    region.publish(last)
    region.hold_runs(START, last)
    services.start_daemon()
    wait_until(lambda: services.instance.get_runs_count() >= 1, "the sensor's first run")
    services.kill("daemon")
    region.hold_runs()
    services.start_daemon()

    def all_done(asset: TrackedAsset) -> bool:
        states = region.states(services.instance, asset, keys).values()
        return set(states) <= {"materialized", "empty"}

    wait_until(lambda: all_done(FOOTPRINTS) and all_done(TABLE), "both assets done", every_s=1)

    def rows_closed() -> bool:
        rows = services.instance.get_backfills()
        return len(rows) >= 2 and {row.status.name for row in rows} <= {
            "COMPLETED_SUCCESS",
            "COMPLETED_FAILED",
        }

    wait_until(rows_closed, "a closed row a wave", every_s=1)
    executed = Counter(region.executed())
    # The run that the killed daemon took along may have begun a key; none was made twice.
    assert set(executed) == {(a.name, str(key)) for a in (FOOTPRINTS, TABLE) for key in keys}
    for asset in (FOOTPRINTS, TABLE):
        events = services.instance.fetch_materializations(
            dg.AssetKey([REGION, asset.name]), limit=100
        ).records
        assert Counter(r.partition_key for r in events) == Counter(map(str, keys))


def test_kill_9_of_a_run_worker_keeps_what_it_did(
    sensed: tuple[SmallRegion, DagsterServices],
) -> None:
    """The monitor ends its run; what was done stays done, and the next launch takes the rest."""
    region, services = sensed
    # Ahead of the frontier, so that the sensor leaves them alone.
    keys = window(1, "fedc", first=30)
    region.slow_down(1.0)

    def launch(workspace: Any, *, wait: bool) -> Wave:
        (wave,) = launch_waves(
            region.site(services.instance),
            DaemonExecutor(workspace, wait=wait),
            policies={FOOTPRINTS: choose_policy(FOOTPRINTS, region.policies)},
            keys={FOOTPRINTS: keys},
            selection=Selection(states=frozenset({"missing", "failed"}), ahead=True),
            advance=lambda *_: None,
        )
        return wave

    with open_workspace(
        services.instance, workspace_file=str(services.workspace), module=""
    ) as workspace:
        killed = launch(workspace, wait=False)
        assert killed.stored is not None
        (run,) = services.instance.get_runs(
            dg.RunsFilter(tags={BACKFILL_TAG: killed.stored.plan.plan_id})
        )

        def count_done() -> int:
            kind = dg.DagsterEventType.ASSET_MATERIALIZATION
            return len(services.instance.all_logs(run.run_id, of_type=kind))

        wait_until(lambda: count_done() >= 2, "two keys done", every_s=0.05)
        os.kill(find_worker(services.instance, run.run_id), signal.SIGKILL)
        region.slow_down(0)
        services.wait_for_runs(dg.RunsFilter(run_ids=[run.run_id]), 1)
        (account,) = diagnose_backfill(
            region.site(services.instance), killed.stored.plan.plan_id, now=datetime.now(UTC)
        )
        assert 2 <= len(account.by_outcome["done"]) < 4
        assert account.by_cause == {"killed": len(account.undone)}
        again = launch(workspace, wait=True)
        assert again.stored is not None
        assert {planned.key for planned in again.stored.plan.keys} == set(account.undone)
        assert again.account is not None
        assert again.account.clean


def find_worker(instance: dg.DagsterInstance, run_id: str) -> int:
    """The process that executes a run, which it says itself."""
    for entry in instance.all_logs(run_id):
        if "Executing steps in process (pid: " in entry.message:
            return int(entry.message.split("pid: ")[1].split(")")[0])
    raise AssertionError(f"run {run_id} names no process")
