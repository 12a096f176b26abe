"""IO managers: thin adapters from Dagster's contexts to the lake and the warehouse."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import dagster as dg

from scene_pipeline.defs.failures import mapped_failures
from scene_pipeline.defs.makers import FootprintMaker, Made, Maker, TableMaker
from scene_pipeline.defs.metadata import to_metadata
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.errors import KeySetError
from scene_pipeline.scenes.keys import PartitionKey, parse_key
from scene_pipeline.warehouse.port import PartitionRows

__all__ = ["GeoParquetIOManager", "TableIOManager"]


class _PartitionIOManager(dg.IOManager):
    """Stores partitions through a maker, one by one, whole or not at all."""

    def __init__(self, pipeline: Pipeline, maker: Maker) -> None:
        self._pipeline = pipeline
        self._maker = maker

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Store one partition, or exactly the run's keys from ``{key: frame}``.

        A value is what the body made, a `pyarrow.Table` or a GeoDataFrame in the scene schema.
        Raises `KeySetError` where a mapping's keys are not those of the run.
        """
        claim = obj.claim if isinstance(obj, Made) else nullcontext()
        with mapped_failures(), claim:
            keys = [parse_key(text) for text in context.asset_partition_keys]
            made = [self._adopt(key, value) for key, value in _values_by_key(keys, obj).items()]
            facts: list[dict[str, Any]] = []
            for key, stored in self._maker.store(made):
                if isinstance(stored, Exception):
                    raise stored
                facts.append({**next(m.facts for m in made if m.key == key), **stored})
            context.add_output_metadata(
                to_metadata(facts[0] if len(facts) == 1 else {"partitions": facts})
            )

    def _adopt(self, key: PartitionKey, value: Any) -> Made:
        """A plain table or frame as a partition; its version is what its rows say."""
        if isinstance(value, Made):
            return value
        import pyarrow as pa
        import pyarrow.compute as pc

        from scene_pipeline.lake.frames import from_geopandas

        rows = value if isinstance(value, pa.Table) else from_geopandas(value)
        raw_seq = pc.max(rows["raw_seq"]).as_py() or 0
        return Made(PartitionRows(key, rows, raw_seq), {}, self._maker.asset)

    def load_input(self, context: dg.InputContext) -> Any:
        """The rows of one key, many keys or a day, with ``acq_date`` and ``tile`` as columns.

        A GeoDataFrame in EPSG:3857, or a `pyarrow.Table` where the input says so. A key without
        a file fails by name, unless the input's metadata says ``missing: skip``.
        """
        import pyarrow as pa

        from scene_pipeline.lake.frames import to_geopandas

        keys = [parse_key(text) for text in context.asset_partition_keys]
        with mapped_failures():
            rows = self._read(keys, (context.definition_metadata or {}).get("missing", "fail"))
            wants_table = context.dagster_type.typing_type is pa.Table
            return rows if wants_table else to_geopandas(rows)

    def _read(self, keys: list[PartitionKey], missing: Any) -> Any:
        raise NotImplementedError


class GeoParquetIOManager(_PartitionIOManager):
    """One GeoParquet file a partition, in a local folder or on S3."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline, FootprintMaker(pipeline))

    def _read(self, keys: list[PartitionKey], missing: Any) -> Any:
        return self._pipeline.lake.read_many(keys, missing=missing)


class TableIOManager(_PartitionIOManager):
    """Partitions of the warehouse's table, each replaced in one transaction."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline, TableMaker(pipeline))

    def _read(self, keys: list[PartitionKey], missing: Any) -> Any:
        import pyarrow as pa

        del missing  # a partition without rows and one that is missing look alike here
        return pa.concat_tables([self._pipeline.warehouse.read(key) for key in keys])


def _values_by_key(keys: list[PartitionKey], value: Any) -> dict[PartitionKey, Any]:
    if isinstance(value, Mapping):
        given = {parse_key(str(text)): frame for text, frame in value.items()}
        if set(given) != set(keys):
            extra, absent = set(given) - set(keys), set(keys) - set(given)
            raise KeySetError(
                f"the output has {len(given)} keys, the run {len(keys)}",
                where="; ".join(
                    f"{word}: {', '.join(map(str, sorted(wrong)))}"
                    for word, wrong in (("not of the run", extra), ("missing", absent))
                    if wrong
                ),
                next_step="return one frame for each of context.partition_keys",
            )
        return given
    if len(keys) != 1:
        raise KeySetError(
            f"one frame for {len(keys)} keys: which rows belong to which key is not said",
            next_step="return {partition key: frame} with one entry for each key",
        )
    return {keys[0]: value}
