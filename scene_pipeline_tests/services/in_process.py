"""The daemon's part played in this process: the code location loaded, queued runs executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
from dagster._cli.workspace.cli_target import workspace_opts_to_load_target
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster_shared.cli import WorkspaceOpts

from scene_pipeline.backfill.dagster_internals import Workspace


@contextmanager
def load_workspace(instance: dg.DagsterInstance, module: Path) -> Iterator[Workspace]:
    """The code location of a definitions file, without a code server."""
    target = workspace_opts_to_load_target(
        WorkspaceOpts(python_file=(str(module),)), allow_in_process=True
    )
    with WorkspaceProcessContext(instance, target, version="") as context:
        yield context.create_request_context()


def execute_queued(
    instance: dg.DagsterInstance, find_job: Callable[[str], dg.JobDefinition]
) -> list[dg.DagsterRun]:
    """Execute every queued run under its own id; returns them as they ended."""
    queued = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]))
    for run in queued:
        starting = dg.DagsterEvent(dg.DagsterEventType.PIPELINE_STARTING.value, run.job_name)
        instance.run_storage.handle_run_event(run.run_id, starting)
        started = instance.get_run_by_id(run.run_id)
        assert started is not None
        execute_run(InMemoryJob(find_job(run.job_name)), started, instance, raise_on_error=False)
    return list(instance.get_runs(dg.RunsFilter(run_ids=[run.run_id for run in queued])))
