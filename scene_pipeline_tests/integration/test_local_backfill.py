"""Backfills executed in process: exact keys, one bad key, two assets, crashes, stale plans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, choose_policy
from scene_pipeline.backfill.claims import Claims
from scene_pipeline.backfill.diagnose import diagnose_backfill, diagnose_window
from scene_pipeline.backfill.key_states import read_key_states
from scene_pipeline.backfill.launch import new_launch_id, reserve_keys, reserve_plan
from scene_pipeline.backfill.local import execute_plan
from scene_pipeline.backfill.plan import plan_runs
from scene_pipeline.backfill.plan_store import launcher_here, read_open_plans
from scene_pipeline.backfill.selection import LAUNCHABLE, Selection, choose_keys
from scene_pipeline.backfill.versions import parse_data_version
from scene_pipeline.errors import SceneRejectedError, StalePlanError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.settings import PolicyName
from scene_pipeline_tests.services.dagster import wait_until
from scene_pipeline_tests.services.small_region import (
    REGION,
    START,
    SmallRegion,
    launch_here,
    make_instance,
    window,
)

POLICIES: tuple[PolicyName, ...] = ("per_partition", "batched", "single_run")
L_SHAPE = window(1, "f") + window(2, "fe", first=1)
SCATTERED = [*window(1, "fd"), *window(1, "e", first=1)]


@pytest.fixture
def region(tmp_path: Path) -> Iterator[SmallRegion]:
    small = SmallRegion(tmp_path)
    small.publish(START + timedelta(days=20))
    yield small
    small.engine.dispose()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """In memory: a home on disk costs a second, and only a second process needs one."""
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


def made(instance: dg.DagsterInstance, asset: str = "scene_footprints") -> Counter[str]:
    """How often each key was materialized."""
    events = instance.fetch_materializations(dg.AssetKey([REGION, asset]), limit=1000).records
    return Counter(record.partition_key or "" for record in events)


@pytest.mark.parametrize(
    ("keys", "runs"),
    [
        (window(2, "fed"), {"per_partition": 6, "batched": 2, "single_run": 1}),
        (SCATTERED, {"per_partition": 3, "batched": 3, "single_run": 3}),
        (L_SHAPE, {"per_partition": 5, "batched": 2, "single_run": 2}),
    ],
    ids=["full", "scattered", "L"],
)
def test_three_policies_make_the_same_keys_in_their_own_number_of_runs(
    tmp_path: Path, keys: list[PartitionKey], runs: dict[str, int]
) -> None:
    """A02, A05, A06: each key once, none that was not asked for, the same versions."""
    outcomes = []
    for policy in POLICIES:
        folder = tmp_path / policy
        folder.mkdir()
        region = SmallRegion(folder)
        region.publish(START + timedelta(days=20))
        region.land(keys[::2], raw_seq=5)
        with dg.DagsterInstance.ephemeral() as own:
            (wave,) = launch_here(region, own, keys, policy=policy, assets=[FOOTPRINTS])
            assert wave.stored is not None
            assert len(wave.stored.plan.runs) == runs[policy]
            assert own.get_runs_count() == runs[policy]
            assert made(own) == Counter(map(str, keys))
            states = read_key_states(region.site(own), FOOTPRINTS, keys=keys, now=datetime.now(UTC))
            outcomes.append({key: (s.state, s.evidence.version) for key, s in states.items()})
            (again,) = launch_here(region, own, keys, policy=policy, assets=[FOOTPRINTS])
            assert again.stored is None
            assert again.choice.by_state == {
                "materialized": len(keys[::2]),
                "empty": len(keys[1::2]),
            }
        region.engine.dispose()
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert {version for _, version in outcomes[0].values()} == {
        parse_data_version("5.3.1"),
        parse_data_version("0.0.1"),
    }


def test_one_bad_key_costs_one_key(region: SmallRegion, instance: dg.DagsterInstance) -> None:
    """A09, and row "recomputes what succeeded" of the trade's table."""
    keys = window(4)
    bad = keys[9]
    region.land(keys)
    region.break_keys({bad: SceneRejectedError})
    footprints, table = launch_here(region, instance, keys, policy="single_run")
    assert footprints.account is not None
    assert footprints.account.by_outcome["failed"] == (bad,)
    assert len(footprints.account.by_outcome["done"]) == 23
    (finding,) = footprints.account.findings
    assert (finding.cause, finding.failure.name) == ("data", "SceneRejectedError")
    assert "scene S2A_1" in finding.failure.text
    assert f"--keys '{bad}'" in finding.command
    # The table has the 23 without anyone asking, and its key waits for its footprints.
    assert table.account is not None
    assert len(table.account.by_outcome["done"]) == 23
    assert table.choice.waiting == (bad,)
    waiting = diagnose_window(region.site(instance), TABLE, keys=keys, now=datetime.now(UTC))
    assert waiting.by_cause == {"upstream missing": 1}

    before = footprints.account
    region.break_keys({})
    again, table = launch_here(
        region, instance, keys, selection=Selection(states=frozenset({"missing", "failed"}))
    )
    assert again.stored is not None
    assert [planned.key for planned in again.stored.plan.keys] == [bad]
    assert again.stored.plan.attempt == 2
    assert table.account is not None
    assert table.account.by_outcome["done"] == (bad,)
    after = diagnose_window(region.site(instance), FOOTPRINTS, keys=keys, now=datetime.now(UTC))
    assert after.clean
    assert before.count_rebuilt(after) == 0
    assert Counter(region.executed())["scene_footprints", str(bad)] == 2
    assert set(made(instance).values()) == {1}


