"""One lane of one stream: plan, fetch, prepare, commit, until there is nothing left.

Each step stands alone, so that a test can stop, repeat or interleave them in any order. The next
page is fetched and prepared while this one is committed; promotion stays in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scene_pipeline.errors import (
    CheckpointLostError,
    ScenePipelineError,
    SourceFaultError,
    StateUnavailableError,
    TokenExpiredError,
)
from scene_pipeline.ingest.barrier import Committed, commit_page
from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.checkpoints import (
    Checkpoint,
    Lane,
    block_checkpoint,
    count_lost_swap,
    fingerprint,
    read_checkpoint,
)
from scene_pipeline.ingest.pager import plan_window
from scene_pipeline.ingest.pages import PreparedPage, prepare_page
from scene_pipeline.ingest.region import Region
from scene_pipeline.ingest.sources.base import Area, Page, Query, Source
from scene_pipeline.scenes.item import HALF_EARTH_KM2

__all__ = ["Fetched", "IngestProgress", "LaneReport", "OpenStream", "StreamIngester"]

# A window whose tokens expire again and again is too long for its source.
MAX_RESTARTS = 3
# Two ingesters on one stream lose to each other now and then; not all the time.
MAX_LOST_SWAPS = 1_000


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A configured stream and its source."""

    name: str
    collection: str
    source: Source
    scope: str
    page_limit: int = 250
    window: timedelta = timedelta(days=31)
    rescan: timedelta = timedelta(days=30)
    hold: bool = False
    max_area_km2: float = HALF_EARTH_KM2


@dataclass(frozen=True, slots=True)
class Fetched:
    """A page and the position that it was fetched from."""

    current: Checkpoint
    page: Page


@dataclass(frozen=True, slots=True)
class _Coming:
    """The page that is being fetched and prepared ahead, and the token that it answers."""

    token: str
    page: Future[tuple[Page, PreparedPage]]


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """Where a lane stands: it is at ``at`` on its way to ``to_at``."""

    stream: str
    lane: Lane
    pages: int
    items: int
    at: datetime
    to_at: datetime


@dataclass(frozen=True, slots=True)
class LaneReport:
    """What one run did to one stream. Counts are of distinct versions that this run delivered.

    ``items``: members of all pages; ``known``: versions that had come before. ``bound``,
    ``state`` and ``reason``: the checkpoint at the end. ``error`` None: nothing went wrong.
    """

    stream: str
    lane: Lane
    pages: int = 0
    items: int = 0
    landed: int = 0
    outside: int = 0
    known: int = 0
    older: int = 0
    superseded: int = 0
    late: int = 0
    tombstones: int = 0
    lost_swaps: int = 0
    quarantined: tuple[tuple[str, int], ...] = ()
    bound: Bound | None = None
    state: str = "active"
    reason: str = ""
    error: Exception | None = None

    def counting(self, page: Page, committed: Committed) -> LaneReport:
        """This report with one more page."""
        landed = committed.landed
        reasons = Counter(dict(self.quarantined)) + Counter(landed.quarantined)
        return replace(
            self,
            pages=self.pages + 1,
            items=self.items + len(page.items) + len(page.foreign),
            landed=self.landed + landed.landed,
            outside=self.outside + landed.outside,
            known=self.known + landed.known,
            older=self.older + landed.older,
            superseded=self.superseded + landed.superseded,
            late=self.late + landed.late,
            tombstones=self.tombstones + committed.tombstones,
            quarantined=tuple(sorted(reasons.items())),
        )


def scope_of(source: Source, collection: str, area: Area, first: datetime) -> str:
    """What a stream enumerates: another scope is another stream as far as proofs go."""
    return fingerprint(source.scope, collection, repr(area), first.isoformat(), "[start, end)")


