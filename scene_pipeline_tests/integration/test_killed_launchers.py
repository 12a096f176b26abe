"""kill -9 of a launching process before each of its writes, on SQLite and on PostgreSQL storage.

Afterwards the next launch finds every run once, every key planned once, one row, no open plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from scene_pipeline.backfill.assets import FOOTPRINTS
from scene_pipeline.backfill.plan_store import read_open_plans
from scene_pipeline.backfill.tags import BACKFILL_TAG
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.state import tables as t
from scene_pipeline_tests.services.dying_launcher import BATCH, DyingLauncher, launch
from scene_pipeline_tests.services.in_process import execute_queued
from scene_pipeline_tests.services.small_region import (
    REGION,
    START,
    SmallRegion,
    make_instance,
    window,
)


class Scene:
    """A region on one storage, its instance, and a launcher that dies."""

    def __init__(self, base: Path, *, state_url: str = "", postgres_url: str = "") -> None:
        self.region = SmallRegion(base, state_url=state_url, batched=BATCH)
        self.region.publish(START + timedelta(days=80))
        self.region.write_module()
        self.instance = make_instance(base, postgres_url=postgres_url)
        self.launcher = DyingLauncher(base, self.region.state_url)
        self._days = 0

    def next_keys(self) -> list[PartitionKey]:
        """Four keys that no launch has had: two runs."""
        self._days += 1
        return window(1, "fedc", first=self._days)

    def expire_claims(self) -> None:
        """The lease of a dead process runs out."""
        with self.region.engine.begin() as connection:
            connection.execute(t.claims.update().values(expires_at=t.claims.c.taken_at))

    def close(self) -> None:
        self.launcher.close()
        self.instance.dispose()
        self.region.engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    urls = ["", ""]
    if request.param == "postgres":
        cluster = request.getfixturevalue("postgres")
        urls = [cluster.url(cluster.new_database()) for _ in range(2)]
    made = Scene(tmp_path, state_url=urls[0], postgres_url=urls[1])
    yield made
    made.close()


# Among claiming, storing the plan, each run's row, tags, planned events and queueing, the row.
_STEPS = (
    "INSERT INTO plans",
    "INSERT INTO run_tags",
    "INSERT INTO asset_keys",
    "INSERT INTO bulk_actions",
    "UPDATE plans SET",
)


def steps_of(writes: list[str], *, every: bool) -> list[int]:
    """Which write to die before, counted from 1: all of them, or the first of each step."""
    if every:
        return list(range(1, len(writes) + 1))
    second_run = [n for n, write in enumerate(writes, 1) if write == "INSERT INTO runs"][1]
    return sorted([*(writes.index(step) + 1 for step in _STEPS), second_run])


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_launcher_killed_at_any_step_is_made_good_by_the_next_launch(
    scene: Scene, *, every: bool
) -> None:
    # The first launch also writes what is written once; the second shows the steps of each.
    scene.launcher.launch(scene.next_keys())
    writes = scene.launcher.launch(scene.next_keys())
    for die_at in steps_of(writes, every=every):
        keys = scene.next_keys()
        reached = scene.launcher.launch(keys, die_at=die_at)
        assert len(reached) == die_at
        planned = bool(read_open_plans(scene.region.engine, region=REGION))
        if not planned:
            scene.expire_claims()
        launch(scene.region, scene.instance, keys)
        runs = [run for run in scene.instance.get_runs() if str(keys[0].day) in str(run.tags)]
        assert len(runs) == 2, reached[-1]
        assert {run.status.name for run in runs} == {"QUEUED"}
        (plan_id,) = {run.tags[BACKFILL_TAG] for run in runs}
        row = scene.instance.get_backfill(plan_id)
        assert row is not None, reached[-1]
        assert list(row.partition_names or []) == [str(key) for key in keys]
        assert read_open_plans(scene.region.engine, region=REGION) == []
        states = scene.region.states(scene.instance, FOOTPRINTS, keys)
        assert set(states.values()) == {"in progress"}
    find_job = scene.region.build_definitions().resolve_job_def
    runs = execute_queued(scene.instance, find_job)
    assert {run.status.name for run in runs} == {"SUCCESS"}
    executed = Counter(scene.region.executed())
    assert set(executed.values()) == {1}
    assert len(executed) == 2 * len(runs)
