"""What the asset checks look at: stored partitions against the laws, the raw lake and the table.

Pure reading, without Dagster; each finding names a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scene_pipeline.errors import DataError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.laws import LAWS, find_violations

if TYPE_CHECKING:
    from scene_pipeline.defs.pipeline import Pipeline

__all__ = ["FOOTPRINT_CHECKS", "Findings", "inspect_footprints", "inspect_table", "recent_keys"]

FOOTPRINT_CHECKS: dict[str, str] = {
    "crs": "Every file is readable GeoParquet in EPSG:3857 and holds the key that its path says.",
    "in_its_partition": "Every scene was acquired on its partition's UTC day and names its tile.",
    "inside_tile": "No piece reaches beyond its tile.",
    "unique_items": "An Item is in a partition once.",
    "valid_geometry": "Every piece is a valid, non-empty MultiPolygon.",
    "nothing_lost": "Every raw scene of a partition is in its file, unless newer raw data came.",
}
_MOST_KEYS = 500


@dataclass(slots=True)
class Findings:
    """What an inspection saw; ``faults`` maps a check to texts that name key and Item."""

    keys: int = 0
    rows: int = 0
    absent: int = 0
    faults: dict[str, list[str]] = field(default_factory=dict)

    def add(self, check: str, text: str) -> None:
        """Note one fault."""
        self.faults.setdefault(check, []).append(text)


def recent_keys(pipeline: Pipeline) -> list[PartitionKey]:
    """Keys of the newest covered days, at most 500: what a check of the whole asset looks at."""
    window = pipeline.recent_days()
    if window is None:
        return []
    return list(pipeline.definition.iter_window(*window))[-_MOST_KEYS:]


def inspect_footprints(pipeline: Pipeline, keys: Sequence[PartitionKey]) -> Findings:
    """Hold the files of ``keys`` to `FOOTPRINT_CHECKS`; a key without a file is counted only."""
    from scene_pipeline.ingest.raw import read_raw_scenes

    found = Findings()
    scenes = {
        key: (raw_seq, raw.num_rows)
        for key, raw_seq, raw in read_raw_scenes(
            pipeline.state, pipeline.store, pipeline.region, keys
        )
    }
    for key in keys:
        try:
            if pipeline.lake.read_version(key) is None:
                found.absent += 1
                continue
            stored = pipeline.lake.read(key)
        except DataError as error:
            found.add("crs", f"{key}: {error.what}")
            continue
        found.keys += 1
        found.rows += stored.rows.num_rows
        violations = find_violations(
            stored.rows, key=key, region=pipeline.region, bounds=pipeline.grid.bounds(key.tile)
        )
        for law, items in violations.items():
            found.add(law, f"{key}: {', '.join(items[:5])}")
        raw_seq, count = scenes[key]
        if stored.raw_seq == raw_seq and count != stored.rows.num_rows:
            found.add("nothing_lost", f"{key}: {count} raw scenes, {stored.rows.num_rows} rows")
    return found


def inspect_table(pipeline: Pipeline, keys: Sequence[PartitionKey]) -> Findings:
    """Compare the rows of the table with those of the files, for keys that have both."""
    found = Findings()
    counted = pipeline.warehouse.count_rows(keys)
    versions = pipeline.warehouse.read_versions(keys)
    for key in keys:
        try:
            stored = pipeline.lake.read_version(key)
        except DataError as error:
            found.add("rows_match_lake", f"{key}: {error.what}")
            continue
        if stored is None or key not in versions:
            found.absent += 1
            continue
        found.keys += 1
        rows = counted.get(key, 0)
        found.rows += rows
        if stored.raw_seq == versions[key].raw_seq and stored.rows != rows:
            found.add("rows_match_lake", f"{key}: {rows} rows, its file has {stored.rows}")
    return found


assert set(LAWS) < set(FOOTPRINT_CHECKS)  # noqa: S101  a law without a check would go unseen
