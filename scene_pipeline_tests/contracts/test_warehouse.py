"""What every warehouse promises, run on PostGIS and on GeoPackage alike."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import shapely
from sqlalchemy.engine import URL, make_url

from scene_pipeline.errors import StaleVersionError, TableMismatchError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.warehouse import Replaced, TableVersion, Warehouse
from scene_pipeline.warehouse.geopackage import GeoPackageWarehouse
from scene_pipeline.warehouse.migrate import migrate_warehouse
from scene_pipeline.warehouse.port import PartitionRows
from scene_pipeline.warehouse.postgis import PostGISWarehouse
from scene_pipeline_tests.services.postgres import PostgresCluster
from scene_pipeline_tests.services.scene_rows import REGION, key_of, make_partition

BOX = shapely.MultiPolygon([shapely.box(0, 0, 10, 10)])


_SERIAL = itertools.count(1)


@pytest.fixture(scope="module")
def shared_url(postgres: PostgresCluster) -> URL:
    """One database for all tests: each has a schema of its own."""
    url = make_url(postgres.url(postgres.new_database()))
    return url.set(drivername="postgresql+psycopg")


@pytest.fixture(params=["geopackage", pytest.param("postgis", marks=pytest.mark.postgres)])
def open_region(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A function from a region to its warehouse, all in one schema or file."""
    if request.param == "geopackage":
        path = tmp_path / "new" / "scenes.gpkg"
        return lambda region: GeoPackageWarehouse(path, region=region, deadline_s=20)
    url, schema = request.getfixturevalue("shared_url"), f"scenes_{next(_SERIAL)}"
    migrate_warehouse(url, schema=schema)
    return lambda region: PostGISWarehouse(url, schema=schema, region=region, deadline_s=20)


@pytest.fixture
def warehouse(open_region: Any) -> Warehouse:
    opened: Warehouse = open_region(REGION)
    return opened


def in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("collection", "ascending"), ("item_id", "ascending")])


def test_what_is_written_is_read_back(warehouse: Warehouse) -> None:
    partition = make_partition(key_of(), 40)
    replaced = warehouse.replace(partition)
    assert (replaced.key, replaced.deleted_rows, replaced.written_rows) == (key_of(), 0, 40)
    assert warehouse.read(key_of()).equals(in_order(partition.rows))


def test_values_survive_to_the_last_bit(warehouse: Warehouse) -> None:
    """A32, A33, A37: nulls, empty text, JSON, microseconds and hostile characters."""
    texts = ["", "a'b", 'c"d', "e\\f", "g\th\ni", "j%k %s", "é漢\U0001f6f0", "NULL", "\\N", "{}"]
    instants = [
        datetime(2024, 6, 1, tzinfo=UTC) + timedelta(microseconds=us)
        for us in (0, 1, 999, 1000, 123456, 123000, 999999, 86_399_999_999, 500000, 10)
    ]
    optional = [None, *instants[1:9], None]
    properties = [
        json.dumps({"t": text, "n": [1, 2.5, None, True, 1e-9], "deep": {"": {}}}, sort_keys=True,
                   ensure_ascii=False, separators=(",", ":"))
        for text in texts
    ]  # fmt: skip
    columns = {
        "acquired_at": instants,
        "start_at": optional,
        "end_at": [None] * 10,
        "updated_at": optional,
        "platform": [None, *texts[:9]],
        "item_href": texts,
        "gsd_m": [None, 0.1, 1 / 3, 1e-300, 1e300, -0.0, 5e-324, 2.0**53, 10.0, None],
        "properties": properties,
        "repairs": [[], [""], ["a", "b"], ["{", '"', ","], [None], ["é"], [], [], [], ["NULL"]],
    }
    partition = make_partition(key_of(), [f"id-{text}" for text in texts], columns=columns)
    warehouse.replace(partition)
    stored = warehouse.read(key_of())
    assert stored.schema.equals(partition.rows.schema)
    assert stored.to_pylist() == in_order(partition.rows).to_pylist()


def test_doing_it_again_changes_nothing(warehouse: Warehouse) -> None:
    partition = make_partition(key_of(), 5)
    warehouse.replace(partition)
    again = warehouse.replace(partition)
    assert (again.deleted_rows, again.written_rows) == (5, 5)
    assert warehouse.read(key_of()).equals(in_order(partition.rows))
    assert warehouse.read_versions([key_of()]) == {key_of(): TableVersion(1, 5)}


