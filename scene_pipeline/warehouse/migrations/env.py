"""Alembic's entry point; `warehouse.migrate` hands over the connection and the schema."""

from __future__ import annotations

from alembic import context

from scene_pipeline.warehouse.tables import VERSION_TABLE, build_tables

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    target_metadata=build_tables(attributes["schema"]).metadata,
    version_table=VERSION_TABLE,
    version_table_schema=attributes["schema"],
    include_schemas=True,
)
with context.begin_transaction():
    context.run_migrations()
