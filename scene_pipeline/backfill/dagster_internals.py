"""Every import of Dagster that is not public API, and the guards that it needs.

The reads are windowed: their cost follows the keys asked for, not the archive. Dagster takes an
empty window for the whole archive (2.3 s of 1 M keys), and SQLite refuses a statement of too many
parameters (32,766 where it was not built for more); both are met here. A test loads and calls each
name, so that an upgrade of Dagster fails here, by name.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import dagster as dg
import sqlalchemy as sa
from dagster._core.errors import DagsterRunAlreadyExists
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from dagster._core.execution.backfill import (
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
)
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemotePartitionSetOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.storage.event_log.schema import SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.runs.schema import RunTagsTable

from scene_pipeline.backfill.tags import REGION_TAG
from scene_pipeline.backfill.versions import DATA_VERSION_TAG
from scene_pipeline.errors import UsageError

__all__ = [
    "FINISHED_BACKFILLS",
    "BulkActionStatus",
    "EventFact",
    "JobToRun",
    "PartitionBackfill",
    "Workspace",
    "add_backfill_row",
    "create_planned_run",
    "is_daemon_beating",
    "list_backfills",
    "load_job",
    "open_workspace",
    "plan_run_id",
    "read_event_facts",
    "read_latest_positions",
    "read_latest_versions",
    "report_planned",
    "restore_run_tags",
]

_WINDOW = 30_000
_HEARTBEAT_S = 120.0

EventKind = Literal["materialized", "planned"]
_EVENT_TYPES: dict[EventKind, dg.DagsterEventType] = {
    "materialized": dg.DagsterEventType.ASSET_MATERIALIZATION,
    "planned": dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
}

FINISHED_BACKFILLS = (
    BulkActionStatus.COMPLETED,
    BulkActionStatus.COMPLETED_SUCCESS,
    BulkActionStatus.COMPLETED_FAILED,
    BulkActionStatus.CANCELED,
    BulkActionStatus.FAILED,
)

# `dagster._core.workspace.context.BaseWorkspaceRequestContext`
Workspace = Any


def _parts(window: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The window in parts that a statement can carry; none at all for an empty window."""
    for start in range(0, len(window), _WINDOW):
        yield window[start : start + _WINDOW]


def _sql_storage(instance: dg.DagsterInstance) -> SqlEventLogStorage:
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        raise UsageError(
            f"key states cannot be read from {type(storage).__name__}",
            where="dagster.yaml, storage",
            next_step="use Dagster's SQLite or PostgreSQL storage",
        )
    return storage


def read_latest_positions(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, kind: EventKind, keys: Sequence[str]
) -> dict[str, int]:
    """Position in the event log of each key's latest event; a key without one is absent."""
    storage = _sql_storage(instance)
    found: dict[str, int] = {}
    for part in _parts(keys):
        found.update(
            storage.get_latest_storage_id_by_partition(
                asset_key, _EVENT_TYPES[kind], partitions=set(part)
            )
        )
    return found


def read_latest_versions(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, keys: Sequence[str]
) -> dict[str, str]:
    """Data version of each key's latest materialization, where it has one."""
    storage = _sql_storage(instance)
    found: dict[str, str] = {}
    for part in _parts(keys):
        tags = storage.get_latest_tags_by_partition(
            asset_key,
            dg.DagsterEventType.ASSET_MATERIALIZATION,
            [DATA_VERSION_TAG],
            asset_partitions=list(part),
        )
        found.update({key: by_tag[DATA_VERSION_TAG] for key, by_tag in tags.items()})
    return found


@dataclass(frozen=True, slots=True)
class EventFact:
    """Which run sent an event, and when (aware UTC)."""

    run_id: str
    at: datetime


