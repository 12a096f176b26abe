"""``doctor``: is everything in place, and what to do where it is not."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import click

from scene_pipeline.cli.console import Console, pass_console
from scene_pipeline.errors import ScenePipelineError, UnavailableError
from scene_pipeline.settings import load_settings

if TYPE_CHECKING:
    from scene_pipeline.defs.pipeline import Pipeline

__all__ = ["Finding", "doctor", "examine"]

Level = Literal["ok", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; ``advice`` says what to do where it is not ok."""

    subject: str
    level: Level
    text: str
    advice: str = ""
    unavailable: bool = False


@click.command()
@pass_console
def doctor(console: Console) -> int:
    """Check settings, definition, databases, lake, Dagster's limits and the streams.

    Nothing is changed but for one small object that is written to the lake and removed again.
    Exits with 1 for faults, 3 where a service does not answer.
    """
    from scene_pipeline.defs.pipeline import Pipeline

    findings = []
    for finding in examine(Pipeline(load_settings())):
        findings.append(finding)
        if not console.as_json:
            mark = {"ok": "[green]ok     [/]", "warning": "[yellow]warning[/]"}.get(
                finding.level, "[red]fault  [/]"
            )
            console.line(f"{mark} {finding.subject:<11}{finding.text}")
            if finding.advice:
                console.line(f"        {'':<11}{finding.advice}")
    document = {
        "findings": [
            {
                "subject": finding.subject,
                "level": finding.level,
                "text": finding.text,
                "advice": finding.advice or None,
            }
            for finding in findings
        ]
    }
    console.result(document, lambda: None)
    if any(finding.unavailable for finding in findings):
        return 3
    return 1 if any(finding.level == "fault" for finding in findings) else 0


def examine(pipeline: Pipeline) -> Iterator[Finding]:
    """Every finding, in the order in which things depend on each other."""
    subjects: dict[str, Callable[[Pipeline], Iterator[Finding]]] = {
        "definition": _examine_definition,
        "state": _examine_state,
        "lake": _examine_lake,
        "warehouse": _examine_warehouse,
        "dagster": _examine_dagster,
        "streams": _examine_streams,
    }
    for subject, look in subjects.items():
        try:
            yield from look(pipeline)
        except ScenePipelineError as error:
            gone = isinstance(error, UnavailableError)
            where = f" ({error.where})" if error.where else ""
            yield Finding(subject, "fault", f"{error.what}{where}", error.next_step, gone)


def _examine_definition(pipeline: Pipeline) -> Iterator[Finding]:
    from scene_pipeline.defs.partitions import WARN_KEYS, require_size

    definition = pipeline.definition
    size = require_size(definition, today=datetime.now(UTC).date())
    text = f"{size.keys:,} keys: {len(definition.tiles)} tiles from {definition.start}"
    if size.keys > WARN_KEYS:
        advice = f"100,000 keys come on {size.crosses_on}; plan a second region before"
        yield Finding("definition", "warning", text, advice if size.crosses_on else "")
    else:
        yield Finding("definition", "ok", text)


def _examine_state(pipeline: Pipeline) -> Iterator[Finding]:
    from scene_pipeline.ingest.frontier import read_frontier

    frontier = read_frontier(pipeline.state, pipeline.region)
    where = pipeline.state.url.render_as_string(hide_password=True)
    bound = frontier and frontier.bound
    covered = f"complete through {bound.value:%Y-%m-%d %H:%M}" if bound else "no frontier yet"
    yield Finding("state", "ok", f"{where}, {covered}")


def _examine_lake(pipeline: Pipeline) -> Iterator[Finding]:
    probe = f"{pipeline.region}/doctor-{uuid.uuid4().hex}"
    content = uuid.uuid4().bytes
    pipeline.store.write(probe, content)
    try:
        same = pipeline.store.read(probe) == content
    finally:
        pipeline.store.delete(probe)
    where = pipeline.store.address(pipeline.region)
    if same:
        yield Finding("lake", "ok", f"{where} can be written, read and deleted")
    else:
        yield Finding("lake", "fault", f"{where} gave back other bytes than were written")


