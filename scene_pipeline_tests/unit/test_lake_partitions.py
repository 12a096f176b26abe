"""Partitions and segments in the lake: replaced whole, read by key, refused by name."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from scene_pipeline.errors import (
    DataError,
    InvalidKeyError,
    LakeFileError,
    StaleVersionError,
    StoreUnavailableError,
)
from scene_pipeline.lake.layout import parse_partition_path, partition_path, segment_path
from scene_pipeline.lake.partitions import PartitionLake, StoredVersion
from scene_pipeline.lake.segments import read_segment, write_segment
from scene_pipeline.lake.store import LocalStore
from scene_pipeline.scenes.item import scenes_to_table
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.schema import RAW_COLUMNS, SCENE_COLUMNS, arrow_schema
from scene_pipeline_tests.services.items import make_scene
from scene_pipeline_tests.services.scene_rows import DAY, REGION, key_of, make_partition


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture
def lake(store: LocalStore) -> PartitionLake:
    return PartitionLake(store, REGION)


def test_a_partition_is_written_where_dagster_and_duckdb_look(
    lake: PartitionLake, tmp_path: Path
) -> None:
    key = key_of()
    written = lake.write(key, make_partition(key, 3).rows, raw_seq=2)
    path = tmp_path / "alps/scene_footprints/date=2024-06-01/tile=7-66-45.parquet"
    assert written.path == str(path)
    assert (written.rows, written.bytes) == (3, path.stat().st_size)
    assert written.seconds > 0
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    partition = lake.read(key)
    assert (partition.key, partition.raw_seq) == (key, 2)
    assert partition.rows.equals(make_partition(key, 3).rows)
    assert lake.read_version(key) == StoredVersion(2, 3)


def test_the_same_version_again_leaves_the_same_file(lake: PartitionLake) -> None:
    """A13: a doubled run."""
    key = key_of()
    rows = make_partition(key, 10).rows
    first = lake.write(key, rows, raw_seq=2)
    content = Path(first.path).read_bytes()
    lake.write(key, rows, raw_seq=2)
    assert Path(first.path).read_bytes() == content


def test_a_lower_version_never_replaces_a_higher_one(lake: PartitionLake) -> None:
    key = key_of()
    lake.write(key, make_partition(key, 3).rows, raw_seq=7)
    with pytest.raises(StaleVersionError) as caught:
        lake.write(key, make_partition(key, 5).rows, raw_seq=6)
    assert str(key) in caught.value.where
    assert lake.read_version(key) == StoredVersion(7, 3)
    lake.write(key, make_partition(key, 0).rows, raw_seq=8)
    assert lake.read_version(key) == StoredVersion(8, 0)


def test_rows_that_do_not_fit_leave_the_old_file(lake: PartitionLake) -> None:
    key = key_of()
    lake.write(key, make_partition(key, 3).rows, raw_seq=1)
    with pytest.raises(DataError):
        lake.write(key, make_partition(key, 3).rows.drop_columns(["platform"]), raw_seq=2)
    assert lake.read_version(key) == StoredVersion(1, 3)


def test_a_missing_partition_is_named(lake: PartitionLake) -> None:
    with pytest.raises(LakeFileError, match=r"2024-06-01\|7-66-45"):
        lake.read(key_of())
    assert lake.read_version(key_of()) is None


def test_a_file_of_another_key_or_region_is_refused(lake: PartitionLake) -> None:
    """A file copied or renamed by hand would answer for a day that it does not hold."""
    key, other = key_of(1), key_of(2)
    lake.write(key, make_partition(key, 3).rows, raw_seq=1)
    content = lake.store.read(lake.path(key))
    lake.store.write(lake.path(other), content)
    foreign = PartitionLake(lake.store, "andes")
    lake.store.write(foreign.path(key), content)
    for where, name in ((lake, other), (foreign, key)):
        for read in (where.read, where.read_version):
            with pytest.raises(LakeFileError) as caught:
                read(name)
            assert caught.value.where == where.store.address(where.path(name))


@pytest.mark.parametrize("threads", [1, 4])
def test_many_keys_are_one_table_in_their_order(store: LocalStore, threads: int) -> None:
    lake = PartitionLake(store, REGION, threads=threads)
    keys = [key_of(day, f"7-66-{row}") for day in (2, 1) for row in (46, 45)]
    for size, key in enumerate(keys):
        lake.write(key, make_partition(key, size).rows, raw_seq=1)
    table = lake.read_many(keys)
    assert table.equals(pa.concat_tables([make_partition(k, n).rows for n, k in enumerate(keys)]))
    assert lake.read_many(keys, columns=["item_id"]).column_names == ["item_id"]
    day = lake.read_day(DAY, ["7-66-45", "7-66-46", "7-66-47"])
    assert set(day["acq_date"].to_pylist()) == {DAY}
    assert day.num_rows == 2 + 3


def test_missing_keys_follow_a_stated_policy(lake: PartitionLake) -> None:
    """A26: fail by default, naming them; skip where that is asked for."""
    keys = [key_of(day) for day in range(1, 9)]
    lake.write(keys[0], make_partition(keys[0], 2).rows, raw_seq=1)
    with pytest.raises(LakeFileError, match="7 partition"):
        lake.read_many(keys)
    assert lake.read_many(keys, missing="skip").num_rows == 2
    nothing = lake.read_many(keys[1:], missing="skip")
    assert nothing.schema.equals(arrow_schema(SCENE_COLUMNS))
    assert lake.read_many([]).num_rows == 0
    assert lake.read_many([], columns=["tile"]).column_names == ["tile"]


def test_the_footer_of_a_big_partition_takes_a_second_look(
    lake: PartitionLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of()
    lake.write(key, make_partition(key, 10).rows, raw_seq=4)
    monkeypatch.setattr("scene_pipeline.lake.partitions._FOOTER_BYTES", 100)
    assert lake.read_version(key) == StoredVersion(4, 10)


def test_delete(lake: PartitionLake) -> None:
    key = key_of()
    lake.write(key, make_partition(key, 1).rows, raw_seq=1)
    lake.delete(key)
    lake.delete(key)
    assert lake.read_version(key) is None


def test_paths_and_keys_are_one_to_one() -> None:
    """A25: keys that share a path lose files."""
    keys = [
        PartitionKey(DAY + timedelta(days=day), tile) for day in range(3) for tile in ("a", "b-1")
    ]
    paths = [partition_path("r", "scene_footprints", key) for key in keys]
    assert len(set(paths)) == len(keys)
    assert [parse_partition_path(path) for path in paths] == [
        ("r", "scene_footprints", key) for key in keys
    ]


@pytest.mark.parametrize("tile", ["a/b", "..", "v1.0", "", "a b", "a|b", "tile=1", "é"])
def test_keys_that_would_leave_their_folder_are_refused(tile: str) -> None:
    with pytest.raises(InvalidKeyError):
        partition_path("r", "scene_footprints", PartitionKey(DAY, tile))
    with pytest.raises(InvalidKeyError):
        parse_partition_path(f"r/scene_footprints/date=2024-06-01/tile={tile}.parquet")
    with pytest.raises(InvalidKeyError):
        segment_path("r", tile)


def test_a_segment_is_named_by_its_bytes(store: LocalStore, tmp_path: Path) -> None:
    table = scenes_to_table([make_scene("a"), make_scene("b", datetime="2024-06-02T01:00:00Z")])
    ref = write_segment(store, REGION, table)
    assert dict(ref.days) == {DAY: 1, DAY + timedelta(days=1): 1}
    assert (ref.rows, ref.bytes) == (
        2,
        (tmp_path / segment_path(REGION, ref.digest)).stat().st_size,
    )
    assert write_segment(store, REGION, table) == ref
    assert read_segment(store, REGION, ref.digest).equals(table)
    some = read_segment(store, REGION, ref.digest, columns=["item_id", "geometry"])
    assert some.column_names == ["item_id", "geometry"]
    assert read_segment(store, REGION, ref.digest).schema.equals(arrow_schema(RAW_COLUMNS))


def test_a_segment_that_changed_or_went_is_refused_by_name(store: LocalStore) -> None:
    ref = write_segment(store, REGION, scenes_to_table([make_scene("a")]))
    path = segment_path(REGION, ref.digest)
    other = write_segment(store, REGION, scenes_to_table([make_scene("b")]))
    store.write(path, store.read(segment_path(REGION, other.digest)))
    with pytest.raises(LakeFileError, match="digest") as caught:
        read_segment(store, REGION, ref.digest)
    assert caught.value.where == store.address(path)
    store.delete(path)
    with pytest.raises(LakeFileError, match="missing"):
        read_segment(store, REGION, ref.digest)


def test_a_write_that_fails_leaves_nothing_behind(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("a/x.parquet", b"before")

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    for write in (store.write, store.write_new):
        with pytest.raises(StoreUnavailableError, match="no space"):
            write("a/y.parquet", b"after")
    with pytest.raises(StoreUnavailableError, match="no space") as caught:
        store.write("a/x.parquet", b"after")
    assert caught.value.where == store.address("a/x.parquet")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x.parquet"]
    assert store.read("a/x.parquet") == b"before"


def test_a_folder_in_the_place_of_a_file_is_named(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "a" / "x.parquet" / "inside").mkdir(parents=True)
    for act in (store.read, store.delete, lambda path: store.write(path, b"x")):
        with pytest.raises(StoreUnavailableError) as caught:
            act("a/x.parquet")
        assert caught.value.where == store.address("a/x.parquet")
