"""Runs of one key and of many, through Dagster, the state database, the lake and a GeoPackage."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from scene_pipeline.backfill.assets import FOOTPRINTS
from scene_pipeline.backfill.claims import Claims, read_claims
from scene_pipeline.backfill.tags import KEYS_TAG, digest_keys
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.state import tables as t
from scene_pipeline_tests.services.archive_region import START, ArchiveRegion, failure_of

POLICY_JOBS = ("scenes_per_partition_job", "scenes_batched_job", "scenes_single_run_job")


@pytest.fixture
def region(tmp_path: Path) -> Iterator[ArchiveRegion]:
    region = ArchiveRegion(tmp_path)
    yield region
    region.close()


def lose_segment(region: ArchiveRegion, key: PartitionKey) -> None:
    """Break the raw lake under one key: its scenes name a segment that is not there."""
    with region.pipeline.state.begin() as connection:
        ids = sa.select(t.placements.c.item_id).where(
            t.placements.c.day == key.day, t.placements.c.tile == key.tile
        )
        missing = "0" * 64
        row = connection.execute(sa.select(t.segments).limit(1)).mappings().one()
        connection.execute(t.segments.insert().values({**row, "digest": missing}))
        done = connection.execute(
            t.items.update().where(t.items.c.item_id.in_(ids)).values(segment=missing)
        )
        assert done.rowcount == 1


def lake_files(region: ArchiveRegion, keys: list[PartitionKey]) -> dict[str, bytes]:
    return {str(key): region.pipeline.store.read(region.pipeline.lake.path(key)) for key in keys}


def claims_of(region: ArchiveRegion) -> dict[PartitionKey, Any]:
    from datetime import UTC, datetime

    found: dict[PartitionKey, Any] = {}
    for asset in ("scene_footprints", "footprint_table"):
        found |= read_claims(
            region.pipeline.state,
            region="alps",
            asset=asset,
            first=START,
            last=region.end,
            at=datetime.now(UTC),
        )
    return found


def test_one_bad_key_in_a_batch_costs_one_key(region: ArchiveRegion) -> None:
    keys = region.window(2)
    region.ingest(region.one_scene_a_key(keys))
    bad = keys[7]
    lose_segment(region, bad)
    result = region.run("scenes_batched_job", keys)
    data = failure_of(result)
    good = [key for key in keys if key != bad]
    assert sorted(region.made_keys(result)) == sorted(map(str, good)), "each good key once"
    assert "1 of 12 keys failed" in data.error.message
    assert str(bad) in data.error.message
    failed = data.user_failure_data.metadata["failed"].value
    assert list(failed) == [str(bad)]
    assert "LakeFileError" in failed[str(bad)]
    shown = data.user_failure_data.metadata["for example"]
    assert (shown.text, type(shown)) == (f"{bad}: {failed[str(bad)]}", dg.TextMetadataValue)
    assert not [event for event in result.all_events if event.is_step_up_for_retry]
    assert region.pipeline.lake.read_version(bad) is None
    assert all(region.pipeline.lake.read(key).rows.num_rows == 1 for key in good)
    assert claims_of(region) == {}
    # The table takes the eleven without being asked to leave the twelfth out.
    table = region.run("footprint_table_job", keys)
    assert sorted(region.made_keys(table)) == sorted(map(str, good))
    assert failure_of(table).user_failure_data.metadata["failed"].value.keys() == {str(bad)}
    assert sum(region.pipeline.warehouse.count_rows(keys).values()) == 11


def test_metadata_of_a_key_is_the_same_in_both_kinds_of_run(region: ArchiveRegion) -> None:
    keys = region.window(1, 2)
    region.ingest(region.one_scene_a_key(keys))
    alone = region.run("scenes_per_partition_job", keys[:1])
    batch = region.run("scenes_batched_job", keys)
    (one,) = region.materializations(alone)
    many = next(m for m in region.materializations(batch) if m.partition == str(keys[0]))
    measured = {"seconds_read", "seconds_build", "seconds_write"}
    values = [
        {name: value.value for name, value in made.metadata.items() if name not in measured}
        for made in (one, many)
    ]
    assert values[0] == values[1]
    assert set(values[0]) == {
        "scenes", "rows", "repaired", "outside", "bytes", "bbox", "crs", "path", "map",
    }  # fmt: skip
    assert values[0]["rows"] == 1
    assert Path(values[0]["path"]).is_file()
    assert measured <= set(one.metadata)
    versions = {made.tags["dagster/data_version"] for made in (one, many)}
    assert versions == {"1.1.1"}


def test_the_three_policies_give_equal_files_and_equal_rows(tmp_path: Path) -> None:
    outcomes = []
    for job in POLICY_JOBS:
        region = ArchiveRegion(tmp_path / job) if (tmp_path / job).mkdir() is None else None
        assert region is not None
        keys = region.window(3)
        region.ingest(region.one_scene_a_key(keys[::2]))  # every second key stays empty
        runs = [[key] for key in keys] if job == "scenes_per_partition_job" else [keys]
        for run in runs:
            assert region.run(job, run).success
        assert region.run("footprint_table_job", keys).success
        rows = {str(key): region.pipeline.warehouse.read(key).to_pylist() for key in keys}
        outcomes.append((lake_files(region, keys), rows))
        region.close()
    assert len(outcomes[0][0]) == 18
    assert sum(map(len, outcomes[0][1].values())) == 9
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_an_l_shape_runs_exactly_its_keys(region: ArchiveRegion) -> None:
    """A02: all tiles of the first day, one tile of the others; no run executes a key more."""
    keys = [*region.window(1), region.key(1, 0), region.key(2, 0)]
    region.ingest(region.one_scene_a_key(region.window(3)))
    (wave,) = region.launch(keys, FOOTPRINTS, policy="single_run")
    assert wave.stored is not None
    assert len(wave.stored.plan.runs) == 2
    made = [key for key in region.window(4) if region.pipeline.lake.read_version(key) is not None]
    assert sorted(made) == sorted(keys)


@pytest.mark.parametrize("as_range", [False, True])
def test_a_run_of_one_key_is_ordinary_dagster(region: ArchiveRegion, *, as_range: bool) -> None:
    """With range tags too, where Dagster says that the run has no partition key."""
    (key,) = region.window(1, 1)
    region.ingest(region.one_scene_a_key([key]))
    result = region.run("scenes_per_partition_job", [key], as_range=as_range)
    assert result.success
    assert region.made_keys(result) == [str(key)]
    checks = result.get_asset_check_evaluations()
    assert len(checks) == 6
    assert all(check.passed for check in checks)
    assert all(check.metadata["partitions"].value == 1 for check in checks)


def test_the_daily_job_chains_both_assets_and_all_checks(region: ArchiveRegion) -> None:
    (key,) = region.window(1, 1)
    region.ingest(region.one_scene_a_key([key]))
    result = region.run("daily_scenes_job", [key])
    assert result.success
    assert region.made_keys(result) == [str(key)] * 2
    assert region.pipeline.warehouse.count_rows([key]) == {key: 1}
    assert {check.check_name for check in result.get_asset_check_evaluations()} == {
        "crs", "in_its_partition", "inside_tile", "unique_items", "valid_geometry",
        "nothing_lost", "rows_match_lake",
    }  # fmt: skip


def test_an_error_that_no_retry_helps_is_not_retried_in_a_run_of_one_key(
    region: ArchiveRegion,
) -> None:
    (key,) = region.window(1, 1)
    region.ingest(region.one_scene_a_key([key]))
    lose_segment(region, key)
    result = region.run("scenes_per_partition_job", [key])
    assert failure_of(result).user_failure_data.metadata["error"].value == "LakeFileError"
    assert not [event for event in result.all_events if event.is_step_up_for_retry]
    assert claims_of(region) == {}


def claims_by_another(region: ArchiveRegion) -> Claims:
    return Claims(
        region.pipeline.state, region="alps", asset="scene_footprints", run_id="another-run"
    )


def test_a_claimed_key_is_refused_by_name_after_its_retries(region: ArchiveRegion) -> None:
    keys = region.window(1, 3)
    region.ingest(region.one_scene_a_key(keys))
    claims_by_another(region).take([keys[1]])
    result = region.run("scenes_batched_job", keys)
    failed = failure_of(result).user_failure_data.metadata["failed"].value
    assert list(failed) == [str(keys[1])]
    assert "claimed by run another-run" in failed[str(keys[1])]
    assert sorted(region.made_keys(result)) == sorted([str(keys[0]), str(keys[2])])
    alone = region.run("scenes_per_partition_job", [keys[1]])
    assert len([event for event in alone.all_events if event.is_step_up_for_retry]) == 2
    assert "claimed by run another-run" in failure_of(alone).error_display_string


def test_a09_a_retry_repeats_the_failed_key_alone(tmp_path: Path) -> None:
    region = ArchiveRegion(tmp_path, retries={"max_retries": 8, "delay_s": 0.05})
    keys = region.window(1, 4)
    region.ingest(region.one_scene_a_key(keys))
    theirs = claims_by_another(region)
    theirs.take([keys[2]])

    def free_once_the_others_are_done() -> None:
        deadline = time.monotonic() + 60
        others = [key for key in keys if key != keys[2]]
        while time.monotonic() < deadline:
            if all(region.pipeline.lake.read_version(key) for key in others):
                theirs.release([keys[2]])
                return
            time.sleep(0.01)

    helper = threading.Thread(target=free_once_the_others_are_done)
    helper.start()
    result = region.run("scenes_batched_job", keys)
    helper.join()
    assert result.success
    assert region.made_keys(result)[-1] == str(keys[2])
    assert sorted(region.made_keys(result)) == sorted(map(str, keys)), "good keys execute once"
    region.close()


@pytest.mark.parametrize("job", ["scenes_batched_job", "footprint_table_job"])
def test_a_reversed_range_is_a_failed_run_not_a_green_one(region: ArchiveRegion, job: str) -> None:
    keys = list(reversed(region.window(1, 3)))
    result = region.run(job, keys)
    assert "no partition keys" in failure_of(result).error_display_string
    assert region.made_keys(result) == []


def test_a05_a_run_with_other_keys_than_planned_does_nothing(region: ArchiveRegion) -> None:
    keys = region.window(2)
    region.ingest(region.one_scene_a_key(keys))
    result = region.run("scenes_batched_job", keys, tags={KEYS_TAG: digest_keys(keys[:-1])})
    assert "plan again" in failure_of(result).error_display_string
    assert region.made_keys(result) == []
    assert region.pipeline.lake.read_version(keys[0]) is None


def test_two_assets_never_share_a_run_of_many_keys(region: ArchiveRegion) -> None:
    keys = region.window(1, 2)
    region.ingest(region.one_scene_a_key(keys))
    result = region.run("daily_scenes_job", keys)
    assert "holds 2 assets" in failure_of(result).error_display_string
    assert region.pipeline.lake.read_version(keys[0]) is None


def test_an_older_raw_version_never_overwrites_a_newer_one(region: ArchiveRegion) -> None:
    (key,) = region.window(1, 1)
    region.ingest(region.one_scene_a_key([key]))
    assert region.run("daily_scenes_job", [key]).success
    newer = region.pipeline.lake.read(key)
    region.pipeline.lake.write(key, newer.rows, raw_seq=99)
    result = region.run("scenes_per_partition_job", [key])
    assert failure_of(result).user_failure_data.metadata["error"].value == "StaleVersionError"
    stored = region.pipeline.lake.read_version(key)
    assert stored is not None
    assert stored.raw_seq == 99
    assert claims_of(region) == {}, "released although the IO manager failed"


def test_a_moved_item_reopens_both_places(region: ArchiveRegion) -> None:
    here, there = region.key(0, 0), region.key(1, 1)
    region.ingest([region.make_item("wanderer", here)])
    assert region.run("scenes_batched_job", region.window(2)).success
    assert region.pipeline.lake.read(here).rows.num_rows == 1
    moved = region.make_item("wanderer", there)
    moved["properties"]["updated"] = "2024-06-20T00:00:00Z"
    region.archive.write_text("")
    region.ingest([moved], lane="rescan")
    assert region.run("scenes_batched_job", region.window(2)).success
    assert region.pipeline.lake.read(here).rows.num_rows == 0
    assert region.pipeline.lake.read(there).rows["item_id"].to_pylist() == ["wanderer"]
    versions = [region.pipeline.lake.read_version(key) for key in (here, there)]
    assert [version and version.raw_seq for version in versions] == [2, 1]


def test_coverage_of_many_days_names_the_day_that_has_nothing(region: ArchiveRegion) -> None:
    keys = region.window(2)
    region.ingest(region.one_scene_a_key(keys))
    assert region.run("scenes_batched_job", keys).success
    result = region.run_coverage(START, region.end.replace(day=3))
    assert region.made_keys(result) == ["2024-06-01", "2024-06-02"]
    failed = failure_of(result).user_failure_data.metadata["failed"].value
    assert list(failed) == ["2024-06-03"]
    metadata = region.materializations(result)[0].metadata
    assert metadata["scenes"].value == 6
    assert metadata["tiles"].value == 6
    # The square is half a tile wide and high.
    assert metadata["covered_share"].value == pytest.approx(0.25, abs=0.01)
    table = metadata["coverage"]
    assert isinstance(table, dg.TableMetadataValue)
    assert {record.data["cloud_cover_pct"] for record in table.records} == {12.5}
    assert "data:image/svg+xml" in str(metadata["map"].value)