def read_event_facts(
    instance: dg.DagsterInstance, positions: Sequence[int]
) -> dict[int, EventFact]:
    """Run and time of each event; reads two columns instead of whole events of 1 ms each."""
    columns = SqlEventLogStorageTable.c
    found: dict[int, EventFact] = {}
    with _sql_storage(instance).index_connection() as connection:
        for part in _parts(positions):
            rows = connection.execute(
                sa.select(columns.id, columns.run_id, columns.timestamp).where(columns.id.in_(part))
            )
            found.update(
                (position, EventFact(run_id, at.replace(tzinfo=UTC)))
                for position, run_id, at in rows
            )
    return found


def is_daemon_beating(instance: dg.DagsterInstance) -> bool:
    """Whether a daemon that starts queued runs gave a sign of life lately (it does each 30 s)."""
    beat = instance.get_daemon_heartbeats().get("QUEUED_RUN_COORDINATOR")
    return beat is not None and time.time() - beat.timestamp < _HEARTBEAT_S


def plan_run_id(plan_id: str, index: int) -> str:
    """The id of a plan's run: the same wherever it is created, so that it exists once."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"scene-pipeline/{plan_id}/{index}"))


@contextmanager
def open_workspace(
    instance: dg.DagsterInstance, *, workspace_file: str | None, module: str
) -> Iterator[Workspace]:
    """The code location as the daemon sees it: of ``workspace_file``, else of ``module``.

    Starts a code server where the workspace does not name a running one.
    """
    # Costly to load, and only launchers need it: run workers load this module too.
    from dagster._cli.workspace.cli_target import get_workspace_from_cli_opts
    from dagster_shared.cli import WorkspaceOpts

    options = (
        WorkspaceOpts(workspace=(workspace_file,))
        if workspace_file
        else WorkspaceOpts(module_name=(module,))
    )
    with get_workspace_from_cli_opts(
        instance, version=dg.__version__, workspace_opts=options, log_level="WARNING"
    ) as workspace:
        yield workspace


@dataclass(frozen=True, slots=True)
class JobToRun:
    """A job as its code location describes it; asked for once, whatever the number of runs."""

    location: Any
    repository: Any
    job: Any
    execution_plan: Any

    @property
    def place(self) -> tuple[str, str]:
        """Names of the code location and repository."""
        return self.location.name, self.repository.name


def load_job(
    instance: dg.DagsterInstance, workspace: Workspace, job_name: str, *, region: str
) -> JobToRun:
    """The region's job of that name; raises `UsageError` where no code location has it."""
    for location in workspace.code_locations:
        for repository in location.get_repositories().values():
            if repository.has_job(job_name):
                job = repository.get_full_job(job_name)
                if (job.run_tags or {}).get(REGION_TAG, region) != region:
                    continue
                plan = location.get_execution_plan(
                    job, {}, step_keys_to_execute=None, known_state=None, instance=instance
                )
                return JobToRun(location, repository, job, plan.execution_plan_snapshot)
    raise UsageError(
        f"no code location of the workspace has a job {job_name} of region {region}",
        where="workspace.yaml",
        next_step="name the workspace file of this region with --workspace",
    )


def create_planned_run(
    instance: dg.DagsterInstance,
    workspace: Workspace,
    to_run: JobToRun,
    *,
    run_id: str,
    tags: Mapping[str, str],
) -> None:
    """Create and submit one run, as the sensor daemon does; one that exists stays as it is.

    The run's planned events are written here, one a key.
    """
    job = to_run.job
    with suppress(DagsterRunAlreadyExists):
        instance.create_run(
            job_name=job.name,
            run_id=run_id,
            run_config={},
            resolved_op_selection=None,
            step_keys_to_execute=None,
            status=dg.DagsterRunStatus.NOT_STARTED,
            op_selection=None,
            root_run_id=None,
            parent_run_id=None,
            tags={**(job.run_tags or {}), **tags},
            job_snapshot=job.job_snapshot,
            execution_plan_snapshot=to_run.execution_plan,
            parent_job_snapshot=job.parent_job_snapshot,
            remote_job_origin=job.get_remote_origin(),
            job_code_origin=job.get_python_origin(),
            asset_selection=None,
            asset_check_selection=None,
            asset_graph=to_run.repository.asset_graph,
        )
    run = instance.get_run_by_id(run_id)
    if run is not None and run.status == dg.DagsterRunStatus.NOT_STARTED:
        instance.submit_run(run_id, workspace)


