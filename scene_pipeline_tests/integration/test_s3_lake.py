"""The lake on S3 over HTTP: how many requests, and what faults cost."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from scene_pipeline.errors import LakeFileError, SettingsError, StoreUnavailableError
from scene_pipeline.lake.partitions import PartitionLake
from scene_pipeline.lake.s3 import S3Store
from scene_pipeline.lake.segments import read_segment, write_segment
from scene_pipeline.scenes.item import scenes_to_table
from scene_pipeline_tests.services.items import make_scene
from scene_pipeline_tests.services.s3 import Fault, S3Server
from scene_pipeline_tests.services.scene_rows import REGION, key_of, make_partition

pytestmark = pytest.mark.s3


@pytest.fixture
def store(s3_server: S3Server, tmp_path: Path) -> S3Store:
    return S3Store(f"s3://lake/{tmp_path.name}", s3_server.settings())


@pytest.fixture
def lake(store: S3Store) -> PartitionLake:
    return PartitionLake(store, REGION)


def test_one_put_a_partition_and_one_get_a_read(lake: PartitionLake, s3_server: S3Server) -> None:
    """The write's GET asks which raw version is stored; nothing lists, nothing asks for a size."""
    key = key_of()
    small, large = make_partition(key, 333), make_partition(key, 5_000, raw_seq=2)
    s3_server.forget()
    lake.write(key, small.rows, raw_seq=1)
    assert s3_server.kinds() == ["GET", "PUT"]
    s3_server.forget()
    assert lake.read(key).rows.equals(small.rows)
    assert s3_server.kinds() == ["GET"]
    s3_server.forget()
    lake.write(key, large.rows, raw_seq=2)
    assert s3_server.kinds() == ["GET", "PUT"]
    s3_server.forget()
    assert lake.read(key).rows.equals(large.rows)
    assert lake.read_version(key).rows == 5_000
    assert s3_server.kinds() == ["GET", "GET"]
    assert s3_server.requests[-1].headers["Range"].startswith("bytes=-")


def test_a_day_takes_one_get_a_tile(lake: PartitionLake, s3_server: S3Server) -> None:
    tiles = [f"7-66-{row}" for row in range(40, 52)]
    for tile in tiles[:8]:
        lake.write(key_of(1, tile), make_partition(key_of(1, tile), 5).rows, raw_seq=1)
    s3_server.forget()
    assert lake.read_day(key_of().day, tiles).num_rows == 40
    assert s3_server.kinds() == ["GET"] * len(tiles)


def test_a_segment_is_one_put_and_one_get(store: S3Store, s3_server: S3Server) -> None:
    table = scenes_to_table([make_scene(str(number)) for number in range(50)])
    s3_server.forget()
    ref = write_segment(store, REGION, table)
    assert write_segment(store, REGION, table) == ref
    assert s3_server.kinds() == ["PUT", "PUT"]
    assert all(request.headers["If-None-Match"] == "*" for request in s3_server.requests)
    s3_server.forget()
    assert read_segment(store, REGION, ref.digest).equals(table)
    assert s3_server.kinds() == ["GET"]


@pytest.mark.parametrize("fault", ["throttled", "failing", "half-closed", "lost", "slow"])
def test_a_passing_fault_loses_nothing(
    lake: PartitionLake, s3_server: S3Server, fault: Fault
) -> None:
    key = key_of()
    partition = make_partition(key, 100)
    s3_server.inject(fault, method="PUT")
    lake.write(key, partition.rows, raw_seq=1)
    assert s3_server.kinds().count("PUT") == 2
    s3_server.forget()
    s3_server.inject(fault, method="GET")
    assert lake.read(key).rows.equals(partition.rows)
    assert s3_server.kinds().count("GET") == 2
    assert s3_server.pending_faults == 0


def test_a_lost_answer_to_a_new_object_is_not_a_second_object(
    store: S3Store, s3_server: S3Server
) -> None:
    """The first attempt stored it, the second finds it there: the content is in place."""
    s3_server.inject("lost", method="PUT")
    assert store.write_new("raw/x.parquet", b"content") is False
    assert store.read("raw/x.parquet") == b"content"


