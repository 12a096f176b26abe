"""What retention gives up, and what it never touches: rules without a database."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from scene_pipeline.cli.doctor import split_area
from scene_pipeline.errors import DataError
from scene_pipeline.ingest.retention import (
    find_orphans,
    first_kept_raw_day,
    first_kept_row_day,
    require_kept_rows,
)
from scene_pipeline.lake.store import StoredObject
from scene_pipeline.scenes.grid import WebMercatorGrid

COVERED = date(2024, 6, 30)


@pytest.mark.parametrize(
    ("raw_days", "rescan_days", "needed", "first"),
    [
        (10, 0, None, date(2024, 6, 21)),
        (1, 0, None, COVERED),
        (10, 20, None, date(2024, 6, 11)),  # rescans compare with what they saw
        (10, 0, date(2024, 5, 3), date(2024, 5, 3)),  # something is yet to be made of it
        (10, 0, date(2024, 6, 29), date(2024, 6, 21)),
        (0, 20, date(2024, 5, 3), None),
    ],
)
def test_the_first_raw_day_that_stays(
    raw_days: int, rescan_days: int, needed: date | None, first: date | None
) -> None:
    found = first_kept_raw_day(COVERED, raw_days=raw_days, rescan_days=rescan_days, needed=needed)
    assert found == first


def test_without_a_frontier_nothing_is_given_up() -> None:
    assert first_kept_raw_day(None, raw_days=1, rescan_days=0, needed=None) is None
    assert first_kept_row_day(None, table_months=1) is None


@pytest.mark.parametrize(
    ("covered", "months", "first"),
    [
        (COVERED, 1, date(2024, 6, 1)),
        (COVERED, 6, date(2024, 1, 1)),
        (COVERED, 7, date(2023, 12, 1)),
        (date(2024, 1, 31), 12, date(2023, 2, 1)),
        (date(2024, 12, 1), 1, date(2024, 12, 1)),
        (date(2024, 12, 31), 12, date(2024, 1, 1)),
        (COVERED, 0, None),
    ],
)
def test_rows_go_by_whole_months(covered: date, months: int, first: date | None) -> None:
    assert first_kept_row_day(covered, table_months=months) == first


def test_a_day_without_its_rows_is_refused_by_name() -> None:
    require_kept_rows(None, COVERED, region="r")
    require_kept_rows(COVERED, COVERED, region="r")
    with pytest.raises(DataError, match="rows of 2024-06-29 were removed") as caught:
        require_kept_rows(COVERED, date(2024, 6, 29), region="r")
    assert "GeoParquet" in caught.value.next_step


def test_orphans_are_old_and_ours_and_nobodys() -> None:
    now = datetime(2024, 7, 1, tzinfo=UTC)
    old, young = now - timedelta(hours=1), now
    digest = "ab" * 32
    objects = {
        f"r/raw/ab/{digest}.parquet": old,
        f"r/raw/ab/{digest[:-1]}c.parquet": old,  # a page refers to it
        f"r/raw/ab/{digest[:-1]}d.parquet": young,
        "r/doctor-0123": old,
        "r/scene_footprints/date=2024-06-01/.tile=7-1-1.parquet.0123.part": old,
        "r/scene_footprints/date=2024-06-01/tile=7-1-1.parquet": old,
        "r/daily_coverage/date=2024-06-01.svg": old,
        "r/README": old,
    }
    found = [StoredObject(path, 1, at) for path, at in objects.items()]
    orphans = find_orphans(found, {f"r/raw/ab/{digest[:-1]}c.parquet"}, before=now)
    assert {each.path for each in orphans} == {
        f"r/raw/ab/{digest}.parquet",
        "r/doctor-0123",
        "r/scene_footprints/date=2024-06-01/.tile=7-1-1.parquet.0123.part",
    }


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 100])
def test_a_split_shares_every_tile_out_once(parts: int) -> None:
    whole = WebMercatorGrid(7, (170.0, -21.0, -170.0, -10.0))  # crosses the antimeridian
    areas = split_area(whole.columns, parts=parts)
    assert len(areas) == min(parts, len(whole.columns))
    west_of = [WebMercatorGrid(7, (w, -21.0, e, -10.0)) for w, e in areas]
    keys = [key for grid in west_of for key in grid.keys]
    assert sorted(keys) == sorted(whole.keys)
