"""Serial, threads and processes inside a run: the same files, rows, metadata and failures."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from scene_pipeline.defs.workers import Workers
from scene_pipeline.settings import Caps
from scene_pipeline_tests.services.archive_region import ArchiveRegion, failure_of


def run_region(base: Path, parallelism: str) -> tuple[object, ...]:
    """Files, rows, failures and bare metadata of a window with one corrupt scene."""
    base.mkdir()
    region = ArchiveRegion(base, caps={"parallelism": parallelism, "workers": 2})
    keys = region.window(3)
    region.ingest(region.one_scene_a_key(keys[::2]))
    region.corrupt_scene(keys[4])
    made = region.run("scenes_batched_job", keys)
    failed = failure_of(made).error.cls_name, sorted(failure_of(made).user_failure_data.metadata)
    good = [key for key in keys if key != keys[4]]
    lake = region.pipeline.lake
    files = {str(key): region.pipeline.store.read(lake.path(key)) for key in good}
    facts = [
        (m.partition, {k: v.value for k, v in m.metadata.items() if k in {"rows", "bbox", "map"}})
        for m in region.materializations(made)
    ]
    stored = region.run("footprint_table_job", keys)
    rows = {str(key): region.pipeline.warehouse.read(key).to_pylist() for key in good}
    region.close()
    assert not stored.success  # the corrupt key has no file
    assert len(files) == 17
    return files, rows, failed, sorted(facts, key=lambda fact: str(fact[0]))


def test_each_kind_gives_the_same(tmp_path: Path) -> None:
    kinds = ("serial", "threads", "processes")
    serial, threads, processes = (run_region(tmp_path / kind, kind) for kind in kinds)
    assert serial == threads
    assert serial == processes


def _whereabouts(_: int) -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


@pytest.mark.parametrize("parallelism", ["serial", "threads", "processes"])
def test_work_goes_where_the_setting_says(parallelism: str) -> None:
    workers = Workers(Caps.model_validate({"parallelism": parallelism, "workers": 2}))
    here = os.getpid(), threading.get_ident()
    computed = set(workers.compute_map(_whereabouts, range(8)))
    waited = set(workers.wait_map(_whereabouts, range(8)))
    assert {pid == here[0] for pid, _ in computed} == {parallelism != "processes"}
    assert (waited == {here}) == (parallelism == "serial")
    assert {pid for pid, _ in waited} == {here[0]}


@pytest.mark.parametrize("parallelism", ["serial", "threads"])
def test_results_keep_the_order_and_nothing_runs_far_ahead(parallelism: str) -> None:
    workers = Workers(Caps.model_validate({"parallelism": parallelism, "workers": 3}))
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    def squares() -> Iterable[int]:
        return workers.wait_map(lambda number: number * number, items())

    for count, square in enumerate(squares()):
        assert square == count * count
        assert len(taken) <= count + 1 + 2 * 3 + 1