def test_a_partition_shrinks_grows_and_empties(warehouse: Warehouse) -> None:
    for raw_seq, count in enumerate((5, 2, 7, 0, 3), start=1):
        warehouse.replace(make_partition(key_of(), count, raw_seq=raw_seq))
        assert warehouse.read(key_of()).num_rows == count
        assert warehouse.read_versions([key_of()]) == {key_of(): TableVersion(raw_seq, count)}
        assert warehouse.count_rows([key_of()]) == {key_of(): count}


def test_neighbours_and_other_regions_are_left_alone(open_region: Any) -> None:
    here, there = open_region(REGION), open_region("fiji")
    tile, other_tile = key_of(), key_of(tile="7-66-46")
    shared = ["seam-1", "seam-2"]  # scenes that lie on the tiles' common edge
    here.replace(make_partition(tile, shared))
    here.replace(make_partition(other_tile, [*shared, "inner"]))
    there.replace(make_partition(tile, ["seam-1"], region="fiji", raw_seq=9))
    here.replace(make_partition(tile, ["seam-1"], raw_seq=2))
    keys = [tile, other_tile]
    assert here.count_rows(keys) == {tile: 1, other_tile: 3}
    assert here.read_versions(keys) == {tile: TableVersion(2, 1), other_tile: TableVersion(1, 3)}
    assert there.read_versions(keys) == {tile: TableVersion(9, 1)}
    assert there.read(tile)["region"].to_pylist() == ["fiji"]


def test_a_lower_raw_version_never_overwrites_a_higher_one(warehouse: Warehouse) -> None:
    warehouse.replace(make_partition(key_of(), ["new"], raw_seq=5))
    with pytest.raises(StaleVersionError, match="raw version 4 would overwrite 5") as caught:
        warehouse.replace(make_partition(key_of(), ["old-1", "old-2"], raw_seq=4))
    assert "2024-06-01|7-66-45" in str(caught.value)
    assert warehouse.read(key_of())["item_id"].to_pylist() == ["new"]
    assert warehouse.read_versions([key_of()]) == {key_of(): TableVersion(5, 1)}


def with_column(partition: PartitionRows, name: str, values: Any) -> PartitionRows:
    at = partition.rows.schema.get_field_index(name)
    rows = partition.rows.set_column(at, name, values)
    return PartitionRows(partition.key, rows, partition.raw_seq)


MISFITS: dict[str, tuple[Any, str]] = {
    "missing column": (
        lambda p: PartitionRows(p.key, p.rows.drop_columns(["platform"]), p.raw_seq),
        "column platform is missing",
    ),
    "other type": (lambda p: with_column(p, "gsd_m", pa.array([10, 10, 10])), "gsd_m is int64"),
    "naive instants": (
        lambda p: with_column(p, "start_at", pa.nulls(3, pa.timestamp("us"))),
        r"start_at is timestamp\[us\]",
    ),
    "null where none may be": (
        lambda p: with_column(p, "collection", pa.array(["c", None, None])),
        "collection holds 2 nulls",
    ),
    "other region": (
        lambda p: with_column(p, "region", pa.array(["alps", "alps", "fiji"])),
        "region must be alps in every row, found fiji",
    ),
    "other day": (
        lambda p: with_column(p, "acq_date", pa.array([date(2024, 6, 2)] * 3)),
        "acq_date must be 2024-06-01",
    ),
    "other tile": (lambda p: with_column(p, "tile", pa.array(["7-0-0"] * 3)), "found 7-0-0"),
    "other raw version": (
        lambda p: with_column(p, "raw_seq", pa.array([1, 2, 3], pa.int64())),
        "raw_seq must be 1 in every row, found 2, 3",
    ),
    "an Item twice": (
        lambda p: with_column(p, "item_id", pa.array(["a", "b", "a"])),
        "(?i)unique|duplicate",
    ),
}
GEOMETRIES: dict[str, tuple[bytes, str]] = {
    "polygon (A34)": (BOX.geoms[0].wkb, r"is a Polygon\n"),
    "Z (A40)": (
        shapely.to_wkb(shapely.force_3d(BOX), output_dimension=3, flavor="iso"),
        "is a 3D MultiPolygon",
    ),
    "other SRID (A35)": (
        shapely.to_wkb(shapely.set_srid(BOX, 4326), include_srid=True),
        "is a MultiPolygon of SRID 4326",
    ),
    "empty": (shapely.MultiPolygon().wkb, "is an empty MultiPolygon"),
    "big-endian": (shapely.to_wkb(BOX, byte_order=0), "in big-endian order"),
    "no WKB": (b"POLYGON", "is not WKB"),
    "nothing": (b"", "is not WKB"),
}
MISFITS |= {
    name: (lambda p, wkb=wkb: with_column(p, "geometry", pa.array([BOX.wkb, wkb, BOX.wkb])), text)
    for name, (wkb, text) in GEOMETRIES.items()
}


