"""The GeoPackage's tables, from the one schema (OGC 12-128r18, version 1.4)."""

from __future__ import annotations

import sqlite3

import pyarrow as pa

from scene_pipeline.scenes.schema import GEOMETRY, STORAGE_SRID, Column
from scene_pipeline.warehouse.geopackage_values import MICROSECONDS, STORED_COLUMNS
from scene_pipeline.warehouse.rows import GEOMETRY_COLUMN, TABLE_COLUMNS

__all__ = ["create_tables"]

APPLICATION_ID = 0x47504B47  # "GPKG"
USER_VERSION = 10400

_WGS84 = (
    'GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563,'
    'AUTHORITY["EPSG","7030"]],AUTHORITY["EPSG","6326"]],PRIMEM["Greenwich",0,'
    'AUTHORITY["EPSG","8901"]],UNIT["degree",0.0174532925199433,AUTHORITY["EPSG","9122"]],'
    'AUTHORITY["EPSG","4326"]]'
)
_WEB_MERCATOR = (
    f'PROJCS["WGS 84 / Pseudo-Mercator",{_WGS84},PROJECTION["Mercator_1SP"],'
    'PARAMETER["central_meridian",0],PARAMETER["scale_factor",1],PARAMETER["false_easting",0],'
    'PARAMETER["false_northing",0],UNIT["metre",1,AUTHORITY["EPSG","9001"]],'
    'AXIS["Easting",EAST],AXIS["Northing",NORTH],EXTENSION["PROJ4","+proj=merc +a=6378137'
    " +b=6378137 +lat_ts=0 +lon_0=0 +x_0=0 +y_0=0 +k=1 +units=m +nadgrids=@null +wktext"
    ' +no_defs"],AUTHORITY["EPSG","3857"]]'
)
# Requirement 11 demands the first three of every GeoPackage.
_REFERENCE_SYSTEMS = (
    ("Undefined cartesian SRS", -1, "NONE", -1, "undefined"),
    ("Undefined geographic SRS", 0, "NONE", 0, "undefined"),
    ("WGS 84 geodetic", 4326, "EPSG", 4326, _WGS84),
    ("WGS 84 / Pseudo-Mercator", STORAGE_SRID, "EPSG", STORAGE_SRID, _WEB_MERCATOR),
)


_METADATA_TABLES = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {USER_VERSION}",
    """CREATE TABLE gpkg_spatial_ref_sys (
        srs_name TEXT NOT NULL, srs_id INTEGER NOT NULL PRIMARY KEY,
        organization TEXT NOT NULL, organization_coordsys_id INTEGER NOT NULL,
        definition TEXT NOT NULL, description TEXT)""",
    """CREATE TABLE gpkg_contents (
        table_name TEXT NOT NULL PRIMARY KEY, data_type TEXT NOT NULL,
        identifier TEXT UNIQUE, description TEXT DEFAULT '',
        last_change DATETIME NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ','now')),
        min_x DOUBLE, min_y DOUBLE, max_x DOUBLE, max_y DOUBLE, srs_id INTEGER,
        CONSTRAINT fk_gc_r_srs_id FOREIGN KEY (srs_id) REFERENCES gpkg_spatial_ref_sys(srs_id))""",
    """CREATE TABLE gpkg_geometry_columns (
        table_name TEXT NOT NULL, column_name TEXT NOT NULL, geometry_type_name TEXT NOT NULL,
        srs_id INTEGER NOT NULL, z TINYINT NOT NULL, m TINYINT NOT NULL,
        CONSTRAINT pk_geom_cols PRIMARY KEY (table_name, column_name),
        CONSTRAINT uk_gc_table_name UNIQUE (table_name),
        CONSTRAINT fk_gc_tn FOREIGN KEY (table_name) REFERENCES gpkg_contents(table_name),
        CONSTRAINT fk_gc_srs FOREIGN KEY (srs_id) REFERENCES gpkg_spatial_ref_sys (srs_id))""",
)


def _declare(column: Column) -> str:
    if column is GEOMETRY:
        return f"{GEOMETRY_COLUMN} MULTIPOLYGON NOT NULL"
    if pa.types.is_date(column.type):
        kind = "DATE"
    elif pa.types.is_timestamp(column.type):
        kind = "DATETIME"
    elif pa.types.is_floating(column.type):
        kind = "DOUBLE"
    elif pa.types.is_integer(column.type):
        kind = "INTEGER"
    else:
        kind = "TEXT"
    return f'"{column.name}" {kind}{"" if column.nullable else " NOT NULL"}'


_OUR_TABLES = (
    f"""CREATE TABLE scene_footprints (
        fid INTEGER PRIMARY KEY NOT NULL, {", ".join(map(_declare, TABLE_COLUMNS))},
        {MICROSECONDS} TEXT,
        UNIQUE (region, acq_date, tile, collection, item_id))""",
    """CREATE INDEX ix_scene_footprints_item
        ON scene_footprints (region, collection, item_id, acq_date)""",
    """CREATE TABLE partition_versions (
        id INTEGER PRIMARY KEY NOT NULL, region TEXT NOT NULL, acq_date DATE NOT NULL,
        tile TEXT NOT NULL, raw_seq INTEGER NOT NULL, row_count INTEGER NOT NULL,
        replaced_at DATETIME NOT NULL, UNIQUE (region, acq_date, tile))""",
    f"""INSERT INTO gpkg_contents (table_name, data_type, identifier, description, srs_id) VALUES
        ('scene_footprints', 'features', 'scene_footprints',
         'Pieces of scene footprints by day and tile', {STORAGE_SRID}),
        ('partition_versions', 'attributes', 'partition_versions',
         'Raw version and row count of each partition', NULL)""",
    f"""INSERT INTO gpkg_geometry_columns VALUES
        ('scene_footprints', '{GEOMETRY_COLUMN}', 'MULTIPOLYGON', {STORAGE_SRID}, 0, 0)""",
)


def create_tables(connection: sqlite3.Connection) -> None:
    """Create what is missing of an empty file, inside the caller's transaction.

    Raises `sqlite3.DatabaseError` for a file that holds something else.
    """
    found = connection.execute("SELECT name FROM pragma_table_info('scene_footprints')").fetchall()
    if [name for (name,) in found] == ["fid", *STORED_COLUMNS]:
        return
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        raise sqlite3.DatabaseError("its tables are of another program or version")
    for statement in _METADATA_TABLES:
        connection.execute(statement)
    connection.executemany(
        "INSERT INTO gpkg_spatial_ref_sys VALUES (?, ?, ?, ?, ?, NULL)", _REFERENCE_SYSTEMS
    )
    for statement in _OUR_TABLES:
        connection.execute(statement)
