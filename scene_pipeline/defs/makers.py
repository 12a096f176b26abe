"""How each partitioned asset reads, builds and stores its partitions, without Dagster.

Both work on many keys and answer for each one apart, so that one bad key costs one key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, TrackedAsset
from scene_pipeline.backfill.versions import DataVersion
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.errors import DataError
from scene_pipeline.pictures.markdown import try_drawing
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.schema import STORAGE_SRID
from scene_pipeline.warehouse.port import PartitionRows

__all__ = ["FootprintMaker", "Made", "Maker", "TableMaker"]

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Made:
    """One partition ready to be stored; ``facts`` becomes its metadata.

    ``claim`` is given up by whoever stores the partition.
    """

    partition: PartitionRows
    facts: Facts
    asset: TrackedAsset
    claim: AbstractContextManager[object] = field(default_factory=nullcontext)

    @property
    def key(self) -> PartitionKey:
        """The partition's key."""
        return self.partition.key

    @property
    def version(self) -> DataVersion:
        """What the materialization's data version says."""
        rows = self.partition.rows.num_rows
        return DataVersion(self.partition.raw_seq, rows, self.asset.code_version)


class Maker(Protocol):
    """One asset's work. ``store_together`` is how many partitions one `store` call gets."""

    asset: ClassVar[TrackedAsset]
    store_together: ClassVar[int]

    def make(self, keys: Sequence[PartitionKey]) -> Iterator[tuple[PartitionKey, Made | Exception]]:
        """Read and build each key; nothing is stored. The order may be another."""

    def store(self, made: Sequence[Made]) -> Iterator[tuple[PartitionKey, Facts | Exception]]:
        """Store each partition, whole or not at all; yields a key once it is durable."""


