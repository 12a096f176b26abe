"""The SQL of the PostGIS warehouse, built once a schema.

A place is the three parameters ``in_region``, ``on_day`` and ``in_tile``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from scene_pipeline.scenes.schema import GEOMETRY, Column
from scene_pipeline.warehouse.rows import GEOMETRY_COLUMN, TABLE_COLUMNS
from scene_pipeline.warehouse.tables import build_tables

__all__ = ["LOCK", "Statements", "build_statements"]

LOCK = sa.select(
    sa.func.pg_advisory_xact_lock(
        sa.bindparam("first", type_=sa.Integer), sa.bindparam("second", type_=sa.Integer)
    )
)


@dataclass(frozen=True, slots=True)
class Statements:
    """What each returns is said where it is built."""

    revision: Any
    store_version: Any
    read_version: Any
    hold_version: Any
    subtract: Any
    delete: Any
    find_moved: Any
    delete_item: Any
    read: Any
    read_versions: Any
    count_rows: Any


def _is_here(table: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(
        table.c.region == sa.bindparam("in_region"),
        table.c.acq_date == sa.bindparam("on_day", type_=sa.Date),
        table.c.tile == sa.bindparam("in_tile"),
    )


@lru_cache
def build_statements(schema: str) -> Statements:
    """The statements on the tables of ``schema``."""
    tables = build_tables(schema)
    footprints, versions = tables.footprints, tables.versions
    count = sa.func.count()
    return Statements(
        revision=sa.select(tables.revision.c.version_num),
        store_version=_build_store_version(versions),
        read_version=sa.select(versions.c.raw_seq).where(_is_here(versions)),
        hold_version=sa.select(versions.c.raw_seq).where(_is_here(versions)).with_for_update(),
        subtract=sa.update(versions)
        .where(_is_here(versions))
        .values(row_count=versions.c.row_count - sa.bindparam("taken")),
        delete=sa.delete(footprints)
        .where(_is_here(footprints))
        .returning(footprints.c.collection, footprints.c.item_id),
        find_moved=_build_find_moved(footprints),
        delete_item=sa.delete(footprints).where(
            _is_here(footprints),
            footprints.c.collection == sa.bindparam("in_collection"),
            footprints.c.item_id == sa.bindparam("with_id"),
        ),
        read=sa.select(*(_read_column(footprints, column) for column in TABLE_COLUMNS))
        .where(_is_here(footprints))
        .order_by(footprints.c.collection, footprints.c.item_id),
        read_versions=_build_by_keys(versions, versions.c.raw_seq, versions.c.row_count),
        count_rows=_build_by_keys(footprints, count).group_by(
            footprints.c.acq_date, footprints.c.tile
        ),
    )


def _build_store_version(versions: sa.Table) -> Any:
    """Returns a row where the version was stored, none where a higher one is there."""
    insert = pg.insert(versions).values(
        region=sa.bindparam("in_region"),
        acq_date=sa.bindparam("on_day"),
        tile=sa.bindparam("in_tile"),
        raw_seq=sa.bindparam("raw_seq"),
        row_count=sa.bindparam("row_count"),
    )
    return insert.on_conflict_do_update(
        constraint=versions.primary_key,
        set_={
            "raw_seq": insert.excluded.raw_seq,
            "row_count": insert.excluded.row_count,
            "replaced_at": sa.func.now(),
        },
        where=versions.c.raw_seq <= insert.excluded.raw_seq,
    ).returning(versions.c.raw_seq)


def _build_find_moved(footprints: sa.Table) -> Any:
    """Rows of other days that hold Items of the place, as the fields of `MovedRow`."""
    new, other = footprints.alias("new"), footprints.alias("other")
    is_same_item = sa.and_(
        other.c.region == new.c.region,
        other.c.collection == new.c.collection,
        other.c.item_id == new.c.item_id,
        other.c.acq_date != new.c.acq_date,
    )
    published = [sa.func.coalesce(side.c.updated_at, side.c.created_at) for side in (other, new)]
    is_newer = sa.func.coalesce(published[0] > published[1], sa.false())
    return (
        sa.select(other.c.acq_date, other.c.tile, other.c.collection, other.c.item_id, is_newer)
        .select_from(new.join(other, is_same_item))
        .where(_is_here(new))
    )


def _read_column(footprints: sa.Table, column: Column) -> Any:
    # As text: JSON whole, geometry as hexadecimal EWKB. A PostGIS function would have to be found
    # on some search path.
    if column is GEOMETRY:
        return sa.type_coerce(footprints.c[GEOMETRY_COLUMN], sa.Text)
    if column.name == "properties":
        return sa.cast(footprints.c.properties, sa.Text)
    return footprints.c[column.name]


def _build_by_keys(table: sa.Table, *columns: Any) -> Any:
    """Day, tile and ``columns`` of the places in the arrays ``days`` and ``tiles``."""
    asked = (
        sa.func.unnest(
            sa.bindparam("days", type_=pg.ARRAY(sa.Date)),
            sa.bindparam("tiles", type_=pg.ARRAY(sa.Text)),
        )
        .table_valued("day", "tile", name="asked")
        .render_derived()
    )
    is_asked = sa.and_(table.c.acq_date == asked.c.day, table.c.tile == asked.c.tile)
    return (
        sa.select(table.c.acq_date, table.c.tile, *columns)
        .select_from(table.join(asked, is_asked))
        .where(table.c.region == sa.bindparam("in_region"))
    )