@pytest.mark.parametrize("name", MISFITS)
def test_rows_that_do_not_fit_are_refused_and_change_nothing(
    warehouse: Warehouse, name: str
) -> None:
    spoil, text = MISFITS[name]
    good = make_partition(key_of(), ["a", "b", "c"])
    warehouse.replace(good)
    with pytest.raises(TableMismatchError, match=text) as caught:
        warehouse.replace(spoil(good))
    assert "2024-06-01|7-66-45 of region alps" in caught.value.where
    assert caught.value.next_step
    if name in GEOMETRIES:
        assert "Item b" in str(caught.value)
    assert warehouse.read(key_of()).equals(good.rows)


def published(day: int, count: int = 1) -> dict[str, list[datetime]]:
    return {"updated_at": [datetime(2024, 7, day, tzinfo=UTC)] * count}


def test_an_item_that_moves_day_leaves_its_old_day(warehouse: Warehouse) -> None:
    old, new, old_neighbour = key_of(1), key_of(2), key_of(1, "7-66-46")
    warehouse.replace(make_partition(old, ["mover", "stayer"]))
    warehouse.replace(make_partition(old_neighbour, ["mover"]))
    warehouse.replace(make_partition(new, ["mover"]))
    assert warehouse.read(old)["item_id"].to_pylist() == ["stayer"]
    assert warehouse.read(new)["item_id"].to_pylist() == ["mover"]
    assert warehouse.read_versions([old, new, old_neighbour]) == {
        old: TableVersion(1, 1),  # its file has 2: the difference shows that it changed
        old_neighbour: TableVersion(1, 0),
        new: TableVersion(1, 1),
    }


def test_an_item_of_another_collection_does_not_move(warehouse: Warehouse) -> None:
    warehouse.replace(make_partition(key_of(1), ["a"]))
    warehouse.replace(make_partition(key_of(2), ["a"], columns={"collection": ["landsat-c2-l2"]}))
    assert warehouse.count_rows([key_of(1), key_of(2)]) == {key_of(1): 1, key_of(2): 1}


def test_a_stale_file_does_not_take_a_moved_item_back(warehouse: Warehouse) -> None:
    """The old day's file, read before the move and written after it, is refused whole."""
    warehouse.replace(make_partition(key_of(2), ["mover"], columns=published(20)))
    stale = make_partition(key_of(1), ["mover", "stayer"], columns=published(10, 2))
    with pytest.raises(StaleVersionError, match="sentinel-2-l2a/mover has moved to 2024-06-02"):
        warehouse.replace(stale)
    assert warehouse.count_rows([key_of(1), key_of(2)]) == {key_of(1): 0, key_of(2): 1}
    assert key_of(1) not in warehouse.read_versions([key_of(1)])


def test_publication_falls_back_to_created_and_sub_seconds_count(warehouse: Warehouse) -> None:
    second = datetime(2024, 7, 1, tzinfo=UTC)
    newer = {"updated_at": [None], "created_at": [second + timedelta(microseconds=1)]}
    warehouse.replace(make_partition(key_of(2), ["mover"], columns=newer))
    older = {"updated_at": [second], "created_at": [None]}
    with pytest.raises(StaleVersionError, match="has moved to 2024-06-02"):
        warehouse.replace(make_partition(key_of(1), ["mover"], columns=older))
    unknown = {"updated_at": [None], "created_at": [None]}  # no order: the last writer wins
    warehouse.replace(make_partition(key_of(1), ["mover"], columns=unknown))
    assert warehouse.count_rows([key_of(1), key_of(2)]) == {key_of(1): 1, key_of(2): 0}


