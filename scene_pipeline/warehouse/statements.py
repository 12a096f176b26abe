"""The SQL of the PostGIS warehouse, for one schema.

A place is the three parameters ``region``, ``day`` and ``tile``. Nothing here depends on the
search path: tables are named in full, and no PostGIS function is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scene_pipeline.scenes.schema import GEOMETRY, Column
from scene_pipeline.warehouse.quoting import quote_name
from scene_pipeline.warehouse.rows import GEOMETRY_COLUMN, TABLE_COLUMNS
from scene_pipeline.warehouse.tables import VERSION_TABLE

__all__ = ["LOCK", "Statements", "build_statements"]

LOCK = "SELECT pg_advisory_xact_lock(%s, %s)"
_HERE = "region = %(region)s AND acq_date = %(day)s AND tile = %(tile)s"


@dataclass(frozen=True, slots=True)
class Statements:
    """One text each, with psycopg's named placeholders.

    ``store_version`` returns no row where a higher version is stored, ``delete`` the Items whose
    rows it deleted, ``find_moved`` the fields of `MovedRow`.
    """

    revision: str
    store_version: str
    read_version: str
    hold_version: str
    subtract: str
    delete: str
    find_moved: str
    delete_items: str
    delete_month: str
    forget_before: str
    read: str
    read_versions: str
    count_rows: str


@lru_cache
def build_statements(schema: str) -> Statements:
    """The statements on the tables of ``schema``."""

    def name(table: str) -> str:
        return quote_name(schema, table).replace("%", "%%")

    footprints, versions = name("scene_footprints"), name("partition_versions")
    asked = "unnest(%(days)s::date[], %(tiles)s::text[]) AS asked (day, tile)"
    is_asked = "t.region = %(region)s AND t.acq_date = asked.day AND t.tile = asked.tile"
    return Statements(
        revision=f"SELECT version_num FROM {name(VERSION_TABLE)}",
        store_version=f"""
            INSERT INTO {versions} AS stored (region, acq_date, tile, raw_seq, row_count)
            VALUES (%(region)s, %(day)s, %(tile)s, %(raw_seq)s, %(row_count)s)
            ON CONFLICT (region, acq_date, tile) DO UPDATE
            SET raw_seq = excluded.raw_seq, row_count = excluded.row_count, replaced_at = now()
            WHERE stored.raw_seq <= excluded.raw_seq
            RETURNING raw_seq""",
        read_version=f"SELECT raw_seq FROM {versions} WHERE {_HERE}",
        hold_version=f"SELECT raw_seq FROM {versions} WHERE {_HERE} FOR UPDATE",
        subtract=f"UPDATE {versions} SET row_count = row_count - %(taken)s WHERE {_HERE}",
        delete=f"DELETE FROM {footprints} WHERE {_HERE} RETURNING collection, item_id",
        find_moved=f"""
            SELECT other.acq_date, other.tile, other.collection, other.item_id,
                   coalesce(coalesce(other.updated_at, other.created_at)
                            > coalesce(new.updated_at, new.created_at), false)
            FROM (SELECT * FROM {footprints} WHERE {_HERE}) AS new
            JOIN {footprints} AS other USING (region, collection, item_id)
            WHERE other.acq_date <> new.acq_date""",
        delete_items=f"""
            DELETE FROM {footprints} AS t
            USING unnest(%(collections)s::text[], %(items)s::text[]) AS gone (collection, item_id)
            WHERE {_HERE} AND t.collection = gone.collection AND t.item_id = gone.item_id""",
        delete_month=f"""
            DELETE FROM {footprints} WHERE region = %(region)s AND acq_date < %(before)s
            AND acq_date < (SELECT date_trunc('month', min(acq_date)) + interval '1 month'
                            FROM {footprints} WHERE region = %(region)s)""",
        forget_before=f"DELETE FROM {versions} WHERE region = %(region)s AND acq_date < %(before)s",
        read=f"""
            SELECT {", ".join(map(_read_column, TABLE_COLUMNS))} FROM {footprints}
            WHERE {_HERE} ORDER BY collection, item_id""",
        read_versions=f"""
            SELECT t.acq_date, t.tile, t.raw_seq, t.row_count
            FROM {asked} JOIN {versions} AS t ON {is_asked}""",
        count_rows=f"""
            SELECT t.acq_date, t.tile, count(*)
            FROM {asked} JOIN {footprints} AS t ON {is_asked} GROUP BY t.acq_date, t.tile""",
    )


def _read_column(column: Column) -> str:
    # JSON as text, unparsed; geometry as the driver gives an unknown type: hexadecimal EWKB.
    if column is GEOMETRY:
        return GEOMETRY_COLUMN
    return "properties::text" if column.name == "properties" else f'"{column.name}"'