@pytest.mark.parametrize("fault", ["throttled", "failing", "half-closed", "lost"])
def test_a_lasting_fault_fails_by_name_at_the_deadline(
    s3_server: S3Server, tmp_path: Path, fault: Fault
) -> None:
    store = S3Store(f"s3://lake/{tmp_path.name}", s3_server.settings(deadline_s=1.0))
    lake = PartitionLake(store, REGION)
    key = key_of()
    before = make_partition(key, 10)
    lake.write(key, before.rows, raw_seq=1)
    s3_server.inject(fault, method="GET", times=100)
    with pytest.raises(StoreUnavailableError) as caught:
        lake.read(key)
    assert caught.value.retry_helps
    assert lake.path(key) in caught.value.where
    s3_server.forget()
    s3_server.inject("failing", method="PUT", times=100)
    with pytest.raises(StoreUnavailableError):
        lake.write(key, make_partition(key, 20, raw_seq=2).rows, raw_seq=2)
    s3_server.forget()
    assert lake.read(key).rows.equals(before.rows)


def test_a_server_that_is_away_fails_by_name(s3_server: S3Server) -> None:
    store = S3Store("s3://lake", s3_server.settings(endpoint="http://127.0.0.1:9", deadline_s=0.5))
    with pytest.raises(StoreUnavailableError, match="within"):
        store.read("a/b.parquet")


def test_a_missing_bucket_is_no_missing_partition(s3_server: S3Server) -> None:
    """A wrong bucket that read as "no file" would make every key missing, and be refilled."""
    lake = PartitionLake(S3Store("s3://absent", s3_server.settings()), REGION)
    with pytest.raises(SettingsError, match="bucket"):
        lake.read_version(key_of())


def test_endpoint_and_keys_come_from_the_settings_alone(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "FROM-THE-ENVIRONMENT",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "ap-south-1",
        "FSSPEC_S3_ENDPOINT_URL": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    store = S3Store(f"s3://lake/{tmp_path.name}", s3_server.settings())
    store.write("a.parquet", b"x")
    scope = s3_server.requests[-1].headers["Authorization"]
    assert "Credential=test/" in scope
    assert "/eu-central-1/s3/" in scope


def test_the_server_checks_what_it_stores(store: S3Store, s3_server: S3Server) -> None:
    store.write("a.parquet", b"x")
    digest = base64.b64encode(hashlib.md5(b"x").digest()).decode()
    assert s3_server.requests[-1].headers["Content-MD5"] == digest


_READER = """
import sys
from scene_pipeline.lake.partitions import PartitionLake
from scene_pipeline.lake.s3 import S3Store
from scene_pipeline.settings import S3Settings
from scene_pipeline_tests.services.scene_rows import REGION, key_of

base, endpoint = sys.argv[1:]
settings = S3Settings(endpoint=endpoint, region="eu-central-1", access_key="a", secret_key="b")
lake = PartitionLake(S3Store(base, settings), REGION)
seen = {lake.read(key_of()).raw_seq}
print("ready", flush=True)
while max(seen) < 6:
    partition = lake.read(key_of())
    stored = set(partition.rows["raw_seq"].to_pylist())
    assert stored == {partition.raw_seq}, stored
    assert partition.rows.num_rows == 200 * partition.raw_seq
    seen.add(partition.raw_seq)
print(len(seen), flush=True)
"""


def test_overwriting_while_another_process_reads(lake: PartitionLake, s3_server: S3Server) -> None:
    """Every read is one whole version; A27's cut footers came from sizes remembered too long."""
    key = key_of()
    lake.write(key, make_partition(key, 200).rows, raw_seq=1)
    store = lake.store
    assert isinstance(store, S3Store)
    reader = subprocess.Popen(
        [sys.executable, "-c", _READER, f"s3://lake/{store.prefix}", s3_server.endpoint],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    for version in range(2, 7):
        rows = make_partition(key, 200 * version, raw_seq=version).rows
        lake.write(key, rows, raw_seq=version)
    seen, _ = reader.communicate(timeout=60)
    assert reader.returncode == 0
    assert int(seen) >= 2


def test_a_foreign_object_is_refused_by_its_address(lake: PartitionLake) -> None:
    key = key_of()
    lake.store.write(lake.path(key), b"<html>502 Bad Gateway</html>")
    with pytest.raises(LakeFileError) as caught:
        lake.read(key)
    assert caught.value.where == lake.store.address(lake.path(key))
