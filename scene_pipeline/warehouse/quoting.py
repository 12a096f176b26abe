"""Names and whole statements for SQLAlchemy, whatever characters an operator's names have."""

from __future__ import annotations

import sqlalchemy as sa
from psycopg import sql

__all__ = ["literal_statement", "quote_name"]


def quote_name(*parts: str) -> str:
    """A quoted identifier, such as ``"EO-Data"."scene_footprints"``."""
    return sql.Identifier(*parts).as_string(None)


def literal_statement(statement: str) -> sa.TextClause:
    """A statement without parameters: a ``:`` inside a name (or a cast) is no bind."""
    return sa.text(statement.replace(":", r"\:"))