def restore_run_tags(
    instance: dg.DagsterInstance, job_name: str, *, tags: Mapping[str, str], since: datetime
) -> list[dg.DagsterRun]:
    """Runs of a job that carry ``tags`` and cannot be found by them: now they can.

    On PostgreSQL Dagster commits a run before its tags; who was killed in between left one.
    """
    named = dg.RunsFilter(job_name=job_name, created_after=since)
    found_by_tags = {run.run_id for run in instance.get_runs(dg.RunsFilter(tags=dict(tags)))}
    hidden = [
        run
        for run in instance.get_runs(named)
        if run.run_id not in found_by_tags and tags.items() <= run.tags.items()
    ]
    rows = [
        {"run_id": run.run_id, "key": key, "value": value}
        for run in hidden
        for key, value in run.tags.items()
    ]
    if rows:
        with instance.run_storage.connect() as connection:  # type: ignore[attr-defined]
            connection.execute(RunTagsTable.insert(), rows)
    return hidden


def report_planned(
    instance: dg.DagsterInstance, run: dg.DagsterRun, asset_key: dg.AssetKey, keys: Sequence[str]
) -> None:
    """Write the planned events that whoever created the run did not live to write."""
    for key in keys:
        event = DagsterEvent.build_asset_materialization_planned_event(
            run.job_name,
            asset_key.to_python_identifier(),
            AssetMaterializationPlannedData(asset_key, partition=key),
        )
        instance.report_dagster_event(event, run.run_id)


def add_backfill_row(
    instance: dg.DagsterInstance,
    *,
    backfill_id: str,
    status: BulkActionStatus,
    title: str,
    tags: Mapping[str, str],
    job_name: str,
    location_name: str,
    repository_name: str,
    asset_key: dg.AssetKey,
    keys: Sequence[str],
    started_at: datetime,
) -> bool:
    """Show a plan whose runs exist on the Backfills page; False where the row is there already.

    With the last key as its checkpoint the daemon submits nothing: it follows the tagged runs,
    cancels them when asked, and closes the row when the last one ends. Without
    ``asset_selection`` beside the origin the row would stay open for ever.
    """
    ended = status in FINISHED_BACKFILLS
    repository = RemoteRepositoryOrigin(
        code_location_origin=RegisteredCodeLocationOrigin(location_name=location_name),
        repository_name=repository_name,
    )
    row = PartitionBackfill(
        backfill_id=backfill_id,
        status=status,
        from_failure=False,
        tags=dict(tags),
        backfill_timestamp=started_at.timestamp(),
        title=title,
        asset_selection=[asset_key],
        partition_set_origin=RemotePartitionSetOrigin(
            repository_origin=repository, partition_set_name=f"{job_name}_partition_set"
        ),
        partition_names=list(keys),
        last_submitted_partition_name=keys[-1],
        backfill_end_timestamp=time.time() if ended else None,
    )
    try:
        instance.add_backfill(row)
    except sa.exc.IntegrityError:
        return False
    return True


def list_backfills(
    instance: dg.DagsterInstance,
    *,
    statuses: Sequence[BulkActionStatus],
    since: datetime,
    limit: int | None = None,
) -> list[PartitionBackfill]:
    """Backfills of any origin, created since an instant, newest first."""
    found = instance.get_backfills(
        filters=BulkActionsFilter(statuses=list(statuses), created_after=since.astimezone(UTC)),
        limit=limit,
    )
    return list(found)
