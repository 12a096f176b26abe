"""Alembic's entry: one transaction over the engine that `state.database` hands in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from scene_pipeline.state.database import transact
from scene_pipeline.state.tables import metadata

# Any constant does: two migrations of one PostgreSQL database take turns.
_LOCK = 7_310_401


def _migrate(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    context.configure(connection=connection, target_metadata=metadata)
    context.run_migrations()


transact(context.config.attributes["engine"], _migrate)
