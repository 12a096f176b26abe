"""Retention of the table's rows: the first day that is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, unless the first migration has made it by this version's tables."""
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("regions")}
    if "rows_from" not in present:
        op.add_column("regions", sa.Column("rows_from", sa.Date))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("regions", "rows_from")
