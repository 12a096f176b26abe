"""What the Dagster UI shows of assets and partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from scene_pipeline.scenes.schema import SCENE_COLUMNS, Column

__all__ = ["column_schema", "table_schema_metadata", "to_metadata"]


def column_schema(columns: tuple[Column, ...]) -> dg.TableSchema:
    """The columns as Dagster draws them, with types, nullability and meaning."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                column.name,
                type=str(column.type),
                description=column.doc,
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in columns
        ]
    )


def table_schema_metadata() -> dict[str, Any]:
    """Definition metadata of an asset that holds scenes."""
    return {"dagster/column_schema": column_schema(SCENE_COLUMNS)}


def to_metadata(facts: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Plain values as metadata: numbers plot over partitions, ``path`` links, lists are JSON."""
    shown: dict[str, dg.MetadataValue] = {}
    for name, value in facts.items():
        match value:
            case None:
                continue
            case bool():
                shown[name] = dg.MetadataValue.bool(value)
            case int():
                shown[name] = dg.MetadataValue.int(value)
            case float():
                shown[name] = dg.MetadataValue.float(value)
            case str() if name == "path":
                shown[name] = dg.MetadataValue.path(value)
            case str() if name == "map":
                shown[name] = dg.MetadataValue.md(value)
            case str():
                shown[name] = dg.MetadataValue.text(value)
            case _:
                shown[name] = dg.MetadataValue.json(value)
    return shown
