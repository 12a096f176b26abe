"""Dagster's own job backfill, driven to its end without a daemon process.

Run as a program, because what it loses depends on the hash seed of the process that plans::

    PYTHONHASHSEED=3 python -m scene_pipeline_tests.services.dagster_faults HOME MODULE JOB KEYS

KEYS is a file of one key a line. The backfill's id is `faulty`. With ``--execute`` the runs are
executed; else each is ended as a success as soon as it is queued.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from pathlib import Path

import dagster as dg
from dagster._cli.workspace.cli_target import workspace_opts_to_load_target
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon.backfill import execute_backfill_iteration
from dagster_shared.cli import WorkspaceOpts

BACKFILL_ID = "faulty"


def backfill_job(home: Path, module: Path, job_name: str, keys: Path, *, execute: bool) -> None:
    """Request every key of the file, and play the daemon until the backfill is no more open."""
    # Without postponed annotations, which would be inherited from here.
    namespace: dict[str, dg.Definitions] = {"__name__": "loaded"}
    exec(compile(module.read_text(), str(module), "exec", dont_inherit=True), namespace)
    job = namespace["defs"].resolve_job_def(job_name)
    target = workspace_opts_to_load_target(
        WorkspaceOpts(python_file=(str(module),)), allow_in_process=True
    )
    with (
        dg.DagsterInstance.from_config(str(home)) as instance,
        WorkspaceProcessContext(instance, target, version="") as context,
    ):
        (location,) = context.create_request_context().code_locations
        (repository,) = location.get_repositories().values()
        origin = repository.get_partition_set(f"{job_name}_partition_set").get_remote_origin()
        instance.add_backfill(
            PartitionBackfill(
                BACKFILL_ID, BulkActionStatus.REQUESTED, from_failure=False, tags={},
                backfill_timestamp=time.time(), partition_set_origin=origin,
                partition_names=keys.read_text().splitlines(),
            )
        )  # fmt: skip
        while _is_open(instance):
            list(execute_backfill_iteration(context, logging.getLogger("faults")))
            for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])):
                if execute:
                    own = {
                        name: value for name, value in run.tags.items() if "backfill" not in name
                    }
                    job.execute_in_process(instance=instance, tags=own)
                event = dg.DagsterEvent(dg.DagsterEventType.PIPELINE_SUCCESS.value, job_name)
                instance.run_storage.handle_run_event(run.run_id, event)


def _is_open(instance: dg.DagsterInstance) -> bool:
    backfill = instance.get_backfill(BACKFILL_ID)
    return backfill is not None and backfill.status == BulkActionStatus.REQUESTED


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    given = [text for text in sys.argv[1:] if text != "--execute"]
    backfill_job(
        Path(given[0]), Path(given[1]), given[2], Path(given[3]), execute="--execute" in sys.argv
    )
