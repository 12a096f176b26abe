"""A hypothesis state machine over the real stores, beside the oracle.

It meets the same accidents as the seeded schedules, but shrinks a failure to its shortest form.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scene_pipeline.ingest.checkpoints import Lane
from scene_pipeline.lake.store import LocalStore
from scene_pipeline.state.database import migrate_state, open_state
from scene_pipeline_tests.property.ingest_provider import (
    LAG,
    START,
    Fault,
    Place,
    Provider,
    Version,
)
from scene_pipeline_tests.property.ingest_world import World

LAG_S = int(LAG.total_seconds())
WHO = st.integers(0, 1)
LANES: st.SearchStrategy[Lane] = st.sampled_from(("forward", "forward", "rescan"))
PLACES: st.SearchStrategy[Place] = st.sampled_from(("west", "east", "both", "outside", "unusable"))
FAULTS: st.SearchStrategy[Fault] = st.sampled_from(
    ("unavailable", "token expired", "same token", "same page", "cut", "empty page", "swapped")
)


class IngestMachine(RuleBasedStateMachine):
    """Every rule is one thing that happens; the invariant is what must hold after it."""

    engine: sa.Engine
    store: LocalStore
    serial = 0

    def __init__(self) -> None:
        super().__init__()
        # One database for all examples: regions do not meet.
        IngestMachine.serial += 1
        self.world = World(self.engine, self.store, f"m{IngestMachine.serial}")

    def _provider(self, number: int) -> Provider:
        providers = list(self.world.providers.values())
        return providers[number % len(providers)]

    def _add(self, **declared: Any) -> None:
        name = f"s{len(self.world.providers)}"
        self.world.add(Provider(name, lambda: self.world.now_s, **declared))

    @initialize(endpoint=st.sampled_from(("excluded", "included", "unknown")))
    def start(self, endpoint: Any) -> None:
        """A source with a lag, one that says itself how far it is, with any endpoint."""
        self._add()
        self._add(finality="explicit", endpoint=endpoint)
        self.world.settle_settings()

    @rule(
        number=WHO, place=PLACES, back_s=st.integers(0, 3 * LAG_S), broad=st.booleans(),
        replaces=st.none() | st.integers(0, 5),
    )  # fmt: skip
    def publish(
        self, number: int, place: Place, back_s: int, broad: bool, replaces: int | None
    ) -> None:
        """A new Item, or a newer version of one; behind the declared lag where it is old."""
        provider, now_s = self._provider(number), self.world.now_s
        live = [each for each in provider.versions if each.withdrawn_s is None]
        item_id = f"{provider.name}-{len(provider.versions)}"
        if replaces is not None and live:
            old = live[replaces % len(live)]
            item_id, broad = old.item_id, old.broad
        at_s = max(0, now_s - back_s)
        provider.publish(
            Version(
                item_id, len(provider.versions), at_s, place, now_s, broad=broad,
                unfinished=now_s > at_s + LAG_S,
            )
        )  # fmt: skip

    @rule(number=WHO, which=st.integers(0, 5))
    def withdraw(self, number: int, which: int) -> None:
        """An Item disappears."""
        provider = self._provider(number)
        live = [each for each in provider.versions if each.withdrawn_s is None]
        if live:
            provider.withdraw(live[which % len(live)].item_id, self.world.now_s)

    @rule(seconds=st.sampled_from((1, 60, 3600, LAG_S, 43_200, 86_400)))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.world.now_s += seconds

    @rule(number=WHO, fault=FAULTS)
    def break_source(self, number: int, fault: Fault) -> None:
        """The next request goes wrong."""
        self._provider(number).faults.append(fault)

    @rule(number=WHO, lane=LANES, who=WHO)
    def fetch(self, number: int, lane: Lane, who: int) -> None:
        """An ingester takes a page into memory."""
        self.world.fetch(self._provider(number).name, lane, who)

    @precondition(lambda self: self.world.in_flight)
    @rule(which=st.integers(0, 7), kill_at=st.none() | st.integers(0, 30), lose_reply=st.booleans())
    def commit(self, which: int, kill_at: int | None, lose_reply: bool) -> None:
        """It commits it: dies on the way, loses the reply and tries again later, or is stale."""
        held = sorted(self.world.in_flight)
        name, lane, who = held[which % len(held)]
        self.world.commit(name, lane, who, kill_at=kill_at, lose_reply=lose_reply)

    @rule(number=WHO, lane=LANES, pages=st.integers(1, 6))
    def ingest(self, number: int, lane: Lane, pages: int) -> None:
        """Several pages in a row, without an accident."""
        name = self._provider(number).name
        for _ in range(pages):
            if not self.world.fetch(name, lane) or self.world.commit(name, lane) != "ok":
                return

    @rule(who=WHO)
    def read_evidence(self, who: int) -> None:
        """An aggregator reads."""
        self.world.read_evidence(who)

    @rule(who=WHO)
    def swap(self, who: int) -> None:
        """It publishes what it read, however old that is."""
        self.world.swap(who)

    @rule()
    def publish_frontier(self) -> None:
        """An aggregator that is not disturbed."""
        self.world.publish()

    @precondition(lambda self: len(self.world.providers) < 4)
    @rule(
        finality=st.sampled_from(("lag", "lag", "none")),
        paging=st.sampled_from(("keyset", "offset")),
    )
    def join(self, finality: Any, paging: Any) -> None:
        """A stream is added to the settings."""
        self._add(finality=finality, paging=paging)
        self.world.settle_settings()

    @rule(number=WHO, ahead_s=st.integers(-3600, 3600))
    def leave(self, number: int, ahead_s: int) -> None:
        """A stream goes, once it is complete through an instant."""
        through = max(START, self.world.now - LAG + timedelta(seconds=ahead_s))
        self.world.leave(self._provider(number).name, through)

    @rule(number=WHO)
    def retire(self, number: int) -> None:
        """A dead provider is given up."""
        self.world.retire(self._provider(number).name)

    @rule(number=WHO)
    def rejoin(self, number: int) -> None:
        """A stream that had gone comes back."""
        self.world.rejoin(self._provider(number).name)

    @rule(number=WHO)
    def change_scope(self, number: int) -> None:
        """A filter is widened, or narrowed."""
        provider = self._provider(number)
        provider.broad = not provider.broad
        self.world.settle_settings()

    @rule()
    def change_grid(self) -> None:
        """The tiles become larger, or smaller."""
        self.world.change_grid(13 - self.world.zoom)

    @rule()
    def reassign(self) -> None:
        """One step of placing what is there by the new grid."""
        self.world.reassign()

    @invariant()
    def holds(self) -> None:
        """The promise is true, and all that is stored is what the oracle says."""
        self.world.check()

    def teardown(self) -> None:
        """Undisturbed, everything ends where it must."""
        if self.world.providers:
            self.world.drain()
            self.world.check()
            self.world.check_scenes()
        self.world.close()


def _run(engine: sa.Engine, folder: Path, *, examples: int, steps: int) -> None:
    class Machine(IngestMachine):
        pass

    Machine.engine, Machine.store = engine, LocalStore(folder)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_machine_on_sqlite(tmp_path: Path) -> None:
    engine = open_state(f"sqlite:///{tmp_path}/state.db")
    _run(engine, tmp_path / "lake", examples=25, steps=30)
    engine.dispose()


@pytest.mark.postgres
def test_machine_on_postgresql(postgis_url: str) -> None:
    migrate_state(postgis_url)
    engine = open_state(postgis_url)
    with tempfile.TemporaryDirectory() as folder:
        _run(engine, Path(folder), examples=10, steps=30)
    engine.dispose()


@pytest.mark.full
def test_machine_at_length(tmp_path: Path) -> None:
    engine = open_state(f"sqlite:///{tmp_path}/state.db")
    _run(engine, tmp_path / "lake", examples=600, steps=60)
    engine.dispose()
