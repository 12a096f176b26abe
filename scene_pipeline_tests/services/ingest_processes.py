"""Whole ingests in processes of their own, killed with -9 at any effect, and what they leave.

A process that has everything imported forks one child a run: a fork costs a hundredth of a start.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd  # noqa: F401  pyarrow loads it at the first array: not once more in each child
import sqlalchemy as sa

from scene_pipeline.ingest.frontier import read_frontier
from scene_pipeline.ingest.runner import run_ingest
from scene_pipeline.ingest.sources.archive import Archive
from scene_pipeline.lake.store import LocalStore
from scene_pipeline.settings import Settings, read_settings
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import migrate_state, open_state
from scene_pipeline_tests.services.items import make_item, make_ring

REGION = "alps"
STREAMS = ("a", "b")
PAGE_LIMIT = 4
# Distinct ids in both archives together.
ITEMS = 19


def write_archives(folder: Path) -> None:
    """Two archives: new scenes, a newer version that moves, unusable and outside ones, twins."""
    for name in STREAMS:
        items = []
        for number in range(9):
            day, west = 1 + number % 4, 6.5 + (number % 3) * 2
            item = make_item(f"{name}-{number}", datetime=f"2024-06-0{day}T10:00:00Z")
            item["geometry"]["coordinates"] = [make_ring(west, 45.5, west + 1, 46.5)]
            items.append(item)
        items[3]["geometry"] = None
        items[4]["geometry"]["coordinates"] = [make_ring(60, 45, 61, 46)]
        moved = make_item(
            f"{name}-1", datetime="2024-06-04T23:00:00Z", updated="2024-06-05T00:00:00Z"
        )
        both = make_item("both", datetime="2024-06-02T10:00:00Z")
        lines = [json.dumps(item) for item in (*items, moved, both)]
        (folder / f"{name}.ndjson").write_text("\n".join(lines) + "\n")


def settings_of(folder: Path, state_url: str, **values: Any) -> Settings:
    """Two streams over the archives of ``folder``; ``lake`` under it."""
    return read_settings(
        region=REGION,
        start_date="2024-06-01",
        end_date="2024-06-06",
        area=(6.0, 45.0, 12.0, 48.0),
        zoom=7,
        state_url=state_url,
        lake=str(folder / "lake"),
        streams=[
            {
                "name": name,
                "path": str(folder / f"{name}.ndjson"),
                "collection": "sentinel-2-l2a",
                "page_limit": PAGE_LIMIT,
                "options": {"complete_through": "2024-06-06"},
            }
            for name in STREAMS
        ],
        **values,
    )


def fork(work: Callable[[], None]) -> int:
    """Run ``work`` in a child; returns its exit code, or minus the signal that ended it."""
    pid = start(work)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def start(work: Callable[[], None]) -> int:
    """Begin ``work`` in a child; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException as error:  # noqa: BLE001  a child must not come back into the test
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(70)
    os._exit(0)


def ingest(settings: Settings) -> None:
    """One whole run; every stream must go through."""
    report = run_ingest(settings)
    for _, error in report.errors:
        raise error


