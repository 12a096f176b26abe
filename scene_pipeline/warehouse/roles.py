"""Three database roles: the owner migrates, writers are counted by the server, readers read.

The writer's ``CONNECTION LIMIT`` is the wall behind Dagster's pool: whatever starts writers, the
server lets in no more. Superusers pass it, so the pipeline should not connect as one.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from scene_pipeline.warehouse.quoting import literal_statement, quote_name
from scene_pipeline.warehouse.tables import VERSION_TABLE

__all__ = ["Roles", "apply_grants", "create_roles", "grant_statements", "role_statements"]


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of the roles; ``writer_limit`` is how many writers may be connected at once."""

    owner: str = "scenes_owner"
    writer: str = "scenes_writer"
    reader: str = "scenes_reader"
    writer_limit: int = 4


def role_statements(roles: Roles, *, database: str) -> list[str]:
    """What an administrator runs once; passwords are set apart, with ``\\password``."""
    owner, writer, reader = map(quote_name, (roles.owner, roles.writer, roles.reader))
    return [
        f"CREATE ROLE {owner} LOGIN",
        f"CREATE ROLE {writer} LOGIN CONNECTION LIMIT {roles.writer_limit}",
        f"CREATE ROLE {reader} LOGIN",
        f"GRANT CONNECT, CREATE ON DATABASE {quote_name(database)} TO {owner}",
        f"GRANT CONNECT ON DATABASE {quote_name(database)} TO {writer}, {reader}",
    ]


def grant_statements(roles: Roles, *, schema: str) -> list[str]:
    """What the owner grants after each migration; running it again changes nothing."""
    writer, reader = quote_name(roles.writer), quote_name(roles.reader)
    both = f"{writer}, {reader}"
    footprints, versions, view, revision = (
        quote_name(schema, name)
        for name in ("scene_footprints", "partition_versions", "current_scenes", VERSION_TABLE)
    )
    return [
        f"GRANT USAGE ON SCHEMA {quote_name(schema)} TO {both}",
        f"GRANT SELECT ON {footprints}, {versions}, {view}, {revision} TO {both}",
        f"GRANT INSERT, DELETE ON {footprints} TO {writer}",
        f"GRANT INSERT, UPDATE, DELETE ON {versions} TO {writer}",
    ]


def create_roles(connection: sa.Connection, roles: Roles) -> None:
    """Create the roles that are missing and set the writer's limit; needs ``CREATEROLE``."""
    database = str(connection.scalar(sa.select(sa.func.current_database())))
    present = _find_roles(connection, roles)
    for statement in role_statements(roles, database=database):
        if not any(statement.startswith(f"CREATE ROLE {quote_name(name)} ") for name in present):
            connection.execute(literal_statement(statement))
    limit = f"ALTER ROLE {quote_name(roles.writer)} CONNECTION LIMIT {roles.writer_limit}"
    connection.execute(literal_statement(limit))


def apply_grants(connection: sa.Connection, roles: Roles, *, schema: str) -> bool:
    """Grant, if writer and reader both exist; returns whether they do."""
    if not {roles.writer, roles.reader} <= _find_roles(connection, roles):
        return False
    for statement in grant_statements(roles, schema=schema):
        connection.execute(literal_statement(statement))
    return True


def _find_roles(connection: sa.Connection, roles: Roles) -> set[str]:
    catalog = sa.table("pg_roles", sa.column("rolname", sa.String), schema="pg_catalog")
    names = (roles.owner, roles.writer, roles.reader)
    return set(connection.scalars(sa.select(catalog.c.rolname).where(catalog.c.rolname.in_(names))))
