"""The PostGIS tables, from the one schema, in a schema of the operator's choice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from geoalchemy2 import Geometry
from sqlalchemy.dialects import postgresql as pg

from scene_pipeline.scenes.schema import GEOMETRY, STORAGE_SRID, Column
from scene_pipeline.warehouse.rows import GEOMETRY_COLUMN, TABLE_COLUMNS

__all__ = ["REVISION", "VERSION_TABLE", "Tables", "build_tables"]

REVISION = "0001"
"""The migration that this version of the code needs."""

VERSION_TABLE = "schema_revision"
_TYPES: dict[Any, Any] = {
    pa.string(): sa.Text(),
    pa.date32(): sa.Date(),
    pa.timestamp("us", tz="UTC"): sa.DateTime(timezone=True),
    pa.float64(): sa.Double(),
    pa.int64(): sa.BigInteger(),
    pa.list_(pa.string()): pg.ARRAY(sa.Text),
}
_KEY = ("region", "acq_date", "tile")
_ITEM = ("item_id", "collection")
# Keys are compared by bytes: a language's rules cost time and differ between servers.
KEY_TEXT = sa.Text(collation="C")


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables as SQLAlchemy sees them; ``current_scenes`` is a view beside them."""

    metadata: sa.MetaData
    footprints: sa.Table
    versions: sa.Table
    revision: sa.Table


def _column_type(column: Column) -> Any:
    if column is GEOMETRY:
        return Geometry("MULTIPOLYGON", srid=STORAGE_SRID, spatial_index=False)
    if column.name == "properties":
        return pg.JSONB()
    if column.name in {*_KEY, *_ITEM} and column.type == pa.string():
        return KEY_TEXT
    return _TYPES[column.type]


@lru_cache
def build_tables(schema: str) -> Tables:
    """The tables in ``schema``; every name is quoted where it needs to be."""
    metadata = sa.MetaData(schema=schema)
    footprints = sa.Table(
        "scene_footprints",
        metadata,
        *(
            sa.Column(
                GEOMETRY_COLUMN if column is GEOMETRY else column.name,
                _column_type(column),
                nullable=column.nullable,
                comment=column.doc,
            )
            for column in TABLE_COLUMNS
        ),
        # The Item leads: most comparisons end at its first column, and one index serves both the
        # key and the search for an Item. Equal keys of the other index are stored once a page, so
        # the pair costs a fifth less than a key led by the partition and an index on the Item.
        sa.PrimaryKeyConstraint(*_ITEM, *_KEY, name="pk_scene_footprints"),
        sa.Index("ix_scene_footprints_partition", *_KEY),
        sa.Index("ix_scene_footprints_geom", GEOMETRY_COLUMN, postgresql_using="gist"),
    )
    versions = sa.Table(
        "partition_versions",
        metadata,
        sa.Column("region", KEY_TEXT, nullable=False),
        sa.Column("acq_date", sa.Date, nullable=False),
        sa.Column("tile", KEY_TEXT, nullable=False),
        sa.Column("raw_seq", sa.BigInteger, nullable=False, comment="raw version stored"),
        sa.Column("row_count", sa.BigInteger, nullable=False, comment="rows stored; may be 0"),
        sa.Column(
            "replaced_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
        ),
        sa.PrimaryKeyConstraint(*_KEY, name="pk_partition_versions"),
    )
    # Alembic keeps it; it stands apart so that a comparison of schemas does not see it.
    revision = sa.Table(
        VERSION_TABLE, sa.MetaData(schema=schema), sa.Column("version_num", sa.String(32))
    )
    return Tables(metadata, footprints, versions, revision)
