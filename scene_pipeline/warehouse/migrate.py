"""Migrations of the PostGIS warehouse, up and down, in any schema of any database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.engine import URL

from scene_pipeline.errors import MigrationError, WarehouseUnavailableError
from scene_pipeline.warehouse.quoting import quote_name
from scene_pipeline.warehouse.roles import Roles, apply_grants, create_roles
from scene_pipeline.warehouse.tables import REVISION, build_tables

__all__ = ["migrate_warehouse"]

_MIGRATION_LOCK = 0x5CE7E5  # any constant: two migrations of one database take turns


def migrate_warehouse(
    url: URL,
    *,
    schema: str,
    revision: str = REVISION,
    roles: Roles | None = None,
    with_roles: bool = False,
) -> str:
    """Bring ``schema`` to ``revision`` (``base`` removes all), in one transaction.

    ``url`` is the owner's. Creates the schema, and the extension where the role may; grants what
    writer and reader need if they exist, and creates them first ``with_roles``. Returns
    ``revision``. Raises `MigrationError`, `WarehouseUnavailableError`.
    """
    roles = roles or Roles()
    where = f"schema {schema} of {url.render_as_string(hide_password=True)}"
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    try:
        with engine.begin() as connection:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            _find_postgis(connection, where)
            connection.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
            if with_roles:
                create_roles(connection, roles)
            config = Config()
            config.set_main_option("script_location", "scene_pipeline.warehouse:migrations")
            config.attributes.update(connection=connection, schema=schema)
            if revision == "base":
                command.downgrade(config, revision)
            else:
                command.upgrade(config, revision)
            if revision != "base":
                _describe_columns(connection, schema)
                apply_grants(connection, roles, schema=schema)
    except sa.exc.OperationalError as error:
        raise WarehouseUnavailableError(
            str(error.orig).strip(), where=where, next_step="check the server, then migrate again"
        ) from error
    except sa.exc.ProgrammingError as error:
        raise MigrationError(
            str(error.orig).strip(),
            where=where,
            next_step="migrate as the role that owns the schema; nothing was changed",
        ) from error
    return revision


def _describe_columns(connection: sa.Connection, schema: str) -> None:
    """Each column's comment is its text in the one schema, as of the version that migrates."""
    for table in build_tables(schema).metadata.tables.values():
        for column in table.columns:
            if column.comment:
                connection.execute(sa.schema.SetColumnComment(column))


def _find_postgis(connection: sa.Connection, where: str) -> None:
    """Put PostGIS's schema, wherever it is, on this transaction's search path, and no other."""
    query = sa.text(
        "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'postgis'"
    )
    home = connection.scalar(query)
    if home is None:
        try:
            connection.execute(sa.text("CREATE EXTENSION postgis"))
        except sa.exc.DBAPIError as error:
            raise MigrationError(
                f"the database has no PostGIS: {str(error.orig).strip()}",
                where=where,
                next_step="have a superuser run CREATE EXTENSION postgis in it",
            ) from error
        home = connection.scalar(query)
    quoted = quote_name(str(home))
    connection.execute(sa.text("SELECT set_config('search_path', :path, true)"), {"path": quoted})