def _examine_warehouse(pipeline: Pipeline) -> Iterator[Finding]:
    from scene_pipeline.scenes.keys import PartitionKey

    # Any key: reading its version connects and compares the schema's revision.
    any_key = PartitionKey(pipeline.definition.start, pipeline.definition.tiles[0])
    pipeline.warehouse.read_versions([any_key])
    yield Finding("warehouse", "ok", pipeline.warehouse_address)
    url = pipeline.settings.warehouse_engine_url
    if url is not None:
        import sqlalchemy as sa

        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            role, superuser, limit, most = connection.execute(
                sa.text(
                    "SELECT rolname, rolsuper, rolconnlimit, "
                    "current_setting('max_connections')::int "
                    "FROM pg_roles WHERE rolname = current_user"
                )
            ).one()
        yield from _judge_connections(
            pipeline, role=role, superuser=superuser, limit=limit, most=most
        )


def _judge_connections(
    pipeline: Pipeline, *, role: str, superuser: bool, limit: int, most: int
) -> Iterator[Finding]:
    caps = pipeline.settings.caps
    if superuser:
        advice = "write as a role of its own: `scene-pipeline migrate --with-roles`"
        yield Finding("warehouse", "warning", f"{role} is a superuser, whom no limit stops", advice)
    elif limit != caps.postgis_writers:
        shown = "no limit" if limit < 0 else f"a limit of {limit}"
        advice = f"ALTER ROLE {role} CONNECTION LIMIT {caps.postgis_writers}"
        yield Finding(
            "warehouse",
            "warning",
            f"{role} has {shown} connections, caps.postgis_writers says {caps.postgis_writers}",
            advice,
        )
    # A run holds one writer's and one reader's connection at the most.
    wanted = 2 * (caps.backfill_runs + 2)
    if wanted >= most:
        yield Finding(
            "warehouse",
            "fault",
            f"{caps.backfill_runs + 2} runs may open {wanted} connections, the server takes {most}",
            "lower caps.backfill_runs or raise max_connections",
        )


def _examine_dagster(pipeline: Pipeline) -> Iterator[Finding]:
    from scene_pipeline.defs.home import find_home, open_instance, pool_limits

    settings = pipeline.settings
    with open_instance(settings) as instance:
        found = {p.name: p.limit for p in instance.event_log_storage.get_pool_limits()}
        frees_slots = instance.run_monitoring_enabled and bool(
            instance.get_settings("run_monitoring").get("free_slots_after_run_end_seconds")
        )
    yield Finding("dagster", "ok", str(find_home(settings)))
    for pool, limit in pool_limits(settings).items():
        if found.get(pool) != limit:
            yield Finding(
                "dagster",
                "fault",
                f"pool {pool} lets {found.get(pool, 'any number')} in, the settings say {limit}",
                "scene-pipeline init",
            )
    if not frees_slots:
        yield Finding(
            "dagster",
            "warning",
            "a killed run keeps its pool slots for ever",
            "set run_monitoring.free_slots_after_run_end_seconds in dagster.yaml",
        )


def _examine_streams(pipeline: Pipeline) -> Iterator[Finding]:
    from scene_pipeline.ingest.streams import list_streams

    configured = {stream.name for stream in pipeline.settings.streams}
    views = list_streams(
        pipeline.state, pipeline.region, configured=configured, now=datetime.now(UTC)
    )
    for view in views:
        if view.state == "blocked" and view.membership in {"member", "joining"}:
            yield Finding(
                "streams", "fault", f"{view.stream} is blocked: {view.reason}", "ingest run"
            )
        elif view.stalled_for is not None:
            days = view.stalled_for.total_seconds() / 86_400
            text = f"{view.stream} is alive, but has had nothing new for {days:.1f} days"
            yield Finding("streams", "warning", text, "ask the provider; see streams list")
        elif view.membership == "member" and not view.is_configured:
            text = f"{view.stream} holds the frontier, and the settings do not name it"
            yield Finding("streams", "warning", text, "streams leave, or streams retire")
        else:
            yield Finding("streams", "ok", f"{view.stream}, {view.membership}")
    for name in sorted(configured - {view.stream for view in views}):
        yield Finding("streams", "ok", f"{name} joins with the first ingest")
