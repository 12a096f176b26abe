"""The work of one run, side by side: in this thread, in threads, or in processes."""

from __future__ import annotations

import multiprocessing
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cached_property
from typing import TypeVar

from scene_pipeline.settings import Caps

__all__ = ["Workers"]

A = TypeVar("A")
B = TypeVar("B")


class Workers:
    """``caps.workers`` of the kind that ``caps.parallelism`` names; started on first use.

    Waiting for files (`wait_map`) is shared by threads whatever the kind; computing
    (`compute_map`) by threads or by processes. Results come in the order of the items, at most
    two items a worker ahead of them, so that memory does not grow with their number.
    """

    def __init__(self, caps: Caps) -> None:
        self.count = 1 if caps.parallelism == "serial" else caps.workers
        self._kind = caps.parallelism

    def wait_map(self, work: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """``work`` on each item, where it mostly waits."""
        if self.count == 1:
            return map(work, items)
        return _map_ahead(self._threads, work, items, 2 * self.count)

    def compute_map(self, work: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """``work`` on each item, where it mostly computes; for processes it must be picklable."""
        if self.count == 1:
            return map(work, items)
        pool = self._processes if self._kind == "processes" else self._threads
        return _map_ahead(pool, work, items, 2 * self.count)

    @cached_property
    def _threads(self) -> Executor:
        return self._keep(ThreadPoolExecutor(self.count, thread_name_prefix="partition"))

    @cached_property
    def _processes(self) -> Executor:
        # Forking a process that has threads (Dagster's, Arrow's) can stop for ever.
        context = multiprocessing.get_context("spawn")
        return self._keep(ProcessPoolExecutor(self.count, mp_context=context))

    def _keep(self, pool: Executor) -> Executor:
        weakref.finalize(self, pool.shutdown)
        return pool


def _map_ahead(
    pool: Executor, work: Callable[[A], B], items: Iterable[A], ahead: int
) -> Iterator[B]:
    coming: deque[Future[B]] = deque()
    for item in items:
        coming.append(pool.submit(work, item))
        if len(coming) > ahead:
            yield coming.popleft().result()
    while coming:
        yield coming.popleft().result()
