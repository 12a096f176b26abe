"""Dagster's two silent losses in job backfills of days and tiles, and what we do about each.

What they assert of Dagster is its fault: when one of them fails after an upgrade,
Dagster is cured, and decision 0001 can be chosen again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from scene_pipeline.backfill.assets import FOOTPRINTS
from scene_pipeline.backfill.audit import audit_backfills
from scene_pipeline.backfill.selection import LAUNCHABLE, Selection
from scene_pipeline.backfill.tags import RANGE_END_TAG, RANGE_START_TAG
from scene_pipeline_tests.services.dagster_faults import BACKFILL_ID
from scene_pipeline_tests.services.small_region import (
    START,
    SmallRegion,
    launch_here,
    make_instance,
    window,
)

_PLAIN = """\
import dagster as dg
{imports}
tiles = dg.StaticPartitionsDefinition([f"t{{number:02d}}" for number in range({tiles})])
days = dg.DailyPartitionsDefinition("2024-06-01")

@dg.asset(
    partitions_def={kind}({{"date": days, "tile": tiles}}),
    backfill_policy=dg.BackfillPolicy.multi_run(4),
)
def made(context: dg.AssetExecutionContext) -> None:
    pass

defs = dg.Definitions(
    assets=[made], jobs=[dg.define_asset_job("job", [made.key])], executor=dg.in_process_executor
)
"""
PLAIN, OURS = "dg.MultiPartitionsDefinition", "ScenePartitions"


def write_plain(base: Path, tiles: int, kind: str = PLAIN) -> tuple[Path, list[str]]:
    """A definitions file of ``tiles`` days and tiles, and its keys; `PLAIN` has no code of ours."""
    ours = f"from scene_pipeline.defs.partitions import {kind}" if kind == OURS else ""
    module = base / "plain.py"
    module.write_text(_PLAIN.format(tiles=tiles, kind=kind, imports=ours))
    days = [date(2024, 6, 1) + timedelta(days=number) for number in range(tiles)]
    return module, [f"{day}|t{tile:02d}" for day in days for tile in range(tiles)]


def drive(base: Path, module: Path, job: str, keys: Iterable[str], *options: str) -> str:
    """Run Dagster's backfill of ``keys`` in a process of its own; returns how it ended."""
    (base / "keys").write_text("\n".join(keys))
    root = str(Path(__file__).resolve().parents[2])
    subprocess.run(
        [
            sys.executable, "-m", "scene_pipeline_tests.services.dagster_faults",
            str(base / "home"), str(module), job, str(base / "keys"), *options,
        ],
        env={**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": "3"},
        stdout=subprocess.DEVNULL,
        check=True,
    )  # fmt: skip
    with dg.DagsterInstance.from_config(str(base / "home")) as instance:
        backfill = instance.get_backfill(BACKFILL_ID)
        assert backfill is not None
        return backfill.status.name


def made_by(base: Path) -> Counter[str]:
    with dg.DagsterInstance.from_config(str(base / "home")) as instance:
        events = instance.fetch_materializations(dg.AssetKey("made"), limit=1000).records
        return Counter(str(record.partition_key) for record in events)


@pytest.mark.parametrize(("kind", "done"), [(PLAIN, 1), (OURS, 9)])
def test_the_tag_fault_and_its_cure(tmp_path: Path, kind: str, done: int) -> None:
    """Plain: 3 runs, 1 of 9 keys done three times, COMPLETED_SUCCESS. Ours: 9 of 9, once each."""
    make_instance(tmp_path).dispose()
    module, keys = write_plain(tmp_path, 3, kind)
    assert drive(tmp_path, module, "job", keys, "--execute") == "COMPLETED_SUCCESS"
    assert len(made_by(tmp_path)) == done
    if done == len(keys):
        assert made_by(tmp_path) == Counter(keys)


def test_the_fifty_range_fault_on_a_plain_definition(tmp_path: Path) -> None:
    """16 x 16 keys in batches of 4: dozens are in no run's range, COMPLETED_SUCCESS."""
    make_instance(tmp_path).dispose()
    module, keys = write_plain(tmp_path, 16)
    assert drive(tmp_path, module, "job", keys) == "COMPLETED_SUCCESS"
    with dg.DagsterInstance.from_config(str(tmp_path / "home")) as instance:
        ranges = [
            (run.tags[RANGE_START_TAG].split("|"), run.tags[RANGE_END_TAG].split("|"))
            for run in instance.get_runs()
        ]
    covered = [
        key
        for key in keys
        for start, end in ranges
        if start[0] <= key.split("|")[0] <= end[0] and start[1] <= key.split("|")[1] <= end[1]
    ]
    assert len(covered) == len(set(covered)), "no key in two runs"
    assert len(covered) < len(keys), "cured: every key is in a run"


def test_the_fifty_range_fault_is_found_named_and_made_good(tmp_path: Path) -> None:
    """16 x 16 keys in batches of 4: keys that no run ever had, and COMPLETED_SUCCESS."""
    tiles = tuple(f"t{number:02d}" for number in range(16))
    region = SmallRegion(tmp_path, batched=4, tiles=tiles)
    region.publish(START + timedelta(days=20))
    keys = window(16, tiles)
    begun = datetime.now(UTC)
    with make_instance(tmp_path) as instance:
        # Runs are ended without being executed: what they had planned is failed, not lost.
        ended = drive(
            tmp_path, region.write_module(), "scenes_batched_job", [str(key) for key in keys]
        )
        assert ended == "COMPLETED_SUCCESS"
        site = region.site(instance)
        (lost,), through = audit_backfills(site, ended_after=begun, now=datetime.now(UTC))
        states = region.states(instance, FOOTPRINTS, keys)
        missing = [key for key, state in states.items() if state == "missing"]
        assert (lost.backfill_id, lost.asset) == (BACKFILL_ID, FOOTPRINTS)
        assert sorted(lost.keys) == sorted(missing) != []
        assert through > begun
        (wave,) = launch_here(
            region, instance, lost.keys, policy="single_run", assets=[FOOTPRINTS],
            selection=Selection(states=frozenset(LAUNCHABLE)),
        )  # fmt: skip
        assert wave.account is not None
        assert sorted(wave.account.by_outcome["done"]) == sorted(lost.keys)
        assert audit_backfills(site, ended_after=begun, now=datetime.now(UTC))[0] == []
    region.engine.dispose()