class Effects:
    """Counts what a process does to the world, before and after, and kills it at one of them."""

    def __init__(self, kill_at: int) -> None:
        self.left = kill_at
        self.lock = threading.Lock()

    def happen(self, *_: object) -> None:
        """One more effect."""
        with self.lock:
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, counted before and after."""

        def counted(*arguments: Any, **named: Any) -> Any:
            self.happen()
            result = call(*arguments, **named)
            self.happen()
            return result

        return counted

    def watch(self) -> None:
        """Watch every statement, commit, segment and page of this process."""
        sa.event.listen(sa.Engine, "before_cursor_execute", self.happen)
        sa.event.listen(sa.Engine, "commit", self.happen)
        LocalStore.write_new = self.around(LocalStore.write_new)  # type: ignore[method-assign]
        Archive.fetch_page = self.around(Archive.fetch_page)  # type: ignore[method-assign]


def ingest_until(settings: Settings, kill_at: int) -> Callable[[], None]:
    """An ingest that is killed at its ``kill_at``-th effect, if it has as many."""

    def work() -> None:
        Effects(kill_at).watch()
        ingest(settings)

    return work


_TIMES = {"first_at", "committed_at", "since", "joined_at", "opened_at", "seen_at"}


def dump_state(settings: Settings) -> dict[str, Any]:
    """All that must be equal however the ingest went: no counters of attempts, no times."""
    tables = {
        t.receipts: "stream collection item_id digest outcome stray",
        t.items: "collection item_id digest day tiles superseded twin",
        t.placements: "day tile collection item_id",
        t.raw_versions: "day tile raw_seq",
        t.quarantine: "stream item_id digest state reason",
        t.checkpoints: "stream lane traversal token reached bound_value bound_endpoint state",
        t.streams: "stream pages landed outside quarantined",
        t.segments: "digest rows",
    }
    engine = open_state(settings.state_engine_url)
    with engine.connect() as connection:
        state = {
            table.name: sorted(
                map(str, connection.execute(sa.select(*(table.c[c] for c in names.split()))))
            )
            for table, names in tables.items()
        }
    frontier = read_frontier(engine, REGION)
    engine.dispose()
    state["frontier"] = [str(frontier and (frontier.bound, frontier.epoch))]
    return state


def read_promise(settings: Settings) -> tuple[bool, set[str]]:
    """Whether a bound is published or certified at all, and which Items have a receipt."""
    engine = open_state(settings.state_engine_url)
    with engine.connect() as connection:
        bounds = connection.execute(
            sa.select(t.checkpoints.c.stream).where(t.checkpoints.c.bound_value.is_not(None))
        )
        certified = {row.stream for row in bounds}
        receipts = {row.item_id for row in connection.execute(sa.select(t.receipts.c.item_id))}
    frontier = read_frontier(engine, REGION)
    engine.dispose()
    for name in certified:
        missing = {f"{name}-{number}" for number in range(9)} - receipts
        assert not missing, f"{name} is certified without {missing}"
    return frontier is not None and frontier.bound is not None, receipts


def kill_at_each(folder: Path, state_url: str, first: int, step: int) -> None:
    """Kill an ingest at every ``step``-th effect, let it run again, print what that comes to."""
    for number in range(first, 10_000, step):
        settings = _prepare(folder / str(number), state_url.format(number))
        code = fork(ingest_until(settings, number))
        assert code in (0, -signal.SIGKILL), f"effect {number}: exit code {code}"
        published, receipts = read_promise(settings)
        assert not published or len(receipts) == ITEMS, f"effect {number}: published too early"
        again = fork(lambda: ingest(settings))  # noqa: B023  it ends before the loop goes on
        assert again == 0, f"effect {number}: the next run failed"
        print(json.dumps({"run": number, "state": dump_state(settings)}), flush=True)
        if code == 0:
            return


def run_together(folder: Path, state_url: str, rounds: int) -> None:
    """Two ingesters of the same streams at once, ``rounds`` times."""
    for number in range(rounds):
        settings = _prepare(folder / str(number), state_url.format(number))
        children = [start(lambda: ingest(settings)) for _ in range(2)]  # noqa: B023
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert codes == [0, 0], f"round {number}: exit codes {codes}"
        print(json.dumps({"run": number, "state": dump_state(settings)}), flush=True)


def _prepare(folder: Path, state_url: str) -> Settings:
    folder.mkdir(parents=True)
    write_archives(folder)
    settings = settings_of(folder, state_url)
    migrate_state(settings.state_engine_url)
    return settings


if __name__ == "__main__":
    command = {"kill": kill_at_each, "together": run_together}[sys.argv[1]]
    command(Path(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
