"""How each partitioned asset reads, builds and stores its partitions, without Dagster.

Both work on many keys and answer for each one apart, so that one bad key costs one key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, TrackedAsset
from scene_pipeline.backfill.versions import DataVersion
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.defs.workers import Workers
from scene_pipeline.errors import DataError
from scene_pipeline.pictures.markdown import try_drawing
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.schema import STORAGE_SRID
from scene_pipeline.warehouse.port import PartitionRows

if TYPE_CHECKING:
    from scene_pipeline.scenes.grid import WebMercatorGrid

__all__ = ["FootprintMaker", "Made", "Maker", "RawPartition", "TableMaker", "build_footprints"]

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
    store_together: int

    def make(self, keys: Sequence[PartitionKey]) -> Iterator[tuple[PartitionKey, Made | Exception]]:
        """Read and build each key; nothing is stored. The order may be another."""

    def store(self, made: Sequence[Made]) -> Iterator[tuple[PartitionKey, Facts | Exception]]:
        """Store each partition, whole or not at all; yields a key once it is durable."""


@dataclass(frozen=True, slots=True)
class RawPartition:
    """A key's raw version and scenes, or the error in place of them."""

    key: PartitionKey
    raw_seq: int
    scenes: Any
    seconds_read: float


def build_footprints(
    raw: RawPartition, *, region: str, grid: WebMercatorGrid, maps: bool
) -> tuple[PartitionKey, Made | Exception]:
    """Repair, cut and check one key's scenes, in whichever process; draw them if ``maps``."""
    if isinstance(raw.scenes, Exception):
        return raw.key, raw.scenes
    try:
        return raw.key, _build(raw, region=region, grid=grid, maps=maps)
    except Exception as error:  # noqa: BLE001  one bad key costs one key
        return raw.key, error


def _build(raw: RawPartition, *, region: str, grid: WebMercatorGrid, maps: bool) -> Made:
    from scene_pipeline.scenes.laws import find_violations
    from scene_pipeline.scenes.partition import build_partition

    started = time.perf_counter()
    key, bounds = raw.key, grid.bounds(raw.key.tile)
    built = build_partition(raw.scenes, key=key, grid=grid, region=region, raw_seq=raw.raw_seq)
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
        "seconds_read": raw.seconds_read,
        "seconds_build": time.perf_counter() - started,
    }
    if maps and built.rows.num_rows:
        from scene_pipeline.defs.drawings import draw_first_repair, draw_map

        drawings: dict[str, Callable[[], str | None]] = {
            "map": partial(draw_map, key, built.rows, bounds),
            "repair": partial(draw_first_repair, raw.scenes, built.rows),
        }
        for name, draw in drawings.items():
            drawn, why = try_drawing(draw)
            facts[name] = drawn or why or None
    return Made(PartitionRows(key, built.rows, raw.raw_seq), facts, FOOTPRINTS)


class FootprintMaker:
    """Raw scenes of a tile's day → repaired, cut footprints → one GeoParquet file."""

    asset: ClassVar[TrackedAsset] = FOOTPRINTS

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._workers = Workers(pipeline.settings.caps)
        self.store_together = self._workers.count

    def make(self, keys: Sequence[PartitionKey]) -> Iterator[tuple[PartitionKey, Made | Exception]]:
        """Read the raw scenes of neighbouring keys together, then build each partition."""
        pipeline = self._pipeline
        build = partial(
            build_footprints,
            region=pipeline.region,
            grid=pipeline.grid,
            maps=pipeline.settings.maps,
        )
        yield from self._workers.compute_map(build, self._read(keys))

    def _read(self, keys: Sequence[PartitionKey]) -> Iterator[RawPartition]:
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
                    yield RawPartition(key, raw_seq, table, time.perf_counter() - started)
                    started = time.perf_counter()
            except Exception as error:  # noqa: BLE001  one bad key costs one key
                if alone:
                    seconds = time.perf_counter() - started
                    yield RawPartition(pending.pop(0), 0, error, seconds)
                alone = True

    def store(self, made: Sequence[Made]) -> Iterator[tuple[PartitionKey, Facts | Exception]]:
        """Write each file."""
        yield from self._workers.wait_map(self._write, made)

    def _write(self, made: Made) -> tuple[PartitionKey, Facts | Exception]:
        rows, raw_seq = made.partition.rows, made.partition.raw_seq
        try:
            written = self._pipeline.lake.write(made.key, rows, raw_seq=raw_seq)
        except Exception as error:  # noqa: BLE001  one bad key costs one key
            return made.key, error
        return made.key, {
            "rows": written.rows,
            "bytes": written.bytes,
            "path": written.path,
            "seconds_write": written.seconds,
        }


class TableMaker:
    """One GeoParquet file → the same rows in the table."""

    asset: ClassVar[TrackedAsset] = TABLE

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._workers = Workers(pipeline.settings.caps)
        self.store_together = 20

    def make(self, keys: Sequence[PartitionKey]) -> Iterator[tuple[PartitionKey, Made | Exception]]:
        """Read each key's file; a key without one, or given up by retention, fails by name."""
        from scene_pipeline.ingest.retention import read_retention, require_kept_rows

        region = self._pipeline.region
        _, rows_from = read_retention(self._pipeline.state, region)

        def read(key: PartitionKey) -> tuple[PartitionKey, Made | Exception]:
            started = time.perf_counter()
            try:
                require_kept_rows(rows_from, key.day, region=region)
                partition = self._pipeline.lake.read(key)
            except Exception as error:  # noqa: BLE001  one bad key costs one key
                return key, error
            facts = {"seconds_read": time.perf_counter() - started}
            return key, Made(partition, facts, self.asset)

        yield from self._workers.wait_map(read, keys)

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
