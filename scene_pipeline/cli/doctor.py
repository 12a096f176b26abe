"""``doctor``: is everything in place, and what to do where it is not."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from scene_pipeline.cli.console import Console, pass_console, shorten_path
from scene_pipeline.errors import ScenePipelineError, UnavailableError
from scene_pipeline.settings import load_settings

if TYPE_CHECKING:
    from scene_pipeline.defs.pipeline import Pipeline

__all__ = ["Finding", "doctor", "examine", "split_area"]

Level = Literal["ok", "warning", "fault"]
_COLOURS: Mapping[Level, str] = {"ok": "green", "warning": "yellow", "fault": "red"}


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
            lead = f"{finding.level:<8}"
            console.line(
                f"{finding.subject:<11}{finding.text}", lead=lead, style=_COLOURS[finding.level]
            )
            if finding.advice:
                console.line(f"{'':<8}to do: {finding.advice}")
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
        "settings": _examine_settings,
        "definition": _examine_definition,
        "state": _examine_state,
        "lake": _examine_lake,
        "warehouse": _examine_warehouse,
        "dagster": _examine_dagster,
        "streams": _examine_streams,
        "clock": _examine_clock,
        "disk": _examine_disk,
    }
    for subject, look in subjects.items():
        try:
            yield from look(pipeline)
        except ScenePipelineError as error:
            gone = isinstance(error, UnavailableError)
            where = f" ({error.where})" if error.where else ""
            yield Finding(subject, "fault", f"{error.what}{where}", error.next_step, gone)


def _examine_settings(pipeline: Pipeline) -> Iterator[Finding]:
    from scene_pipeline.settings import find_config

    found = find_config() or "no file: the demo's defaults and the environment"
    yield Finding("settings", "ok", f"region {pipeline.region}, {found}")


def _examine_definition(pipeline: Pipeline) -> Iterator[Finding]:
    from scene_pipeline.defs.partitions import WARN_KEYS, measure_definition

    definition = pipeline.definition
    size = measure_definition(definition, today=datetime.now(UTC).date())
    text = f"{size.keys:,} keys: {len(definition.tiles)} tiles from {definition.start}"
    if size.keys <= WARN_KEYS:
        yield Finding("definition", "ok", text)
        return
    crossing = f"; 100,000 come on {size.crosses_on}" if size.crosses_on else ""
    areas = split_area(pipeline.grid.columns, parts=-(-size.keys // WARN_KEYS))
    advice = (
        f"{len(areas)} regions of their own name, settings file and code location "
        "(infra/README.md): " + "; ".join(f"west {west:g}, east {east:g}" for west, east in areas)
        if len(areas) > 1
        else "choose a lower zoom or a later start_date: one column of tiles is not split"
    )
    level: Level = "fault" if size.too_many else "warning"
    yield Finding("definition", level, f"{text}{crossing}", advice)


def split_area(columns: Sequence[tuple[float, float]], *, parts: int) -> list[tuple[float, float]]:
    """(west, east) of at most ``parts`` regions that share the grid's ``columns`` out, in order."""
    count = min(parts, len(columns))
    cuts = [len(columns) * number // count for number in range(count + 1)]
    return [(columns[first][0], columns[end - 1][1]) for first, end in itertools.pairwise(cuts)]


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
        yield Finding("lake", "ok", f"{shorten_path(where)} can be written, read and deleted")
    else:
        yield Finding("lake", "fault", f"{where} gave back other bytes than were written")


def _examine_warehouse(pipeline: Pipeline) -> Iterator[Finding]:
    pipeline.require_migrated()
    yield Finding("warehouse", "ok", f"{shorten_path(pipeline.warehouse_address)}, migrated")
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
        yield from _examine_rights(pipeline)


# What a role must not be allowed, asked of the server as that role.
_TOO_MUCH = {
    "may alter the tables": "has_schema_privilege(:schema, 'CREATE')",
    "may write": "has_table_privilege(:footprints, 'INSERT, UPDATE, DELETE, TRUNCATE')",
}


def _examine_rights(pipeline: Pipeline) -> Iterator[Finding]:
    import sqlalchemy as sa

    from scene_pipeline.warehouse.quoting import quote_name

    settings, schema = pipeline.settings, pipeline.settings.warehouse_schema
    names = {"schema": schema, "footprints": quote_name(schema, "scene_footprints")}
    roles = (
        ("warehouse_url", settings.warehouse_engine_url, ["may alter the tables"]),
        ("warehouse_reader_url", settings.warehouse_reader_engine_url, list(_TOO_MUCH)),
    )
    for setting, url, wrongs in roles:
        if url is None:
            continue
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            for wrong in wrongs:
                if connection.execute(sa.text(f"SELECT {_TOO_MUCH[wrong]}"), names).scalar():
                    advice = "connect as the role that `migrate --with-roles` makes for it"
                    text = f"{url.username}, of {setting}, {wrong}"
                    yield Finding("warehouse", "warning", text, advice)


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
    yield Finding("dagster", "ok", shorten_path(str(find_home(settings))))
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


# A certificate is for the time at which its traversal began: a clock that is ahead lies.
_CLOCK_S = 5.0
_LEAST_BYTES, _LEAST_SHARE = 2**30, 0.1


def _examine_clock(pipeline: Pipeline) -> Iterator[Finding]:
    import sqlalchemy as sa

    if pipeline.state.dialect.name != "postgresql":
        yield Finding("clock", "ok", "one machine, one clock")
        return
    with pipeline.state.connect() as connection:
        before = datetime.now(UTC)
        theirs: datetime = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
        ours = before + (datetime.now(UTC) - before) / 2
    apart = (ours - theirs).total_seconds()
    text = f"{apart:+.1f} s against the state database's server"
    if abs(apart) > _CLOCK_S:
        yield Finding("clock", "fault", text, "run a time service (chrony) on every machine")
    else:
        yield Finding("clock", "ok", text)


def _examine_disk(pipeline: Pipeline) -> Iterator[Finding]:
    import shutil

    from scene_pipeline.defs.home import find_home

    local = {"Dagster's home": find_home(pipeline.settings)}
    if "://" not in pipeline.settings.lake:
        local["the lake"] = Path(pipeline.settings.lake).absolute()
    for name, folder in local.items():
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        usage = shutil.disk_usage(existing)
        text = f"{usage.free / 2**30:,.1f} GiB free for {name}"
        if usage.free < _LEAST_BYTES:
            yield Finding("disk", "fault", text, "free some, or `scene-pipeline expire` and gc")
        elif usage.free < _LEAST_SHARE * usage.total:
            yield Finding("disk", "warning", f"{text}, under a tenth", "plan a larger disk")
        else:
            yield Finding("disk", "ok", text)


def _examine_streams(pipeline: Pipeline) -> Iterator[Finding]:
    from scene_pipeline.ingest.streams import BARREN

    views = pipeline.list_streams(now=datetime.now(UTC))
    for view in views:
        if view.state == "blocked" and view.membership in {"member", "joining"}:
            yield Finding(
                "streams",
                "fault",
                f"{view.stream} is blocked: {view.reason}",
                "scene-pipeline ingest run",
            )
        elif view.stalled_for is not None:
            days = view.stalled_for.total_seconds() / 86_400
            text = f"{view.stream} is alive, but has had nothing new for {days:.1f} days"
            yield Finding(
                "streams", "warning", text, "ask the provider; scene-pipeline streams list"
            )
        elif view.is_barren:
            yield Finding(
                "streams", "warning", f"{view.stream}: {BARREN}", "scene-pipeline streams list"
            )
        elif view.membership == "member" and not view.is_configured:
            text = f"{view.stream} holds the frontier, and the settings do not name it"
            yield Finding(
                "streams", "warning", text, "scene-pipeline streams leave, or streams retire"
            )
        else:
            yield Finding("streams", "ok", f"{view.stream}, {view.membership}")
    configured = {stream.name for stream in pipeline.settings.streams}
    for name in sorted(configured - {view.stream for view in views}):
        yield Finding("streams", "ok", f"{name} joins with the first ingest")
