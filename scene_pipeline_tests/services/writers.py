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
from scene_pipeline.warehouse import Replaced, Warehouse
from scene_pipeline.warehouse.geopackage import GeoPackageWarehouse
from scene_pipeline.warehouse.postgis import PostGISWarehouse
from scene_pipeline_tests.services.scene_rows import REGION, make_partition

_START: list[Barrier] = []


@dataclass(frozen=True, slots=True)
class WriterJob:
    """One process: ``rounds`` times it replaces each of ``keys`` with ``items``.

    ``target`` is a PostgreSQL URL or the path of a GeoPackage. Every row carries ``number`` as
    its processing baseline, so that mixed rows show.
    """

    target: str
    number: int
    keys: tuple[PartitionKey, ...]
    items: tuple[str, ...]
    rounds: int = 5
    raw_seq: int = 1
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
    # Without a time of publication no version of an Item is newer: the last writer wins.
    marks = {
        "processing_baseline": [str(job.number)] * len(job.items),
        "created_at": [None] * len(job.items),
    }
    partitions = [
        make_partition(key, job.items, raw_seq=job.raw_seq, columns=marks) for key in job.keys
    ]
    _START[0].wait(timeout=60)
    outcomes: list[Replaced | str] = []
    for _ in range(job.rounds):
        for partition in partitions:
            try:
                outcomes.append(warehouse.replace(partition))
            except ScenePipelineError as error:
                outcomes.append(f"{type(error).__name__}: {error}")
    return outcomes


@contextmanager
def run_writers(jobs: Sequence[WriterJob]) -> Iterator[list[Future[list[Replaced | str]]]]:
    """Each job in a process of its own, all released together."""
    # A fork of a clean server: imports are paid once, and no lock of this process comes along.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    barrier = context.Barrier(len(jobs))
    with ProcessPoolExecutor(
        len(jobs), mp_context=context, initializer=_remember, initargs=(barrier,)
    ) as pool:
        yield [pool.submit(write_rounds, job) for job in jobs]