def test_many_keys_each_get_one_outcome(warehouse: Warehouse) -> None:
    good = [make_partition(key_of(day), day % 4) for day in range(1, 131)]
    warehouse.replace(make_partition(key_of(200), ["newer"], raw_seq=7))
    stale = make_partition(key_of(200), ["older"], raw_seq=6)
    twice = with_column(make_partition(key_of(201), ["a", "b"]), "item_id", pa.array(["a", "a"]))
    point = with_column(
        make_partition(key_of(202), ["p"]), "geometry", pa.array([shapely.Point(0, 0).wkb])
    )
    shuffled = [*good[60:], stale, twice, *good[:60], point]
    outcomes = list(warehouse.replace_many(shuffled))

    done = [outcome for outcome in outcomes if isinstance(outcome, Replaced)]
    failed = dict(outcome for outcome in outcomes if isinstance(outcome, tuple))
    assert sorted(outcome.key for outcome in done) == [partition.key for partition in good]
    assert {key: type(error) for key, error in failed.items()} == {
        key_of(200): StaleVersionError,
        key_of(201): TableMismatchError,
        key_of(202): TableMismatchError,
    }
    keys = [partition.key for partition in good]
    assert warehouse.count_rows(keys) == {key_of(day): day % 4 for day in range(1, 131)}
    assert warehouse.read(key_of(200))["item_id"].to_pylist() == ["newer"]


def test_many_keys_are_taken_as_they_are_needed(warehouse: Warehouse) -> None:
    taken = 0

    def partitions() -> Iterator[PartitionRows]:
        nonlocal taken
        for day in range(1, 301):
            taken += 1
            yield make_partition(key_of(day), 1)

    outcomes = warehouse.replace_many(partitions())
    first = next(iter(outcomes))
    assert isinstance(first, Replaced)
    assert taken <= 200
    assert warehouse.count_rows([first.key]) == {first.key: 1}, "an outcome means committed"
    assert len(list(outcomes)) == 299


def test_no_keys_no_outcomes(warehouse: Warehouse) -> None:
    assert list(warehouse.replace_many([])) == []
    assert warehouse.read_versions([]) == {}
    assert warehouse.count_rows([]) == {}


def test_an_item_in_two_days_of_one_batch_ends_in_one(warehouse: Warehouse) -> None:
    batch = [make_partition(key_of(day), ["mover", f"only-{day}"]) for day in (1, 2, 3)]
    assert all(isinstance(outcome, Replaced) for outcome in warehouse.replace_many(batch))
    counts = warehouse.count_rows([key_of(1), key_of(2), key_of(3)])
    assert counts == {key_of(1): 1, key_of(2): 1, key_of(3): 2}


def test_reads_of_an_empty_warehouse(warehouse: Warehouse) -> None:
    assert warehouse.read_versions([key_of()]) == {}
    assert warehouse.count_rows([key_of()]) == {key_of(): 0}
    nothing = warehouse.read(key_of())
    assert nothing.num_rows == 0
    assert nothing.schema.equals(make_partition(key_of(), 1).rows.schema)


def test_versions_of_a_long_window(warehouse: Warehouse) -> None:
    stored = [key_of(day) for day in range(1, 40, 13)]
    for key in stored:
        warehouse.replace(make_partition(key, 1, raw_seq=3))
    tiles = [f"7-{x}-{y}" for x in range(60, 75) for y in range(40, 50)]
    window = [PartitionKey(key_of(day).day, tile) for day in range(1, 81) for tile in tiles]
    assert len(window) == 12_000
    assert warehouse.read_versions(window) == dict.fromkeys(stored, TableVersion(3, 1))
    assert sum(warehouse.count_rows(window).values()) == len(stored)


def test_retention_removes_whole_earlier_days_of_its_region(open_region: Any) -> None:
    mine, theirs = open_region(REGION), open_region("another")
    days = [date(2024, 3, 31), date(2024, 4, 1), date(2024, 4, 30), date(2024, 5, 1)]
    keys = [PartitionKey(day, key_of().tile) for day in days]
    for number, key in enumerate(keys):
        names = [f"item-{number}-{row}" for row in range(3)]
        mine.replace(make_partition(key, names))
        theirs.replace(make_partition(key, names, region="another"))
    assert mine.remove_before(days[-1]) == 9
    assert mine.remove_before(days[-1]) == 0
    assert mine.count_rows(keys) == dict(zip(keys, [0, 0, 0, 3], strict=True))
    assert set(mine.read_versions(keys)) == {keys[-1]}
    assert set(theirs.count_rows(keys).values()) == {3}