class StreamIngester:
    """Moves one lane of one stream along."""

    def __init__(self, region: Region, stream: OpenStream, lane: Lane = "forward") -> None:
        self._region = region
        self._stream = stream
        self._lane: Lane = lane

    def read(self, lane: Lane | None = None) -> Checkpoint:
        """The durable checkpoint."""
        return read_checkpoint(
            self._region.engine,
            region=self._region.definition.region,
            stream=self._stream.name,
            lane=lane or self._lane,
            scope=self._stream.scope,
        )

    def plan(self, stored: Checkpoint, end: datetime) -> Checkpoint | None:
        """The position to fetch from, or None where the lane has nothing to do before ``end``."""
        first = self._region.first
        if self._lane == "rescan":
            forward = self.read("forward")
            end = forward.bound.value if forward.bound else forward.reached or first
            first = max(first, end - self._stream.rescan)
        return plan_window(
            stored,
            first=first,
            end=end,
            window=self._stream.window,
            request=f"limit={self._stream.page_limit}",
            declaration=self._stream.source.declaration,
            now=self._region.clock(),
        )

    def fetch(self, current: Checkpoint) -> Fetched:
        """The page at ``current``; a first page fixes the time at which its traversal began."""
        query = self._query(current)
        source = self._stream.source
        if current.traversal is not None:
            return Fetched(current, source.fetch_page(query, current.token))
        began_at = self._region.clock()
        # Asked before the first page: what is said later need not hold for what was read earlier.
        claimed = (
            source.complete_through(query) if source.declaration.finality == "explicit" else None
        )
        page = source.fetch_page(query, None)
        if page.server_at is not None:
            began_at = min(began_at, page.server_at)
        return Fetched(replace(current, began_at=began_at, claimed=claimed), page)

    def prepare(self, fetched: Fetched) -> PreparedPage:
        """What the page's members come to."""
        return prepare_page(
            fetched.page.items,
            foreign=fetched.page.foreign,
            definition=self._region.definition,
            grid=self._region.grid,
            routing=self._region.routing,
            collection=self._stream.collection,
            now=self._region.clock(),
            max_area_km2=self._stream.max_area_km2,
        )

    def commit(self, stored: Checkpoint, fetched: Fetched, prepared: PreparedPage) -> Committed:
        """Promote the page; see `barrier.commit_page`."""
        return commit_page(
            self._region.engine,
            self._region.store,
            stored=stored,
            current=fetched.current,
            page=fetched.page,
            prepared=prepared,
            declaration=self._stream.source.declaration,
            first=self._region.first,
            hold=self._stream.hold,
            now=self._region.clock(),
        )

    def run(
        self, end: datetime, progress: Callable[[IngestProgress], None] | None = None
    ) -> LaneReport:
        """Enumerate until everything before ``end`` is, or something stops it; raises nothing.

        An error is in the report, and, as the reason why the stream does not move, in its
        checkpoint.
        """
        report = LaneReport(self._stream.name, self._lane)
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="next-page") as ahead:
                for stored, report in self._steps(report, end, ahead):  # noqa: B020
                    if progress is not None:
                        progress(_measure(stored, report, end))
        except Exception as error:  # noqa: BLE001  one stream's failure must not stop the others
            report = replace(report, error=error)
            self._block(error)
        stored = self.read()
        return replace(report, bound=stored.bound, state=stored.state, reason=stored.reason)

    def _steps(
        self, report: LaneReport, end: datetime, ahead: ThreadPoolExecutor
    ) -> Iterator[tuple[Checkpoint, LaneReport]]:
        restarts = 0
        stored = self.read()
        coming: _Coming | None = None
        while (current := self.plan(stored, end)) is not None:
            try:
                fetched, prepared = self._take(current, coming)
            except TokenExpiredError as error:
                restarts += 1
                if restarts > MAX_RESTARTS:
                    raise self._too_slow(error) from error
                fetched, prepared = self._take(current.restarted(), None)
            coming = self._look_ahead(fetched, ahead)
            try:
                committed = self.commit(stored, fetched, prepared)
            except CheckpointLostError:
                # The winner's work is durable: go on from there, and drop what was under way.
                count_lost_swap(self._region.engine, stored)
                report = replace(report, lost_swaps=report.lost_swaps + 1)
                if report.lost_swaps > MAX_LOST_SWAPS:
                    raise
                stored, coming = self.read(), None
                continue
            stored = committed.checkpoint
            report = report.counting(fetched.page, committed)
            yield stored, report
            if committed.ended and self._is_over(stored, committed, end):
                return

    def _is_over(self, stored: Checkpoint, committed: Committed, end: datetime) -> bool:
        """Whether a traversal that ended leaves nothing to do: held, or the sweep is at its end."""
        if stored.state != "active":
            return True
        target = stored.sweep_end if self._lane == "rescan" else end
        if stored.reached is None or target is None or not committed.complete:
            return False
        return stored.reached >= target

    def _take(self, current: Checkpoint, coming: _Coming | None) -> tuple[Fetched, PreparedPage]:
        """The page at ``current``: the one fetched ahead, if it was asked for from here."""
        if coming is None or current.traversal is None or current.token != coming.token:
            fetched = self.fetch(current)
            return fetched, self.prepare(fetched)
        page, prepared = coming.page.result()
        return Fetched(current, page), prepared

    def _look_ahead(self, fetched: Fetched, ahead: ThreadPoolExecutor) -> _Coming | None:
        token = fetched.page.next_token
        if token is None:
            return None
        query = self._query(fetched.current)

        def work() -> tuple[Page, PreparedPage]:
            page = self._stream.source.fetch_page(query, token)
            return page, self.prepare(Fetched(fetched.current, page))

        return _Coming(token, ahead.submit(work))

    def _query(self, current: Checkpoint) -> Query:
        window = current.window
        if window is None:
            raise ValueError(f"{current.stream} has no window to enumerate")
        # Servers cut sub-seconds: whole seconds around the window, assigned to it here.
        start = window.start.replace(microsecond=0)
        end = window.end.replace(microsecond=0)
        return Query(
            collection=self._stream.collection,
            area=self._region.area,
            start=start,
            end=end if end == window.end else end + timedelta(seconds=1),
            limit=self._stream.page_limit,
        )

    def _too_slow(self, error: TokenExpiredError) -> SourceFaultError:
        return SourceFaultError(
            f"tokens of stream {self._stream.name} expired {MAX_RESTARTS + 1} times in one run",
            where=error.where,
            next_step="set a smaller window_days, or a larger page_limit, for the stream",
        )

    def _block(self, error: Exception) -> None:
        what = error.what if isinstance(error, ScenePipelineError) else repr(error)
        try:
            block_checkpoint(
                self._region.engine,
                self.read(),
                state="faulted" if isinstance(error, SourceFaultError) else "blocked",
                reason=what,
                now=self._region.clock(),
            )
        except StateUnavailableError:
            # The report carries the first error; the state database cannot carry any.
            return


def _measure(stored: Checkpoint, report: LaneReport, end: datetime) -> IngestProgress:
    window = stored.window
    at = stored.reached or (window.start if window else end)
    return IngestProgress(
        stream=stored.stream,
        lane=stored.lane,
        pages=report.pages,
        items=report.items,
        at=at,
        to_at=stored.sweep_end or end,
    )
