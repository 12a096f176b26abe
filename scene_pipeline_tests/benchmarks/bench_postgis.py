"""The PostGIS writer against what a user would do instead, and against the server's own floor.

Both sides write the same rows into tables of the same DDL and indexes in one private server. Ours
replaces a partition that is there (version check, delete, copy, counts); the others only append,
each time to a day of its own.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from itertools import count
from pathlib import Path

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from scene_pipeline.lake.frames import to_geopandas
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.warehouse.encode import encode_rows
from scene_pipeline.warehouse.migrate import migrate_warehouse
from scene_pipeline.warehouse.port import PartitionRows
from scene_pipeline.warehouse.postgis import PostGISWarehouse
from scene_pipeline.warehouse.rows import TABLE_COLUMNS, check_rows
from scene_pipeline_tests.benchmarks.harness import Result, benchmark, compare
from scene_pipeline_tests.services.postgres import run_cluster
from scene_pipeline_tests.services.scene_rows import (
    REGION,
    key_of,
    make_partition,
    make_wide_properties,
)

_DAYS = count(2)  # the first day is ours


@lru_cache(maxsize=1)
def _database() -> URL:
    stack = ExitStack()
    atexit.register(stack.close)
    cluster = stack.enter_context(run_cluster(shared_buffers="512MB", max_wal_size="4GB"))
    url = make_url(cluster.url(cluster.new_database("bench")))
    return url.set(drivername="postgresql+psycopg")


def _open(schema: str) -> PostGISWarehouse:
    migrate_warehouse(_database(), schema=schema)
    return PostGISWarehouse(_database(), schema=schema, region=REGION, deadline_s=60)


def _fill(schema: str, rows: int) -> None:
    """Add ``rows`` in partitions of 333, over as many days of six tiles as that takes."""
    with sa.create_engine(_database()).begin() as connection:
        connection.execute(
            sa.text(
                f"""
                INSERT INTO {schema}.scene_footprints (region, tile, acq_date, collection, item_id,
                    acquired_at, created_at, platform, cloud_cover_pct, item_href, properties,
                    repairs, area_share, raw_seq, geom)
                SELECT '{REGION}', '7-66-' || 40 + n / 333 % 6,
                       date '1990-01-01' + n / (333 * 6), 'sentinel-2-l2a', 'fill-' || n,
                       timestamptz '1990-01-01Z' + n * interval '1 s', timestamptz '2024-01-01Z',
                       'sentinel-2a', n % 100, 'https://stac.example/items/fill-' || n,
                       jsonb_build_object('assets', jsonb_build_object('visual', n)), '{{}}', 1, 1,
                       public.ST_Multi(public.ST_Buffer(
                           public.ST_Point(random() * 313086, random() * 313086, 3857), 55000, 2))
                FROM generate_series(0, :rows - 1) AS n
                """
            ),
            {"rows": rows},
        )
    with psycopg.connect(_plain(), autocommit=True) as connection:
        connection.execute(f"VACUUM (ANALYZE) {schema}.scene_footprints")


def _make(key: PartitionKey, rows: int) -> PartitionRows:
    """Rows as wide as those of real Sentinel-2 Items."""
    ids = [f"S2A_{key.tile}_{key.day:%Y%m%d}_{n:06d}" for n in range(rows)]
    return make_partition(key, ids, columns={"properties": list(map(make_wide_properties, ids))})


def _plain() -> str:
    return _database().set(drivername="postgresql").render_as_string(hide_password=False)


@lru_cache(maxsize=1)
def _filled() -> PostGISWarehouse:
    """Ours: 100 k rows. ``theirs`` holds as many."""
    for schema in ("ours", "theirs"):
        _open(schema)
        _fill(schema, 100_000)
    return _open("ours")


def _appends(rows: int, rounds: int) -> Iterator[object]:
    """Each `next` appends ``rows`` through geopandas; the frames are made beforehand."""
    frames = []
    for _ in range(rounds + 1):
        partition = _make(key_of(next(_DAYS)), rows)
        frame = to_geopandas(partition.rows).rename_geometry("geom")
        # A list reaches the server as text, so a user would write PostgreSQL's own.
        frame["repairs"] = ["{" + ",".join(f'"{r}"' for r in row) + "}" for row in frame["repairs"]]
        frames.append(frame)
    engine = sa.create_engine(_database())
    for frame in frames:
        yield frame.to_postgis("scene_footprints", engine, schema="theirs", if_exists="append")


def _compare_with_to_postgis(rows: int, *, rounds: int, target: float) -> Result:
    ours, partition = _filled(), _make(key_of(1), rows)
    theirs = _appends(rows, rounds)
    return compare(
        lambda: ours.replace(partition), lambda: next(theirs), rounds=rounds, target=target
    )


@benchmark("postgis_replace_333_vs_to_postgis")
def replace_333() -> Result:
    return _compare_with_to_postgis(333, rounds=21, target=0.40)


@benchmark("postgis_replace_10k_vs_to_postgis")
def replace_10k() -> Result:
    return _compare_with_to_postgis(10_000, rounds=7, target=0.30)


@benchmark("postgis_replace_100k_vs_copy_floor")
def replace_100k() -> Result:
    """The floor: the server copies a ready binary file, which has no rows to delete."""
    ours, rounds, rows = _filled(), 3, 100_000
    partition = _make(key_of(1), rows)
    with tempfile.TemporaryDirectory() as folder, psycopg.connect(_plain()) as connection:
        Path(folder).chmod(0o755)
        files = iter([_write_copy_file(folder, rows) for _ in range(rounds + 1)])

        def copy() -> None:
            connection.execute(next(files))
            connection.commit()

        return compare(lambda: ours.replace(partition), copy, rounds=rounds, target=1.8)


def _write_copy_file(folder: str, rows: int) -> str:
    """Encode a day of its own to a file; returns the statement that copies it."""
    partition = _make(key_of(next(_DAYS)), rows)
    table = check_rows(partition, region=REGION)
    path = Path(folder) / f"{partition.key.day}.bin"
    path.write_bytes(b"".join(encode_rows(table)))
    path.chmod(0o644)
    names = ", ".join(c.name.replace("geometry", "geom") for c in TABLE_COLUMNS)
    return f"COPY ours.scene_footprints ({names}) FROM '{path}' (FORMAT binary)"


def _compare_sizes(large: int, *, target: float) -> Result:
    """The same replacement in a small and in a large table."""
    partition = _make(key_of(1), 333)
    sides = []
    for rows in (large, 100_000):
        warehouse = _open(f"rows_{rows}")
        _fill(f"rows_{rows}", rows)
        sides.append(warehouse)
    return compare(
        lambda: sides[0].replace(partition),
        lambda: sides[1].replace(partition),
        rounds=31,
        target=target,
        extra={"rows": large},
    )


@benchmark("postgis_replace_1m_vs_100k")
def replace_in_1m() -> Result:
    return _compare_sizes(1_000_000, target=1.3)


if os.environ.get("FULL"):

    @benchmark("postgis_replace_10m_vs_100k")
    def replace_in_10m() -> Result:
        return _compare_sizes(10_000_000, target=1.3)