def test_each_asset_runs_its_own_gap(region: SmallRegion, instance: dg.DagsterInstance) -> None:
    """A12: A misses {1}, B misses {2}; launch A:{1}, B:{2} and nothing else."""
    first, second = window(2, "a")
    region.land([first, second])

    def make(asset: str, key: PartitionKey) -> None:
        event = dg.AssetMaterialization(
            [REGION, asset], partition=str(key), tags={"dagster/data_version": "1.3.1"}
        )
        instance.report_runless_asset_event(event)

    make("scene_footprints", second)
    make("footprint_table", first)
    waves = launch_here(region, instance, [first, second])
    executed = region.executed()
    assert executed[0] == ("scene_footprints", str(first))
    # The table of the first key was made before its file: the file is newer now.
    assert sorted(executed[1:]) == [
        ("footprint_table", str(first)),
        ("footprint_table", str(second)),
    ]
    assert len({wave.stored.launch_id for wave in waves if wave.stored}) == 1


def test_the_table_follows_what_its_footprints_rebuilt(
    region: SmallRegion, instance: dg.DagsterInstance
) -> None:
    """An algorithm changed: only outdated keys are asked for, their table rows follow."""
    keys = window(2, "ab")
    region.land(keys)
    launch_here(region, instance, keys[:2])
    selection = Selection(states=frozenset({"materialized"}))
    footprints, table = launch_here(region, instance, keys, selection=selection)
    assert footprints.stored is not None
    assert [planned.key for planned in footprints.stored.plan.keys] == keys[:2]
    assert table.stored is not None
    assert [planned.key for planned in table.stored.plan.keys] == keys[:2]


def test_a_changed_key_is_taken_again_and_an_empty_one_fills(
    region: SmallRegion, instance: dg.DagsterInstance
) -> None:
    keys = window(1, "ab")
    launch_here(region, instance, keys)
    assert set(region.states(instance, FOOTPRINTS, keys).values()) == {"empty"}
    region.land(keys[:1], raw_seq=2)
    waves = launch_here(region, instance, keys)
    assert [[p.key for p in wave.stored.plan.keys] for wave in waves if wave.stored] == [
        keys[:1],
        keys[:1],
    ]
    assert list(region.states(instance, TABLE, keys).values()) == ["materialized", "empty"]


def test_ahead_of_the_frontier_a_key_stays_not_covered_and_is_built_once(
    region: SmallRegion, instance: dg.DagsterInstance
) -> None:
    region.publish(START)
    keys = window(1, "ab", first=3)
    ahead = Selection(ahead=True)
    launch_here(region, instance, keys, selection=ahead)
    assert set(region.states(instance, FOOTPRINTS, keys).values()) == {"not covered"}
    assert all(wave.stored is None for wave in launch_here(region, instance, keys, selection=ahead))
    region.publish(START + timedelta(days=5))
    assert set(region.states(instance, FOOTPRINTS, keys).values()) == {"empty"}


def test_a_key_claimed_by_another_live_run_is_refused_by_name_and_left_alone(
    region: SmallRegion, instance: dg.DagsterInstance
) -> None:
    """A13: a run from the UI meets a key that a run elsewhere works on."""
    keys = window(1, "abc")
    Claims(region.engine, region=REGION, asset=FOOTPRINTS.name, run_id="elsewhere").take(keys[1:2])
    job = region.build_definitions().resolve_job_def("scenes_batched_job")
    result = job.execute_in_process(
        instance=instance,
        tags={
            "dagster/asset_partition_range_start": str(keys[2]),  # declared order: f … a
            "dagster/asset_partition_range_end": str(keys[0]),
        },
        raise_on_error=False,
    )
    assert not result.success
    assert made(instance) == Counter([str(keys[0]), str(keys[2])])
    states = region.states(instance, FOOTPRINTS, keys)
    assert states[keys[1]] == "in progress"
    # Another launch leaves it to its holder.
    (wave,) = launch_here(region, instance, keys, assets=[FOOTPRINTS])
    assert (wave.stored, wave.choice.by_state["in progress"]) == (None, 1)


