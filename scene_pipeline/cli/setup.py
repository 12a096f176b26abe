"""``init``, ``migrate`` and ``dev``: everything that is done before the first run."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from scene_pipeline.cli.console import Console, pass_console, shorten_path
from scene_pipeline.settings import load_settings

__all__ = ["dev", "init", "migrate"]

_WORKSPACE = Path("workspace.yaml")


@click.command()
@pass_console
def init(console: Console) -> None:
    """Check the settings and prepare Dagster's folder, pool limits and the state database.

    Safe to repeat; run it again after caps or the region changed. A PostgreSQL database is only
    checked, and refused where it is behind: `migrate` changes it.
    """
    from scene_pipeline.defs.home import find_home, open_instance, set_pool_limits
    from scene_pipeline.defs.partitions import require_size
    from scene_pipeline.defs.pipeline import Pipeline

    settings = load_settings()
    pipeline = Pipeline(settings)
    size = require_size(pipeline.definition, today=datetime.now(UTC).date())
    pipeline.require_migrated()
    state = pipeline.state.url.render_as_string(hide_password=True)
    with open_instance(settings) as instance:
        limits = set_pool_limits(instance, settings)
    document = {
        "region": settings.region,
        "partition_keys": size.keys,
        "crosses_100000_on": size.crosses_on,
        "dagster_home": find_home(settings),
        "pools": limits,
        "state": state,
        "lake": settings.lake,
    }

    def show() -> None:
        console.line(f"region {settings.region}: {size.keys:,} partition keys")
        if size.crosses_on:
            console.line(f"  100,000 keys, where Dagster slows down, come on {size.crosses_on}")
        console.line(f"Dagster home  {shorten_path(str(document['dagster_home']))}")
        console.line(f"state         {state}")
        console.line(f"lake          {settings.lake}")
        for pool, limit in limits.items():
            console.line(f"pool {pool:<9}{limit} at once")

    console.result(document, show)


@click.command()
@click.option("--with-roles", is_flag=True, help="Create the owner, writer and reader roles too.")
@click.option("--check", is_flag=True, help="Change nothing; exit with 2 where one is behind.")
@pass_console
def migrate(console: Console, *, with_roles: bool, check: bool) -> None:
    """Bring the state database and the warehouse to this version's schema.

    Connect as the owner; SQLite and GeoPackage need nothing and are left as they are. Services
    start after `migrate --check`, so that a new version never meets an old schema.
    """
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.state.database import migrate_state

    settings = load_settings()
    if check:
        Pipeline(settings).require_migrated()
    else:
        migrate_state(settings.state_engine_url)
    done = {"state": settings.state_engine_url.render_as_string(hide_password=True)}
    url = settings.warehouse_engine_url
    if url is not None and not check:
        from scene_pipeline.warehouse.migrate import migrate_warehouse
        from scene_pipeline.warehouse.roles import Roles

        roles = Roles(writer_limit=settings.caps.postgis_writers)
        migrate_warehouse(url, schema=settings.warehouse_schema, roles=roles, with_roles=with_roles)
    if url is not None:
        done["warehouse"] = url.render_as_string(hide_password=True)

    def show() -> None:
        for name, where in done.items():
            console.line(f"{name:<10}{where} is up to date")

    console.result(done, show)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def dev(options: tuple[str, ...]) -> None:
    """Start Dagster's web server, daemon and code server on this machine.

    OPTIONS go to `dagster dev`, for example --port 3001. The UI is on http://127.0.0.1:3000.
    """
    from scene_pipeline.defs.home import find_home, open_instance
    from scene_pipeline.defs.pipeline import Pipeline

    settings = load_settings()
    Pipeline(settings).require_migrated()
    open_instance(settings).dispose()
    target = (
        ["-w", str(_WORKSPACE)] if _WORKSPACE.exists() else ["-m", "scene_pipeline.definitions"]
    )
    # Dagster's first word would be that this command of its own is superseded.
    quiet = "ignore:Function `dev_command` is superseded"
    environment = {**os.environ, "DAGSTER_HOME": str(find_home(settings))}
    click.echo("starting Dagster; its page answers after some seconds, ctrl-c ends all", err=True)
    command = [sys.executable, "-W", quiet, "-m", "dagster", "dev", *target, *options]
    os.execve(sys.executable, command, environment)  # noqa: S606  our own interpreter
