"""Footprints, partition versions and the view of whole scenes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op
from geoalchemy2 import Geometry
from sqlalchemy.dialects import postgresql as pg

from scene_pipeline.warehouse.quoting import literal_statement, quote_name

revision = "0001"
down_revision = None

# A replaced partition leaves as many dead rows as it had, whatever the table's size: the usual
# fraction of the table would let a table of 10 M rows collect 2 M of them.
_AUTOVACUUM = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "20000",
    "autovacuum_analyze_scale_factor": "0",
    "autovacuum_analyze_threshold": "20000",
}


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    instant, key_text = sa.DateTime(timezone=True), sa.Text(collation="C")
    op.create_table(
        "scene_footprints",
        sa.Column("region", key_text, nullable=False),
        sa.Column("tile", key_text, nullable=False),
        sa.Column("acq_date", sa.Date, nullable=False),
        sa.Column("collection", key_text, nullable=False),
        sa.Column("item_id", key_text, nullable=False),
        sa.Column("acquired_at", instant, nullable=False),
        sa.Column("start_at", instant),
        sa.Column("end_at", instant),
        sa.Column("created_at", instant),
        sa.Column("updated_at", instant),
        sa.Column("platform", sa.Text),
        sa.Column("constellation", sa.Text),
        sa.Column("grid_code", sa.Text),
        sa.Column("gsd_m", sa.Double),
        sa.Column("cloud_cover_pct", sa.Double),
        sa.Column("sun_elevation_deg", sa.Double),
        sa.Column("off_nadir_deg", sa.Double),
        sa.Column("processing_baseline", sa.Text),
        sa.Column("item_href", sa.Text),
        sa.Column("properties", pg.JSONB, nullable=False),
        sa.Column("repairs", pg.ARRAY(sa.Text), nullable=False),
        sa.Column("area_share", sa.Double, nullable=False),
        sa.Column("raw_seq", sa.BigInteger, nullable=False),
        sa.Column("geom", Geometry("MULTIPOLYGON", srid=3857, spatial_index=False), nullable=False),
        sa.PrimaryKeyConstraint(
            "item_id", "collection", "region", "acq_date", "tile", name="pk_scene_footprints"
        ),
        schema=schema,
    )
    op.create_index(
        "ix_scene_footprints_geom", "scene_footprints", ["geom"],
        schema=schema, postgresql_using="gist",
    )  # fmt: skip
    op.create_index(
        "ix_scene_footprints_partition", "scene_footprints",
        ["region", "acq_date", "tile"], schema=schema,
    )  # fmt: skip
    op.create_table(
        "partition_versions",
        sa.Column("region", key_text, nullable=False),
        sa.Column("acq_date", sa.Date, nullable=False),
        sa.Column("tile", key_text, nullable=False),
        sa.Column("raw_seq", sa.BigInteger, nullable=False),
        sa.Column("row_count", sa.BigInteger, nullable=False),
        sa.Column("replaced_at", instant, nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("region", "acq_date", "tile", name="pk_partition_versions"),
        schema=schema,
    )
    footprints, view = quote_name(schema, "scene_footprints"), quote_name(schema, "current_scenes")
    settings = ", ".join(f"{name} = {value}" for name, value in _AUTOVACUUM.items())
    op.execute(literal_statement(f"ALTER TABLE {footprints} SET ({settings})"))
    if _has_lz4():
        op.execute(
            literal_statement(f"ALTER TABLE {footprints} ALTER properties SET COMPRESSION lz4")
        )
    op.execute(
        literal_statement(
            f"""
        CREATE VIEW {view} AS
        SELECT newest.region, newest.collection, newest.item_id, newest.acq_date, pieces.tiles,
               newest.acquired_at, newest.start_at, newest.end_at, newest.created_at,
               newest.updated_at, newest.platform, newest.constellation, newest.grid_code,
               newest.gsd_m, newest.cloud_cover_pct, newest.sun_elevation_deg,
               newest.off_nadir_deg, newest.processing_baseline, newest.item_href,
               newest.properties, newest.repairs, pieces.area_share, pieces.geom
        FROM (SELECT DISTINCT ON (item_id, collection, region) *
              FROM {footprints}
              ORDER BY item_id, collection, region, acq_date DESC, updated_at DESC NULLS LAST, tile
             ) AS newest
        CROSS JOIN LATERAL (
              SELECT array_agg(piece.tile ORDER BY piece.tile) AS tiles,
                     sum(piece.area_share) AS area_share,
                     ST_Multi(ST_Union(piece.geom))::geometry(MultiPolygon, 3857) AS geom
              FROM {footprints} AS piece
              WHERE piece.region = newest.region AND piece.collection = newest.collection
                AND piece.item_id = newest.item_id AND piece.acq_date = newest.acq_date
             ) AS pieces
        """
        )
    )
    op.execute(
        literal_statement(
            f"COMMENT ON VIEW {view} IS"
            " 'One row an Item: its newest day, the pieces of all its tiles united'"
        )
    )


def _has_lz4() -> bool:
    """Whether the server was built with it: properties run to 5 kB, and pglz is slow on them."""
    query = (
        "SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
    )
    return bool(op.get_bind().scalar(sa.text(query)))


def downgrade() -> None:
    schema = context.config.attributes["schema"]
    view = quote_name(schema, "current_scenes")
    op.execute(literal_statement(f"DROP VIEW {view}"))
    op.drop_table("partition_versions", schema=schema)
    op.drop_table("scene_footprints", schema=schema)
