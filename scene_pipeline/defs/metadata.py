"""What the Dagster UI shows of assets and partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from scene_pipeline.scenes.schema import SCENE_COLUMNS

if TYPE_CHECKING:
    from scene_pipeline.defs.coverage import CoveredDay

__all__ = ["coverage_schema", "describe_coverage", "scene_schema", "to_metadata"]

_COVERAGE_MEANING = {
    "tile": "tile key of the grid, z-x-y",
    "scenes": "scenes with a piece in the tile",
    "covered_share": "share of the tile's true area under at least one footprint, 0 to 1",
    "cloud_cover_pct": "mean cloud cover, weighted by the pieces' areas; null where none says",
}


def scene_schema() -> dg.TableSchema:
    """The scene columns as Dagster draws them, with types, nullability and meaning."""
    return dg.TableSchema(
        columns=[_column(c.name, c.type, nullable=c.nullable, doc=c.doc) for c in SCENE_COLUMNS]
    )


def coverage_schema() -> dg.TableSchema:
    """The columns of a day's coverage."""
    from scene_pipeline.scenes.coverage import COVERAGE_COLUMNS

    return dg.TableSchema(
        columns=[
            _column(f.name, f.type, nullable=f.nullable, doc=_COVERAGE_MEANING[f.name])
            for f in COVERAGE_COLUMNS
        ]
    )


def _column(name: str, kind: object, *, nullable: bool, doc: str) -> dg.TableColumn:
    return dg.TableColumn(
        name,
        type=str(kind),
        description=doc,
        constraints=dg.TableColumnConstraints(nullable=nullable),
    )


def describe_coverage(covered: CoveredDay) -> dict[str, Any]:
    """Numbers, table and map of one day."""
    records = [
        dg.TableRecord(
            {
                name: round(value, 4) if isinstance(value, float) else value
                for name, value in row.items()
            }
        )
        for row in covered.table.to_pylist()
    ]
    table = dg.MetadataValue.table(records, schema=coverage_schema())
    return {**to_metadata(covered.facts), "coverage": table}


def to_metadata(facts: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Plain values as metadata: numbers plot over partitions, pictures are drawn, None is left
    out, and whatever else is JSON."""
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
            case str() if value.startswith("!["):
                shown[name] = dg.MetadataValue.md(value)
            case str():
                shown[name] = dg.MetadataValue.text(value)
            case _:
                shown[name] = dg.MetadataValue.json(value)
    return shown
