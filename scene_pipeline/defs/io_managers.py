"""IO managers: thin adapters from Dagster's contexts to the lake and the warehouse."""

from __future__ import annotations

from typing import Any

import dagster as dg

from scene_pipeline.defs.failures import mapped_failures
from scene_pipeline.defs.makers import FootprintMaker, Made, Maker, TableMaker
from scene_pipeline.defs.metadata import to_metadata
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.errors import ScenePipelineError
from scene_pipeline.scenes.keys import parse_key

__all__ = ["GeoParquetIOManager", "TableIOManager"]


class _MakerIOManager(dg.IOManager):
    def __init__(self, maker: Maker) -> None:
        self._maker = maker

    def handle_output(self, context: dg.OutputContext, obj: Made) -> None:
        """Store one partition and put what was stored into the materialization's metadata."""
        with mapped_failures():
            for _, stored in self._maker.store([obj]):
                if isinstance(stored, Exception):
                    raise stored
                context.add_output_metadata(to_metadata({**obj.facts, **stored}))


class GeoParquetIOManager(_MakerIOManager):
    """One GeoParquet file a partition, in a local folder or on S3."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(FootprintMaker(pipeline))
        self._pipeline = pipeline

    def load_input(self, context: dg.InputContext) -> Any:
        """The upstream partitions by key; those that hold no file yet are left out."""
        keys = [parse_key(text) for text in context.asset_partition_keys]
        return {
            str(part.key): part.rows for part in self._pipeline.lake.read_many(keys, missing="skip")
        }


class TableIOManager(_MakerIOManager):
    """One partition of the warehouse's table, replaced in one transaction."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(TableMaker(pipeline))
        self._pipeline = pipeline

    def load_input(self, context: dg.InputContext) -> Any:
        """The rows of one partition, as a `pyarrow.Table`."""
        (text,) = context.asset_partition_keys
        try:
            return self._pipeline.warehouse.read(parse_key(text))
        except ScenePipelineError:
            raise