def test_two_launchers_at_once_start_each_key_once(
    region: SmallRegion, instance: dg.DagsterInstance
) -> None:
    """The second comes after the first has looked, and before it has created a run."""
    keys = window(2, "abc")
    site = region.site(instance)
    policy = choose_policy(FOOTPRINTS, region.policies, "batched")

    def reserve(at: list[PartitionKey]) -> tuple[list[PartitionKey], object]:
        stored, choice = reserve_keys(
            site, FOOTPRINTS, policy, keys=at, selection=Selection(),
            launcher=launcher_here("local"), launch_id=new_launch_id(), now=datetime.now(UTC),
        )  # fmt: skip
        if stored is not None:
            plans.append(stored)
        return [state.key for state in choice.chosen], stored

    plans: list[object] = []
    first, _ = reserve(keys[:4])
    second, _ = reserve(keys)
    assert (first, second) == (keys[:4], keys[4:])
    assert reserve(keys) == ([], None)
    find_job = region.build_definitions().resolve_job_def
    for stored in plans:
        execute_plan(site, stored, find_job=find_job)  # type: ignore[arg-type]
    assert made(instance) == Counter(map(str, keys))


def test_a_plan_made_earlier_is_refused_when_it_is_stale(
    region: SmallRegion, instance: dg.DagsterInstance
) -> None:
    keys = window(1, "ab")
    site = region.site(instance)
    states = read_key_states(site, FOOTPRINTS, keys=keys, now=datetime.now(UTC))
    plan = plan_runs(
        choose_keys(states, Selection()),
        region.definition,
        asset=FOOTPRINTS,
        policy=choose_policy(FOOTPRINTS, region.policies),
    )
    started = {"launcher": launcher_here("local"), "launch_id": new_launch_id()}
    region.land(keys[:1])
    with pytest.raises(StalePlanError, match="at version 1"):
        reserve_plan(site, plan, now=datetime.now(UTC), **started)  # type: ignore[arg-type]
    edited = replace(site, definition=replace(region.definition, tiles=("b", "a")))
    with pytest.raises(StalePlanError, match="made under definition"):
        reserve_plan(edited, plan, now=datetime.now(UTC), **started)  # type: ignore[arg-type]
    # A refused plan holds no claim.
    assert set(region.states(instance, FOOTPRINTS, keys).values()) == {"missing"}


def test_the_row_of_a_local_plan_tells_how_it_ended(
    region: SmallRegion, instance: dg.DagsterInstance
) -> None:
    keys = window(1, "ab")
    region.break_keys({keys[0]: SceneRejectedError})
    footprints, table = launch_here(region, instance, keys)
    rows = {row.backfill_id: row for row in instance.get_backfills()}
    assert footprints.stored is not None
    assert table.stored is not None
    row = rows[footprints.stored.plan.plan_id]
    assert row.status.name == "COMPLETED_FAILED"
    assert row.title == f"scene_footprints of small: 2 keys of {START}"
    assert list(row.partition_names or []) == [str(key) for key in keys]
    assert rows[table.stored.plan.plan_id].status.name == "COMPLETED_SUCCESS"
    assert read_open_plans(region.engine, region=REGION) == []


_CHILD = """
import sys
from pathlib import Path
from scene_pipeline_tests.services.small_region import (
    SmallRegion, launch_here, make_instance, window
)
base = Path(sys.argv[1])
with make_instance(base) as instance:
    launch_here(SmallRegion(base, batched=6), instance, window(3), policy=sys.argv[2])
"""


@pytest.mark.parametrize("policy", ["batched", "single_run"])
def test_kill_9_in_mid_batch_keeps_what_was_done(
    region: SmallRegion, tmp_path: Path, policy: PolicyName
) -> None:
    """What was done stays done; the next launch takes exactly the rest, at once."""
    instance = make_instance(tmp_path)
    keys = window(3)
    region.land(keys)
    region.slow_down(0.3)
    root = str(Path(__file__).resolve().parents[2])
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tmp_path), policy],
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(made(instance)) >= 8, "eight keys done", every_s=0.05)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    done = set(made(instance))
    assert 8 <= len(done) < 18
    assert "in progress" in region.states(instance, FOOTPRINTS, keys).values()
    region.slow_down(0)
    footprints, _ = launch_here(
        region, instance, keys, selection=Selection(states=frozenset({"missing", "failed"}))
    )
    assert footprints.stored is not None
    assert {str(p.key) for p in footprints.stored.plan.keys} == {*map(str, keys)} - done
    assert set(made(instance)) == set(map(str, keys))
    assert set(made(instance).values()) == {1}
    assert set(region.states(instance, TABLE, keys).values()) == {"materialized"}
    killed = [run for run in instance.get_runs() if run.status == dg.DagsterRunStatus.FAILURE]
    assert len(killed) == 1


def test_the_account_of_a_plan_covers_every_requested_key_once(
    region: SmallRegion, instance: dg.DagsterInstance
) -> None:
    keys = window(2)
    region.break_keys({keys[3]: SceneRejectedError})
    selection = Selection(limit=10, states=frozenset(LAUNCHABLE))
    (wave,) = launch_here(region, instance, keys, assets=[FOOTPRINTS], selection=selection)
    assert wave.stored is not None
    (account,) = diagnose_backfill(
        region.site(instance), wave.stored.plan.plan_id, now=datetime.now(UTC)
    )
    placed = [key for found in account.by_outcome.values() for key in found]
    assert sorted([*placed, *account.trimmed]) == sorted(keys)
    assert account.requested == 10
    assert list(account.trimmed) == keys[10:]
    assert account.undone == (keys[3],)
