"""A region under test beside its oracle: every step of ingest, in any order, with any accident.

`World` drives the real `StreamIngester`, epochs, routing and publication over real stores, one
durable step at a time, and `World.check` compares what is stored with what the rule demands.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from scene_pipeline.errors import (
    CheckpointLostError,
    SourceFaultError,
    SourceUnavailableError,
    TokenExpiredError,
    UsageError,
)
from scene_pipeline.ingest.checkpoints import Checkpoint, Lane, block_checkpoint
from scene_pipeline.ingest.epochs import StreamEntry, reconcile
from scene_pipeline.ingest.frontier import (
    PublishedFrontier,
    publish_frontier,
    read_evidence,
    read_frontier,
    swap_frontier,
)
from scene_pipeline.ingest.frontier_plan import Evidence
from scene_pipeline.ingest.ingester import Fetched, OpenStream, StreamIngester, scope_of
from scene_pipeline.ingest.membership import join_stream, leave_stream, retire_stream
from scene_pipeline.ingest.raw import read_raw_scenes
from scene_pipeline.ingest.region import Region
from scene_pipeline.ingest.routing import reassign_segment
from scene_pipeline.lake.store import ObjectStore
from scene_pipeline.scenes.grid import WebMercatorGrid
from scene_pipeline.scenes.keys import PartitionKey, SceneDefinition
from scene_pipeline.state import tables as t
from scene_pipeline_tests.property.ingest_oracle import Key, Oracle, digest_of
from scene_pipeline_tests.property.ingest_provider import (
    AREA,
    BOXES,
    COLLECTION,
    START,
    Provider,
    Version,
)

WINDOW = timedelta(days=1)


class Killed(BaseException):
    """The process is gone."""


@dataclass(frozen=True)
class InFlight:
    """A page that an ingester holds in memory."""

    stored: Checkpoint
    fetched: Fetched
    prepared: Any


def tiles_of(box: tuple[float, float, float, float], zoom: int) -> set[str]:
    """Slippy-map arithmetic of its own, for boxes that cross no tile row at the antimeridian."""

    def column(lon: float) -> int:
        return math.floor((lon + 180) / 360 * 2**zoom)

    def row(lat: float) -> int:
        y = math.asinh(math.tan(math.radians(lat)))
        return math.floor((1 - y / math.pi) / 2 * 2**zoom)

    west, south, east, north = box
    return {
        f"{zoom}-{x}-{y}"
        for x in range(column(west), column(east) + 1)
        for y in range(row(north), row(south) + 1)
    }


class World:
    """One region, its providers, its clock, its ingesters, its oracle."""

    def __init__(self, engine: sa.Engine, store: ObjectStore, name: str) -> None:
        self.engine, self.store, self.name = engine, store, name
        self.now_s = 0
        self.clock_skew_s = 0
        self.zoom = 7
        self.providers: dict[str, Provider] = {}
        self.in_flight: dict[tuple[str, Lane, int], InFlight] = {}
        self.evidence: dict[int, Evidence] = {}
        self.seen: dict[str, set[str]] = defaultdict(set)
        self.delivered: dict[str, set[str]] = defaultdict(set)
        self.leaving: dict[str, datetime] = {}
        self.retired: set[str] = set()
        self.segment_news: dict[str, list[dict[str, Any]]] = {}
        self.items_by_digest: dict[str, dict[str, Any]] = {}
        self.lost = 0
        self.commits = 0
        self.last: PublishedFrontier | None = None
        self.oracle = Oracle(self._place)
        self._writes = 0
        sa.event.listen(engine, "before_cursor_execute", self._count_write)
        self.region = self._open_region()

    def close(self) -> None:
        """Stop watching the engine."""
        sa.event.remove(self.engine, "before_cursor_execute", self._count_write)

    # What the settings say.

    def _open_region(self) -> Region:
        grid = WebMercatorGrid(self.zoom, AREA)
        definition = SceneDefinition(
            region=self.name, start=START.date(), end=None, grid=grid.name, tiles=grid.keys
        )
        return Region(
            engine=self.engine, store=self.store, definition=definition, grid=grid, area=AREA,
            routing=0, first=START, clock=self.clock,
        )  # fmt: skip

    def clock(self) -> datetime:
        """Our clock, which need not be the provider's."""
        return START + timedelta(seconds=self.now_s + self.clock_skew_s)

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.now_s)

    def _place(self, item: dict[str, Any]) -> frozenset[Key]:
        at = datetime.fromisoformat(item["properties"]["datetime"])
        ring = item["geometry"]["coordinates"][0]
        box = next(b for b in BOXES.values() if b and [b[0], b[1]] == ring[0])
        tiles = tiles_of(box, self.zoom) & tiles_of(
            (AREA[0], AREA[1], AREA[2] - 1e-9, AREA[3]), self.zoom
        )
        return frozenset((at.date(), tile) for tile in tiles) if at >= START else frozenset()

    def add(self, provider: Provider) -> None:
        self.providers[provider.name] = provider

    def settle_settings(self) -> None:
        """What `run_ingest` does first: membership and grid as the settings have them."""
        entries = {
            name: StreamEntry(name, self.scope(name), "", "test", None) for name in self.providers
        }
        found = reconcile(self.engine, self.region.definition, entries, now=self.clock())
        self.region = replace(self.region, routing=found.routing)

    def change_grid(self, zoom: int) -> None:
        self.zoom = zoom
        self.region = self._open_region()
        self.settle_settings()

    def scope(self, name: str, *, broad: bool | None = None) -> str:
        provider = self.providers[name]
        asked = provider if broad is None else replace(provider, broad=broad)
        return scope_of(asked, COLLECTION, AREA, START)

    def ingester(self, name: str, lane: Lane) -> StreamIngester:
        stream = OpenStream(
            name=name, collection=COLLECTION, source=self.providers[name], scope=self.scope(name),
            page_limit=2, window=WINDOW, rescan=timedelta(days=2),
        )  # fmt: skip
        return StreamIngester(self.region, stream, lane)

    # What ingesters do, one durable step at a time.

    def fetch(self, name: str, lane: Lane = "forward", who: int = 0) -> bool:
        """Fetch the next page into memory; False where there is none to fetch."""
        ingester = self.ingester(name, lane)
        stored = ingester.read()
        current = ingester.plan(stored, self.now)
        self.in_flight.pop((name, lane, who), None)
        if current is None:
            return False
        try:
            try:
                fetched = ingester.fetch(current)
            except TokenExpiredError:
                fetched = ingester.fetch(current.restarted())
        except SourceUnavailableError as error:
            block_checkpoint(
                self.engine, stored, state="blocked", reason=error.what, now=self.clock()
            )
            return False
        self.in_flight[name, lane, who] = InFlight(stored, fetched, ingester.prepare(fetched))
        return True

    def commit(
        self,
        name: str,
        lane: Lane = "forward",
        who: int = 0,
        *,
        kill_at: int | None = None,
        lose_reply: bool = False,
    ) -> str:
        """Commit the page in memory; says what happened. A lost reply keeps the page in memory."""
        held = self.in_flight.get((name, lane, who))
        if held is None:
            return "nothing"
        if not lose_reply:
            del self.in_flight[name, lane, who]
        files = self._files()
        ingester = self.ingester(name, lane)
        try:
            with self._killing(kill_at):
                committed = ingester.commit(held.stored, held.fetched, held.prepared)
        except CheckpointLostError:
            self.in_flight.pop((name, lane, who), None)
            self.lost += 1
            assert self._files() == files, "a stale retry wrote a file"
            return "lost"
        except SourceFaultError as error:
            self.in_flight.pop((name, lane, who), None)
            assert self._files() == files, "a refused page wrote a file"
            block_checkpoint(
                self.engine, held.stored, state="faulted", reason=error.what, now=self.clock()
            )
            return "fault"
        except Killed:
            return "killed"
        self.commits += 1
        self._tell_oracle(name, lane, held, committed)
        return "done" if committed.ended and committed.complete else "ok"

    def _tell_oracle(self, name: str, lane: Lane, held: InFlight, committed: Any) -> None:
        current, page = held.fetched.current, held.fetched.page
        window = current.window
        assert window is not None
        items = [dict(item) for item in page.items]
        self.items_by_digest |= {digest_of(item): item for item in items}
        for item in items:
            if window.start <= datetime.fromisoformat(item["properties"]["datetime"]) < window.end:
                self.delivered[name].add(item["id"])
        covered = self._covered()
        news = self.oracle.commit(name, items, covered)
        fresh = self._segments() - self.segment_news.keys()
        assert len(fresh) <= 1
        for digest in fresh:
            self.segment_news[digest] = [self.items_by_digest[each] for each in news]
        if lane == "rescan":
            if current.traversal is None:
                self.seen[name] = set()
            self.seen[name] |= {item["id"] for item in items}
            exact = self.providers[name].matched == "exact"
            if committed.ended and committed.complete and exact:
                self.oracle.rescan(
                    name,
                    window=(window.start, window.end),
                    seen=self.seen[name],
                    delivered=self.delivered[name],
                    covered=covered,
                )

    def reassign(self) -> bool:
        """One step of re-assigning the raw lake; False where nothing is left."""
        before = self._segments(self.region.routing)
        more = reassign_segment(
            self.engine, self.store, definition=self.region.definition, grid=self.region.grid,
            generation=self.region.routing, now=self.clock(),
        )  # fmt: skip
        for digest in self._segments(self.region.routing) - before:
            places = {digest_of(item): self._place(item) for item in self.segment_news[digest]}
            self.oracle.reassign(places, self._covered())
        return more

    def read_evidence(self, who: int) -> None:
        evidence = read_evidence(self.engine, self.name)
        if evidence is not None:
            self.evidence[who] = evidence

    def swap(self, who: int) -> bool:
        """Publish from evidence that may be old by now."""
        evidence = self.evidence.pop(who, None)
        if evidence is None:
            return False
        return swap_frontier(self.engine, self.name, evidence, now=self.clock()) is not None

    def publish(self) -> PublishedFrontier | None:
        return publish_frontier(self.engine, self.name, now=self.clock())

    # What operators do.

    def leave(self, name: str, through: datetime) -> bool:
        try:
            leave_stream(self.engine, self.name, name, through=through, now=self.clock())
        except UsageError:
            return False
        self.leaving[name] = through
        return True

    def retire(self, name: str) -> bool:
        evidence = read_evidence(self.engine, self.name)
        promised = evidence is not None and evidence.current.find(name) is not None
        try:
            retire_stream(
                self.engine, self.name, name, through=self.now, reason="it died", now=self.clock()
            )
        except UsageError:
            return False
        if promised:
            self.retired.add(name)
        return True

    def rejoin(self, name: str) -> bool:
        try:
            join_stream(self.engine, self.name, name, now=self.clock())
        except UsageError:
            return False
        self.leaving.pop(name, None)
        self.settle_settings()
        return True

    # What must hold after every step.

    def check(self) -> None:
        """Compare all that is stored with the oracle, and the promise with the providers.

        Where no statement has written since, nothing can have changed: an Item that is published
        behind the frontier afterwards is late by definition.
        """
        if self._writes:
            self._writes = 0
            self._check_promise()
            self._check_stored()

    def _count_write(self, _c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        self._writes += not statement.startswith(("SELECT", "BEGIN"))

    def _check_promise(self) -> None:
        published = read_frontier(self.engine, self.name)
        if self.last is not None:
            assert published is not None
            assert published.revision >= self.last.revision
            assert published.epoch >= self.last.epoch
            if self.last.bound is not None:
                assert published.bound is not None
                assert published.bound.order >= self.last.bound.order, "the frontier went back"
        self.last = published
        if published is None or published.bound is None:
            return
        bound = published.bound
        assert bound.endpoint != "unknown"
        assert bound.value <= self.now, "a bound past the present"
        with self.engine.connect() as connection:
            members = connection.execute(
                sa.select(t.members.c.stream, t.members.c.scope).where(
                    t.members.c.region == self.name, t.members.c.epoch == published.epoch
                )
            ).all()
        assert members, "a frontier over no stream"
        for stream, scope in members:
            assert self.providers[stream].finality != "none", "a scalar over a stream without end"
            broad = scope == self.scope(stream, broad=True)
            for version in self.providers[stream].visible(broad=broad):
                inside = version.at < bound.value or (
                    version.at == bound.value and bound.endpoint == "included"
                )
                if inside and not version.unfinished:
                    self._require_receipt(stream, version, f"the frontier {bound} is a lie")
        present = {stream for stream, _ in members}
        for stream, through in self.leaving.items():
            if stream not in present and stream not in self.retired:
                for version in self.providers[stream].visible():
                    if version.at < through and not version.unfinished:
                        self._require_receipt(stream, version, f"left before {through}")
        if self.retired:
            assert self.retired <= {gap.stream for gap in published.gaps} | present

    def _require_receipt(self, stream: str, version: Version, why: str) -> None:
        digests = self.oracle.receipts.get(stream, {}).get(version.item_id, set())
        assert digest_of(version.to_item()) in digests, f"{why}: {stream} {version}"

    def _check_stored(self) -> None:
        with self.engine.connect() as connection:

            def rows(columns: str, table: str) -> list[Any]:
                query = sa.text(f"SELECT {columns} FROM {table} WHERE region = :region")
                days = query.columns(day=sa.Date) if columns.startswith("day") else query
                return list(connection.execute(days, {"region": self.name}))

            receipts = {
                (stream, item_id, digest)
                for stream, item_id, digest, outcome in rows(
                    "stream, item_id, digest, outcome", "receipts"
                )
                if outcome != "vanished"
            }
            sequence = "day, tile, raw_seq"
            versions = {(day, tile): seq for day, tile, seq in rows(sequence, "raw_versions")}
            reopened = {(day, tile): seq for day, tile, seq in rows(sequence, "reopened")}
            placed = {
                ((day, tile), item_id)
                for day, tile, item_id in rows("day, tile, item_id", "placements")
            }
        expected = {
            (stream, item_id, digest)
            for stream, known in self.oracle.receipts.items()
            for item_id, digests in known.items()
            for digest in digests
        }
        unusable = {
            digest_of(item) for item in self.items_by_digest.values() if item["geometry"] is None
        }
        # An unusable Item has no canonical form; its receipt is found by its id.
        assert {(s, i) for s, i, _ in receipts} == {(s, i) for s, i, _ in expected}
        usable = {entry for entry in expected if entry[2] not in unusable}
        assert usable <= receipts
        assert len(receipts) == len(expected)
        assert versions == dict(self.oracle.raw_seq)
        assert placed == {
            (key, item_id) for item_id, entry in self.oracle.winners.items() for key in entry.places
        }
        assert reopened == self.oracle.reopened

    def check_scenes(self) -> None:
        """What a partition would be built from is what the rule says."""
        keys = [PartitionKey(*key) for key in self.oracle.raw_seq]
        expected: dict[PartitionKey, set[str]] = {key: set() for key in keys}
        for entry in self.oracle.winners.values():
            for key in entry.places:
                expected[PartitionKey(*key)].add(entry.digest)
        found = {
            key: (raw_seq, set(table["digest"].to_pylist()))
            for key, raw_seq, table in read_raw_scenes(self.engine, self.store, self.name, keys)
        }
        assert found == {
            key: (self.oracle.raw_seq[key.day, key.tile], digests)
            for key, digests in expected.items()
        }

    def drain(self) -> PublishedFrontier | None:
        """Let everything settle without accidents, and publish."""
        for provider in self.providers.values():
            provider.faults.clear()
        self.in_flight.clear()
        self.settle_settings()
        while self.reassign():
            pass
        for name in self.providers:
            for _ in range(200):
                if not self.fetch(name):
                    break
                outcome = self.commit(name)
                assert outcome in {"ok", "done", "fault"}, outcome
                reached = self.ingester(name, "forward").read().reached
                if outcome == "done" and reached is not None and reached >= self.now:
                    break
            else:
                raise AssertionError(f"{name} does not come to an end")
        return self.publish()

    def _covered(self) -> Callable[[date], bool]:
        published = read_frontier(self.engine, self.name)
        return lambda day: published is not None and published.covers(day)

    def _segments(self, routing: int = 0) -> set[str]:
        column = t.segments.c
        with self.engine.connect() as connection:
            return set(
                connection.execute(
                    sa.select(column.digest).where(
                        column.region == self.name, column.routing >= routing
                    )
                ).scalars()
            )

    def _files(self) -> int:
        base = self.store.base / self.name  # type: ignore[attr-defined]
        return sum(1 for path in base.rglob("*.parquet")) if base.exists() else 0

    def _killing(self, kill_at: int | None) -> Any:
        return _kill_at_statement(self.engine, kill_at)


class _kill_at_statement:  # noqa: N801  reads as the sentence it stands in
    def __init__(self, engine: sa.Engine, number: int | None) -> None:
        self._engine, self._left = engine, number

    def __enter__(self) -> None:
        if self._left is not None:
            sa.event.listen(self._engine, "before_cursor_execute", self._count)
            sa.event.listen(self._engine, "commit", self._at_commit)

    def __exit__(self, *_: object) -> None:
        if self._left is not None:
            sa.event.remove(self._engine, "before_cursor_execute", self._count)
            sa.event.remove(self._engine, "commit", self._at_commit)

    def _count(self, *_: object) -> None:
        assert self._left is not None
        self._left -= 1
        if self._left < 0:
            raise Killed

    def _at_commit(self, connection: sa.Connection) -> None:
        del connection
        raise Killed