class FootprintMaker:
    """Raw scenes of a tile's day → repaired, cut footprints → one GeoParquet file."""

    asset: ClassVar[TrackedAsset] = FOOTPRINTS
    store_together: ClassVar[int] = 1

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def make(self, keys: Sequence[PartitionKey]) -> Iterator[tuple[PartitionKey, Made | Exception]]:
        """Read the raw scenes of neighbouring keys together, then build each partition."""
        for key, raw, seconds_read in self._read(keys):
            if isinstance(raw, Exception):
                yield key, raw
                continue
            try:
                yield key, self._build(key, *raw, seconds_read=seconds_read)
            except Exception as error:  # noqa: BLE001  one bad key costs one key
                yield key, error

    def _build(self, key: PartitionKey, raw_seq: int, raw: Any, *, seconds_read: float) -> Made:
        from scene_pipeline.scenes.laws import find_violations
        from scene_pipeline.scenes.partition import build_partition

        started = time.perf_counter()
        region, bounds = self._pipeline.region, self._pipeline.grid.bounds(key.tile)
        built = build_partition(
            raw, key=key, grid=self._pipeline.grid, region=region, raw_seq=raw_seq
        )
        violations = find_violations(built.rows, key=key, region=region, bounds=bounds)
        for law, items in violations.items():
            raise DataError(
                f"{len(items)} built scenes break the law {law}: {', '.join(items[:5])}",
                where=f"partition {key}",
                next_step="nothing was written; report it with the Items named above",
            )
        facts = {
            **built.counts,
            "bbox": list(built.bounds) if built.bounds else None,
            "crs": f"EPSG:{STORAGE_SRID}",
            "seconds_read": seconds_read,
            "seconds_build": time.perf_counter() - started,
        }
        if self._pipeline.settings.maps and built.rows.num_rows:
            drawings = {
                "map": lambda: self._draw(key, built.rows, bounds),
                "repair": lambda: self._draw_repair(raw, built.rows),
            }
            for name, draw in drawings.items():
                drawn, why = try_drawing(draw)
                facts[name] = drawn or why or None
        return Made(PartitionRows(key, built.rows, raw_seq), facts, self.asset)

    @staticmethod
    def _draw(key: PartitionKey, rows: Any, bounds: tuple[float, float, float, float]) -> str:
        from scene_pipeline.pictures.maps import draw_partition_map
        from scene_pipeline.pictures.markdown import markdown_image

        repaired = [bool(repairs) for repairs in rows["repairs"].to_pylist()]
        counted = f"{rows.num_rows} scene{'s' if rows.num_rows > 1 else ''}"
        note = f"{counted}, {sum(repaired)} repaired" if any(repaired) else counted
        pieces = rows["geometry"].to_pylist()
        drawing = draw_partition_map(pieces, bounds, title=str(key), note=note, repaired=repaired)
        return markdown_image(drawing, f"Map of {key}: {note}")

    @staticmethod
    def _draw_repair(raw: Any, rows: Any) -> str | None:
        """The first repaired footprint as published and as stored; None where none was."""
        import pyarrow.compute as pc
        import shapely

        from scene_pipeline.pictures.maps import draw_repair
        from scene_pipeline.pictures.markdown import markdown_image
        from scene_pipeline.scenes.footprint import repair_footprints

        place = next((n for n, done in enumerate(rows["repairs"].to_pylist()) if done), None)
        if place is None:
            return None
        row = rows.select(["collection", "item_id", "repairs"]).slice(place, 1).to_pylist()[0]
        same = (pc.field("collection") == row["collection"]) & (
            pc.field("item_id") == row["item_id"]
        )
        published = shapely.from_wkb(raw.filter(same)["geometry"].to_numpy())
        stored = repair_footprints(published).geometry[0]
        note = ", ".join(row["repairs"])
        drawing = draw_repair(published[0], stored, title=row["item_id"], note=note)
        return markdown_image(drawing, f"{row['item_id']} as published and as stored: {note}")

    def _read(
        self, keys: Sequence[PartitionKey]
    ) -> Iterator[tuple[PartitionKey, tuple[int, Any] | Exception, float]]:
        """Each key's raw version and scenes; after a failure the rest are read one by one."""
        from scene_pipeline.ingest.raw import read_raw_scenes

        pending = sorted(keys)
        alone = False
        while pending:
            batch = pending[:1] if alone else list(pending)
            started = time.perf_counter()
            try:
                for key, raw_seq, table in read_raw_scenes(
                    self._pipeline.state, self._pipeline.store, self._pipeline.region, batch
                ):
                    pending.remove(key)
                    yield key, (raw_seq, table), time.perf_counter() - started
                    started = time.perf_counter()
            except Exception as error:  # noqa: BLE001  one bad key costs one key
                if alone:
                    yield pending.pop(0), error, time.perf_counter() - started
                alone = True

    def store(self, made: Sequence[Made]) -> Iterator[tuple[PartitionKey, Facts | Exception]]:
        """Write each file."""
        for each in made:
            try:
                written = self._pipeline.lake.write(
                    each.key, each.partition.rows, raw_seq=each.partition.raw_seq
                )
            except Exception as error:  # noqa: BLE001  one bad key costs one key
                yield each.key, error
                continue
            yield (
                each.key,
                {
                    "rows": written.rows,
                    "bytes": written.bytes,
                    "path": written.path,
                    "seconds_write": written.seconds,
                },
            )


class TableMaker:
    """One GeoParquet file → the same rows in the table."""

    asset: ClassVar[TrackedAsset] = TABLE
    store_together: ClassVar[int] = 20

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def make(self, keys: Sequence[PartitionKey]) -> Iterator[tuple[PartitionKey, Made | Exception]]:
        """Read each key's file; a key without one, or given up by retention, fails by name."""
        from scene_pipeline.ingest.retention import read_retention, require_kept_rows

        region = self._pipeline.region
        _, rows_from = read_retention(self._pipeline.state, region)
        for key in keys:
            started = time.perf_counter()
            try:
                require_kept_rows(rows_from, key.day, region=region)
                partition = self._pipeline.lake.read(key)
            except Exception as error:  # noqa: BLE001  one bad key costs one key
                yield key, error
                continue
            facts = {"seconds_read": time.perf_counter() - started}
            yield key, Made(partition, facts, self.asset)

    def store(self, made: Sequence[Made]) -> Iterator[tuple[PartitionKey, Facts | Exception]]:
        """Replace the partitions in few transactions."""
        for outcome in self._pipeline.warehouse.replace_many([each.partition for each in made]):
            if isinstance(outcome, tuple):
                yield outcome
                continue
            yield (
                outcome.key,
                {
                    "rows": outcome.written_rows,
                    "rows_replaced": outcome.deleted_rows,
                    "seconds_write": outcome.seconds,
                    "seconds_waited": outcome.waited_s,
                },
            )
