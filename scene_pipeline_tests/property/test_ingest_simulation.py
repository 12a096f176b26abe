"""Seeded schedules of everything that can happen to ingest, each step checked by the oracle.

A failure names its seed: ``INGEST_SEED=<seed> pytest …/test_ingest_simulation.py`` repeats it.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from scene_pipeline.ingest.checkpoints import Lane
from scene_pipeline.lake.store import LocalStore
from scene_pipeline.state.database import migrate_state, open_state
from scene_pipeline_tests.property.ingest_provider import (
    LAG,
    START,
    Place,
    Provider,
    Version,
)
from scene_pipeline_tests.property.ingest_world import World

CI_SEEDS = 300
FULL_SEEDS = 4000
STEPS = 36
DAY_S = 86_400
LAG_S = int(LAG.total_seconds())


class Schedule:
    """One seeded run; `happened` counts what it really did."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.serial = 0
        self.spare = 2

    def run(self) -> None:
        for _ in range(self.random.choice((1, 2, 3))):
            self._add_provider()
        self.world.settle_settings()
        for _ in range(STEPS):
            self._pick()()
            self.world.check()
        self._finish()

    def _pick(self) -> Callable[[], None]:
        weights: dict[Callable[[], None], int] = {
            self._publish: 16, self._advance: 4, self._fetch: 14, self._commit: 14,
            self._work: 6, self._rescan: 5, self._fault: 5, self._withdraw: 2,
            self._publish_frontier: 3, self._read: 2, self._swap: 2, self._reassign: 4,
            self._join: 1, self._leave: 1, self._retire: 1, self._rejoin: 1,
            self._change_scope: 1, self._change_grid: 1,
        }  # fmt: skip
        return self.random.choices(list(weights), list(weights.values()))[0]

    def _add_provider(self) -> None:
        pick = self.random.choice
        self.serial += 1
        provider = Provider(
            f"s{self.serial}",
            lambda: self.world.now_s,
            finality=self.random.choices(("lag", "explicit", "none"), (12, 4, 1))[0],
            matched=pick(("exact", "exact", "none")),
            paging=pick(("keyset", "keyset", "offset")),
            endpoint=self.random.choices(("excluded", "included", "unknown"), (3, 3, 1))[0],
            server_skew_s=pick((0, 0, -300, 300)),
        )
        self.world.add(provider)

    def _provider(self) -> Provider:
        return self.random.choice(list(self.world.providers.values()))

    def _publish(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self._publish_one()

    def _publish_one(self) -> None:
        """A new Item, a newer version, one that moved; now and then behind its declaration."""
        provider, rng, now_s = self._provider(), self.random, self.world.now_s
        live = [each for each in provider.versions if each.withdrawn_s is None]
        late = rng.random() < 0.1
        at_s = rng.randint(0, now_s) if late else rng.randint(max(0, now_s - LAG_S), now_s)
        at_s -= at_s % rng.choice((1, 600))  # ties
        place: Place = rng.choice(("west", "west", "east", "both", "outside", "unusable"))
        broad = rng.random() < 0.2
        item_id = f"{provider.name}-{len(provider.versions)}"
        if live and rng.random() < 0.35:
            old = rng.choice(live)
            item_id, broad = old.item_id, old.broad
            if rng.random() < 0.5:
                at_s = old.at_s
            self.happened["newer version"] += 1
        provider.publish(
            Version(
                item_id, len(provider.versions), at_s, place, now_s, broad=broad,
                unfinished=now_s > at_s + LAG_S,
            )
        )  # fmt: skip
        self.happened["late" if now_s > at_s + LAG_S else "published"] += 1

    def _withdraw(self) -> None:
        provider = self._provider()
        live = [each for each in provider.versions if each.withdrawn_s is None]
        if live:
            provider.withdraw(self.random.choice(live).item_id, self.world.now_s)
            self.happened["withdrawn"] += 1

    def _advance(self) -> None:
        self.world.now_s += self.random.choice((1, 60, 3600, LAG_S, DAY_S // 2, DAY_S))

    def _lane(self) -> Lane:
        return "rescan" if self.random.random() < 0.2 else "forward"

    def _fetch(self) -> None:
        self.world.fetch(self._provider().name, self._lane(), self.random.randint(0, 1))

    def _commit(self) -> None:
        if not self.world.in_flight:
            return
        name, lane, who = self.random.choice(sorted(self.world.in_flight))
        kill_at = self.random.randint(0, 30) if self.random.random() < 0.2 else None
        lose = self.random.random() < 0.15
        outcome = self.world.commit(name, lane, who, kill_at=kill_at, lose_reply=lose)
        self.happened[outcome] += 1

    def _work(self) -> None:
        """An ingester that gets several pages done in a row."""
        name = self._provider().name
        self._go_on(name, "forward")

    def _rescan(self) -> None:
        name = self._provider().name
        self._go_on(name, "rescan")

    def _go_on(self, name: str, lane: Lane) -> None:
        for _ in range(self.random.randint(2, 8)):
            if not self.world.fetch(name, lane):
                return
            outcome = self.world.commit(name, lane)
            self.happened.update((outcome, f"{lane} {outcome}"))
            self.world.check()
            if outcome in {"fault", "done"}:
                return

    def _fault(self) -> None:
        provider = self._provider()
        faults = [
            "unavailable",
            "token expired",
            "same token",
            "same page",
            "empty page",
            "swapped",
        ]
        if provider.matched == "exact":
            faults.append("cut")
        provider.faults.append(self.random.choice(faults))  # type: ignore[arg-type]

    def _publish_frontier(self) -> None:
        self.world.publish()

    def _read(self) -> None:
        self.world.read_evidence(self.random.randint(0, 1))

    def _swap(self) -> None:
        if self.world.evidence:
            won = self.world.swap(self.random.choice(sorted(self.world.evidence)))
            self.happened["swapped" if won else "stale aggregator"] += 1

    def _join(self) -> None:
        if self.spare:
            self.spare -= 1
            self._add_provider()
            self.world.settle_settings()
            self.happened["joined"] += 1

    def _leave(self) -> None:
        ahead = timedelta(seconds=self.random.choice((-3600, 0, 3600)))
        through = max(START, self.world.now - LAG + ahead)
        self.happened["left"] += self.world.leave(self._provider().name, through)

    def _retire(self) -> None:
        self.happened["retired"] += self.world.retire(self._provider().name)

    def _rejoin(self) -> None:
        self.happened["rejoined"] += self.world.rejoin(self._provider().name)

    def _change_scope(self) -> None:
        provider = self._provider()
        provider.broad = not provider.broad
        for key in [key for key in self.world.in_flight if key[0] == provider.name]:
            # A process with the old settings may well be alive: it must lose, or end harmlessly.
            if self.random.random() < 0.5:
                del self.world.in_flight[key]
        self.world.settle_settings()
        self.happened["scope changed"] += 1

    def _change_grid(self) -> None:
        self.world.change_grid(13 - self.world.zoom)
        self.happened["grid changed"] += 1
        self._reassign()

    def _reassign(self) -> None:
        self.happened["reassigned"] += self.world.reassign()

    def _finish(self) -> None:
        self.world.now_s += DAY_S  # every leaving stream can be sealed
        self.world.drain()
        self.world.check()
        self.world.check_scenes()
        published = self.world.last
        assert published is not None
        members = [self.world.providers[part.stream] for part in published.vector]
        if any(p.finality == "none" for p in self.world.providers.values()):
            return
        if any(p.finality == "explicit" for p in members):
            return
        # Nothing is in the way: the promise is as far as the declarations allow.
        assert published.bound is not None
        skew = timedelta(seconds=min(0, *(provider.server_skew_s for provider in members)))
        assert published.bound.value == self.world.now - LAG + skew
        self.happened["ended at the bound"] += 1


def _simulate(engine: sa.Engine, store: LocalStore, seeds: Iterator[int] | range) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in seeds:
        schedule = Schedule(World(engine, store, f"r{seed}"), seed)
        try:
            schedule.run()
        except BaseException as error:
            error.add_note(f"INGEST_SEED={seed}")
            raise
        finally:
            schedule.world.close()
        happened += schedule.happened
        happened["lost"] += schedule.world.lost
    return happened


EVERYTHING = (
    "published", "late", "newer version", "withdrawn", "ok", "done", "lost", "killed", "fault",
    "joined", "left", "retired", "rejoined", "scope changed", "grid changed", "reassigned",
    "stale aggregator", "rescan done", "ended at the bound",
)  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = open_state(f"sqlite:///{tmp_path}/state.db")
    # Power cuts are not simulated here, and 300 schedules commit ten thousand times.
    sa.event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA synchronous = OFF"))
    engine.dispose()
    yield engine
    engine.dispose()


def test_schedules_never_break_the_promise(engine: sa.Engine, tmp_path: Path) -> None:
    chosen = os.environ.get("INGEST_SEED")
    seeds = [int(chosen)] if chosen else range(CI_SEEDS)
    happened = _simulate(engine, LocalStore(tmp_path / "lake"), iter(seeds))
    if not chosen:
        assert not [each for each in EVERYTHING if not happened[each]], happened


@pytest.mark.postgres
def test_schedules_on_postgresql(postgis_url: str, tmp_path: Path) -> None:
    migrate_state(postgis_url)
    engine = open_state(postgis_url)
    _simulate(engine, LocalStore(tmp_path / "lake"), range(40))
    engine.dispose()


@pytest.mark.full
def test_thousands_of_schedules(engine: sa.Engine, tmp_path: Path) -> None:
    _simulate(engine, LocalStore(tmp_path / "lake"), range(CI_SEEDS, FULL_SEEDS))
