"""Publishing a frontier over 10,000 streams: flat in the length of its history."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from scene_pipeline.ingest.checkpoints import fingerprint
from scene_pipeline.ingest.epochs import StreamEntry, reconcile
from scene_pipeline.ingest.frontier import publish_frontier
from scene_pipeline.scenes.keys import SceneDefinition
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import open_state
from scene_pipeline_tests.benchmarks.harness import Result, benchmark, compare

START = datetime(2024, 6, 1, tzinfo=UTC)


class Streams:
    """A region of ``count`` streams, of which one more proves an hour at each publication."""

    def __init__(self, folder: Path, count: int, *, history: int) -> None:
        self.engine = open_state(f"sqlite:///{folder}/{count}-{history}.db")
        self.hours = 0
        definition = SceneDefinition("bench", START.date(), None, "none", ("t",))
        names = [f"s{number:05d}" for number in range(count)]
        entries = {
            name: StreamEntry(name, fingerprint(name), "", "lag 48 h", None) for name in names
        }
        reconcile(self.engine, definition, entries, now=START)
        self._prove(t.checkpoints.c.lane == "forward")
        for _ in range(history):
            self.publish()

    def _prove(self, which: sa.ColumnElement[bool]) -> None:
        self.hours += 1
        proven = {"bound_value": START + timedelta(hours=self.hours), "bound_endpoint": "excluded"}
        with self.engine.begin() as connection:
            connection.execute(t.checkpoints.update().where(which).values(**proven))

    def publish(self) -> None:
        """One stream moves, and the frontier is computed and published anew."""
        self._prove(t.checkpoints.c.stream == f"s{self.hours % 7:05d}")
        published = publish_frontier(self.engine, "bench", now=START)
        assert published is not None
        assert published.bound is not None


@benchmark("frontier_10k_history_100_vs_1")
def measure_history() -> Result:
    """Ten thousand streams after 100 publications, against the same after one."""
    with tempfile.TemporaryDirectory() as folder:
        long = Streams(Path(folder), 10_000, history=100)
        short = Streams(Path(folder), 10_000, history=1)
        return compare(long.publish, short.publish, rounds=5, target=1.2)


@benchmark("frontier_10k_vs_1k_per_stream")
def measure_streams() -> Result:
    """Ten thousand streams once, against a thousand streams ten times: linear is 1."""
    with tempfile.TemporaryDirectory() as folder:
        many = Streams(Path(folder), 10_000, history=1)
        few = Streams(Path(folder), 1_000, history=1)

        def ten_times() -> None:
            for _ in range(10):
                few.publish()

        return compare(many.publish, ten_times, rounds=5, target=1.2)
