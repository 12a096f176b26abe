"""Many writer processes that start at once, for tests of concurrency."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

from sqlalchemy.engine import make_url

from scene_pipeline.errors import ScenePipelineError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.warehouse import PartitionRows, Replaced, Warehouse
from scene_pipeline.warehouse.geopackage import GeoPackageWarehouse
from scene_pipeline.warehouse.postgis import PostGISWarehouse
from scene_pipeline_tests.services.scene_rows import REGION, make_partition, make_wide_properties

_START: list[Barrier] = []


@dataclass(frozen=True, slots=True)
class WriterJob:
    """One process: ``rounds`` times it replaces each of ``keys`` with ``items`` (a number: so many
    of its own for each key).

    ``is_wide`` gives the rows properties as long as those of real Items.

    ``target`` is a PostgreSQL URL or the path of a GeoPackage. Every row carries ``number`` as
    its processing baseline, so that mixed rows show.
    """

    target: str
    number: int
    keys: tuple[PartitionKey, ...]
    items: tuple[str, ...] | int
    rounds: int = 5
    raw_seq: int = 1
    is_wide: bool = False
    deadline_s: float = 90


def _remember(barrier: Barrier) -> None:
    _START.append(barrier)


def open_target(target: str, *, deadline_s: float = 90) -> Warehouse:
    """The warehouse that a job writes to; a PostGIS one is migrated already."""
    if "://" not in target:
        return GeoPackageWarehouse(Path(target), region=REGION, deadline_s=deadline_s)
    url = make_url(target).set(drivername="postgresql+psycopg")
    return PostGISWarehouse(url, schema="scenes", region=REGION, deadline_s=deadline_s)


def write_rounds(job: WriterJob) -> list[Replaced | str]:
    """What each replacement returned, or the name of the error that it raised."""
    warehouse = open_target(job.target, deadline_s=job.deadline_s)
    partitions = [_make(job, key) for key in job.keys]
    _START[0].wait(timeout=120)
    outcomes: list[Replaced | str] = []
    for _ in range(job.rounds):
        for partition in partitions:
            try:
                outcomes.append(warehouse.replace(partition))
            except ScenePipelineError as error:
                outcomes.append(f"{type(error).__name__}: {error}")
    return outcomes


def _make(job: WriterJob, key: PartitionKey) -> PartitionRows:
    items = job.items
    ids = items if isinstance(items, tuple) else [f"{key}-{number}" for number in range(items)]
    # Without a time of publication no version of an Item is newer: the last writer wins.
    columns: dict[str, list[str | None]] = {
        "processing_baseline": [str(job.number)] * len(ids),
        "created_at": [None] * len(ids),
    }
    if job.is_wide:
        columns["properties"] = list(map(make_wide_properties, ids))
    return make_partition(key, ids, raw_seq=job.raw_seq, columns=columns)


@contextmanager
def run_writers(jobs: Sequence[WriterJob]) -> Iterator[list[Future[list[Replaced | str]]]]:
    """Each job in a process of its own; the block begins when all are released together."""
    # A fork of a clean server: imports are paid once, and no lock of this process comes along.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    barrier = context.Barrier(len(jobs) + 1)
    with ProcessPoolExecutor(
        len(jobs), mp_context=context, initializer=_remember, initargs=(barrier,)
    ) as pool:
        futures = [pool.submit(write_rounds, job) for job in jobs]
        barrier.wait(timeout=120)
        yield futures
