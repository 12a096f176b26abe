"""A launch that kills itself with SIGKILL just before its n-th write to either database."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa

from scene_pipeline.backfill.assets import FOOTPRINTS, choose_policy
from scene_pipeline.backfill.selection import Selection
from scene_pipeline.backfill.waves import DaemonExecutor, launch_waves
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline_tests.services.in_process import load_workspace
from scene_pipeline_tests.services.small_region import SmallRegion

BATCH = 2
_WRITES = ("INSERT", "UPDATE", "DELETE")


def launch(region: SmallRegion, instance: dg.DagsterInstance, keys: Sequence[PartitionKey]) -> None:
    """Queue the runs of ``keys``, as ``backfill launch --no-wait`` does."""
    with load_workspace(instance, region.base / "small_defs.py") as workspace:
        launch_waves(
            region.site(instance),
            DaemonExecutor(workspace, wait=False),
            policies={FOOTPRINTS: choose_policy(FOOTPRINTS, region.policies, "batched")},
            keys={FOOTPRINTS: keys},
            selection=Selection(),
            advance=lambda *_: None,
        )


def _launch_and_die(
    base: Path, state_url: str, keys: Sequence[PartitionKey], die_at: int, writes: Any
) -> None:
    region = SmallRegion(base, state_url=state_url, batched=BATCH)
    with dg.DagsterInstance.from_config(str(base / "home")) as instance:
        region.engine.connect().close()

        def count(_: object, __: object, statement: str, *___: object) -> None:
            words = statement.split()
            if words[0] not in _WRITES:
                return
            writes.append(" ".join(words[:3]))
            if len(writes) == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

        sa.event.listen(sa.Engine, "before_cursor_execute", count)
        launch(region, instance, keys)


class DyingLauncher:
    """Launches in processes that are forked from a clean server: imports are paid once."""

    def __init__(self, base: Path, state_url: str) -> None:
        self._where = (base, state_url)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._manager = self._context.Manager()

    def launch(self, keys: Sequence[PartitionKey], *, die_at: int = 0) -> list[str]:
        """The writes that were reached; the last one of a killed process was not executed."""
        writes = self._manager.list()
        child = self._context.Process(
            target=_launch_and_die, args=(*self._where, list(keys), die_at, writes)
        )
        child.start()
        child.join()
        assert child.exitcode == (-signal.SIGKILL if die_at else 0), child.exitcode
        return list(writes)

    def close(self) -> None:
        """End the manager's process."""
        self._manager.shutdown()
