"""What every object store promises, run by the local folder and by S3 over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from scene_pipeline.errors import LakeFileError
from scene_pipeline.lake.s3 import S3Store
from scene_pipeline.lake.store import LocalStore, ObjectStore, open_store
from scene_pipeline.settings import S3Settings
from scene_pipeline_tests.services.s3 import S3Server


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "local":
        yield LocalStore(tmp_path / "lake")
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        yield S3Store(f"s3://lake/{tmp_path.name}", server.settings())


def test_bytes_come_back_as_they_were_written(store: ObjectStore) -> None:
    content = bytes(range(256)) * 100
    store.write("region/a/file.parquet", content)
    assert store.read("region/a/file.parquet") == content


def test_an_overwrite_replaces_a_longer_and_a_shorter_object(store: ObjectStore) -> None:
    """A27: a reader that trusts a stale size gets a cut footer."""
    for content in (b"short", b"much longer than before" * 1000, b"", b"end"):
        store.write("a/b.parquet", content)
        assert store.read("a/b.parquet") == content


def test_last_bytes_alone(store: ObjectStore) -> None:
    store.write("a/b.parquet", bytes(range(200)))
    assert store.read("a/b.parquet", last=10)[-10:] == bytes(range(190, 200))
    assert len(store.read("a/b.parquet", last=10)) <= 10
    assert store.read("a/b.parquet", last=5000) == bytes(range(200))


def test_an_absent_object_is_told_from_an_empty_one(store: ObjectStore) -> None:
    with pytest.raises(FileNotFoundError):
        store.read("nowhere/x.parquet")
    with pytest.raises(FileNotFoundError):
        store.read("nowhere/x.parquet", last=8)
    store.write("nowhere/x.parquet", b"")
    assert store.read("nowhere/x.parquet") == b""


def test_write_new_never_replaces(store: ObjectStore) -> None:
    assert store.write_new("raw/x.parquet", b"first") is True
    assert store.write_new("raw/x.parquet", b"second") is False
    assert store.read("raw/x.parquet") == b"first"


def test_of_many_writers_of_a_new_object_one_wins(store: ObjectStore) -> None:
    start = threading.Barrier(6)
    outcomes: dict[int, bool] = {}

    def write(number: int) -> None:
        start.wait()
        outcomes[number] = store.write_new("raw/race.parquet", str(number).encode() * 1000)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number, won in outcomes.items() if won]
    assert len(outcomes) == 6
    assert len(winners) == 1
    assert store.read("raw/race.parquet") == str(winners[0]).encode() * 1000


def test_a_reader_sees_one_whole_version_while_it_is_overwritten(store: ObjectStore) -> None:
    versions = [bytes([number]) * (50_000 + 10_000 * number) for number in range(8)]
    store.write("a/live.parquet", versions[0])
    stop = threading.Event()
    torn: list[int] = []
    seen: set[int] = set()

    def read() -> None:
        while not stop.is_set():
            content = store.read("a/live.parquet")
            seen.add(len(content))
            if content not in versions:
                torn.append(len(content))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(3):
        for version in versions:
            store.write("a/live.parquet", version)
    stop.set()
    reader.join()
    assert seen
    assert not torn


def test_delete_is_repeatable(store: ObjectStore) -> None:
    store.write("a/b.parquet", b"x")
    store.delete("a/b.parquet")
    store.delete("a/b.parquet")
    with pytest.raises(FileNotFoundError):
        store.read("a/b.parquet")


def test_a_listing_names_what_is_below_a_folder(store: ObjectStore) -> None:
    for path in ("r/raw/a.parquet", "r/raw/ab/c.parquet", "r/raws/d", "r/b.svg", "rest/e"):
        store.write(path, path.encode())
    listed = list(store.list("r/raw"))
    assert [(each.path, each.bytes) for each in listed] == [
        ("r/raw/a.parquet", 15),
        ("r/raw/ab/c.parquet", 18),
    ]
    assert all(each.modified_at.utcoffset() == timedelta(0) for each in listed)
    assert len(list(store.list("r"))) == 4
    assert list(store.list("nowhere")) == []


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", "a//b", "a/./b", "."])
def test_no_path_leaves_the_base(store: ObjectStore, path: str) -> None:
    """A25: keys that are absolute or climb would overwrite a neighbour."""
    with pytest.raises(LakeFileError):
        store.write(path, b"x")
    with pytest.raises(LakeFileError):
        store.read(path)
    with pytest.raises(LakeFileError):
        list(store.list(path))
    with pytest.raises(LakeFileError):
        store.delete(path)


def test_address_is_what_other_tools_open(store: ObjectStore) -> None:
    address = store.address("a/b.parquet")
    assert address.endswith("/a/b.parquet")
    assert address.startswith(("/", "s3://lake/"))


def test_open_store_reads_the_scheme(tmp_path: Path) -> None:
    assert isinstance(open_store(str(tmp_path), S3Settings()), LocalStore)
    assert isinstance(open_store("s3://bucket/prefix", S3Settings()), S3Store)
