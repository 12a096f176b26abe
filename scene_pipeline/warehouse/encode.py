"""Rows to PostgreSQL's binary COPY format, straight from Arrow's memory (pgpq)."""

from __future__ import annotations

from collections.abc import Iterator

import pgpq
import psycopg
import pyarrow as pa
from pgpq import encoders
from pgpq.schema import Jsonb
from psycopg import sql

from scene_pipeline.scenes.schema import GEOMETRY
from scene_pipeline.warehouse.rows import GEOMETRY_COLUMN, TABLE_COLUMNS

__all__ = ["copy_rows", "encode_rows"]

_ROWS_A_BATCH = 5000


def copy_rows(connection: psycopg.Connection, rows: pa.Table, *, schema: str) -> int:
    """COPY ``rows`` inside the open transaction; returns the count that the server gives.

    Geometry goes as plain WKB: the column's type fills in its SRID and refuses another.
    """
    names = [
        sql.Identifier(GEOMETRY_COLUMN if column is GEOMETRY else column.name)
        for column in TABLE_COLUMNS
    ]
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        sql.Identifier(schema, "scene_footprints"), sql.SQL(", ").join(names)
    )
    with connection.cursor() as cursor:
        # Without the context's exit an error would leave the connection hanging in COPY.
        with cursor.copy(statement) as copy:
            for content in encode_rows(rows):
                copy.write(content)
        return cursor.rowcount


def encode_rows(rows: pa.Table) -> Iterator[bytes]:
    """The content of a binary COPY of `TABLE_COLUMNS`, in pieces that bound the memory."""
    rows = rows.select([column.name for column in TABLE_COLUMNS])
    builders = {field.name: _pick_builder(field) for field in rows.schema}
    encoder = pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(rows.schema, builders)
    yield encoder.write_header()
    for batch in rows.to_batches(max_chunksize=_ROWS_A_BATCH):
        yield encoder.write_batch(batch)
    yield encoder.finish()


def _pick_builder(field: pa.Field) -> object:
    if field.name == "properties":
        return encoders.StringEncoderBuilder.new_with_output(field, Jsonb())
    return pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)
