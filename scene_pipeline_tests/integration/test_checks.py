"""Asset checks see planted faults, name them, and judge nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
import shapely
import sqlalchemy as sa

from scene_pipeline.defs.inspection import FOOTPRINT_CHECKS
from scene_pipeline.state import tables as t
from scene_pipeline_tests.services.archive_region import ArchiveRegion


@pytest.fixture
def region(tmp_path: Path) -> Iterator[ArchiveRegion]:
    """Two days built, of which the checks look at both."""
    region = ArchiveRegion(tmp_path, days=2)
    keys = region.window(2)
    region.ingest(region.one_scene_a_key(keys))
    assert region.run("scenes_batched_job", keys).success
    assert region.run("footprint_table_job", keys).success
    yield region
    region.close()


def run_checks(region: ArchiveRegion) -> dict[str, dg.AssetCheckEvaluation]:
    job = region.definitions.resolve_job_def("checks_job")
    result = job.execute_in_process(instance=region.instance)
    assert result.success, "a finding is no failure of the run"
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def faults(found: dict[str, dg.AssetCheckEvaluation]) -> dict[str, list[str]]:
    return {
        name: list(check.metadata["faults"].value)
        for name, check in found.items()
        if not check.passed
    }


def spoil(region: ArchiveRegion, column: str, value: object) -> str:
    """Rewrite one row of one stored file, at the same version; returns the key."""
    key = region.key(1, 2)
    stored = region.pipeline.lake.read(key)
    place = stored.rows.schema.get_field_index(column)
    field = stored.rows.schema.field(place)
    rows = stored.rows.set_column(place, field, pa.array([value], field.type))
    region.pipeline.lake.write(key, rows, raw_seq=stored.raw_seq)
    return str(key)


def test_what_is_right_passes_and_says_what_was_looked_at(region: ArchiveRegion) -> None:
    found = run_checks(region)
    assert set(found) == {*FOOTPRINT_CHECKS, "rows_match_lake"}
    assert faults(found) == {}
    for check in found.values():
        assert check.metadata["partitions"].value == 12
        assert check.metadata["rows"].value == 12
        assert check.metadata["window"].value == f"{region.key(0, 0)} to {region.key(1, 5)}"


def test_a_scene_of_another_day(region: ArchiveRegion) -> None:
    key = spoil(region, "acq_date", region.key(0, 0).day)
    assert list(faults(run_checks(region))) == ["in_its_partition"]
    assert faults(run_checks(region))["in_its_partition"][0].startswith(key)


def test_a_piece_outside_its_tile_and_an_invalid_one(region: ArchiveRegion) -> None:
    west, south, *_ = region.pipeline.grid.bounds(region.tiles[2])
    outside = shapely.multipolygons([shapely.box(west - 50, south, west + 50, south + 50)])
    spoil(region, "geometry", shapely.to_wkb(outside))
    assert list(faults(run_checks(region))) == ["inside_tile"]


def test_a_damaged_file(region: ArchiveRegion) -> None:
    key = region.key(1, 3)
    region.pipeline.store.write(region.pipeline.lake.path(key), b"no parquet")
    found = faults(run_checks(region))
    assert list(found) == ["crs", "rows_match_lake"]
    assert all(texts[0].startswith(str(key)) for texts in found.values())


def test_a_lost_scene(region: ArchiveRegion) -> None:
    """A row that is gone from the file although its raw scene is there, at the same version."""
    key = region.key(0, 4)
    stored = region.pipeline.lake.read(key)
    region.pipeline.lake.write(key, stored.rows.slice(0, 0), raw_seq=stored.raw_seq)
    found = faults(run_checks(region))
    assert found == {
        "nothing_lost": [f"{key}: 1 raw scenes, 0 rows"],
        "rows_match_lake": [f"{key}: 1 rows, its file has 0"],
    }


def test_newer_raw_data_is_no_loss(region: ArchiveRegion) -> None:
    region.ingest([region.make_item("late", region.key(0, 4))], lane="rescan")
    assert faults(run_checks(region)) == {}


def test_a_key_that_is_not_built_is_counted_not_judged(region: ArchiveRegion) -> None:
    region.pipeline.lake.delete(region.key(0, 0))
    found = run_checks(region)
    assert faults(found) == {}
    assert found["unique_items"].metadata["not materialized"].value == 1


def test_nothing_covered_is_said(tmp_path: Path) -> None:
    region = ArchiveRegion(tmp_path)
    found = run_checks(region)
    assert {check.metadata["window"].value for check in found.values()} == {"no day is covered yet"}
    assert {check.metadata["partitions"].value for check in found.values()} == {0}
    with region.pipeline.state.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(t.items)) == 0
    region.close()
