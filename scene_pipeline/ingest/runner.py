"""One round of ingest over the configured streams, and the frontier that it publishes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING

from scene_pipeline.errors import ScenePipelineError, UsageError
from scene_pipeline.ingest.checkpoints import Lane, block_stream
from scene_pipeline.ingest.epochs import StreamEntry, reconcile
from scene_pipeline.ingest.frontier import PublishedFrontier, publish_frontier
from scene_pipeline.ingest.ingester import (
    IngestProgress,
    LaneReport,
    OpenStream,
    StreamIngester,
    scope_of,
)
from scene_pipeline.ingest.region import Region, open_region, read_clock
from scene_pipeline.ingest.routing import reassign_segment
from scene_pipeline.ingest.sources import declaration_of, open_source
from scene_pipeline.ingest.sources.base import Declaration
from scene_pipeline.settings import Settings, StreamSettings
from scene_pipeline.state.database import open_state

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = ["IngestReport", "run_ingest"]

# As found, not as another round that is under way has set it.
_USUAL_COLLECTIONS = gc.get_threshold()


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What became of each stream, and the frontier afterwards (None: nothing published yet).

    ``reassign_error`` says why the raw lake is not yet re-assigned to a changed grid.
    """

    streams: tuple[LaneReport, ...]
    frontier: PublishedFrontier | None
    reassigned_segments: int = 0
    reassign_error: ScenePipelineError | None = None

    @property
    def errors(self) -> tuple[tuple[str, Exception], ...]:
        """The streams that failed, with their errors."""
        return tuple((each.stream, each.error) for each in self.streams if each.error is not None)


def run_ingest(
    settings: Settings,
    *,
    streams: Sequence[str] | None = None,
    lane: Lane = "forward",
    progress: Callable[[IngestProgress], None] | None = None,
    until: date | None = None,
    clock: Callable[[], datetime] = read_clock,
) -> IngestReport:
    """Move the lane of each stream as far as its source allows, then publish the frontier.

    ``streams``: names of those to read (None: all). ``until``: the forward lane enumerates
    coordinates before this UTC day only. A stream that fails is in the report with its error,
    and the others go on. Raises `UsageError` for an unknown stream, `MigrationError` and
    `StateUnavailableError` where there is no state database to work on.
    """
    chosen = _choose(settings, streams)
    engine = open_state(settings.state_engine_url)
    try:
        with _rare_collections():
            return _run(
                settings,
                engine,
                chosen=chosen,
                lane=lane,
                progress=progress,
                until=until,
                clock=clock,
            )
    finally:
        engine.dispose()


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python look for reference cycles once in some pages.

    A page is a hundred thousand containers without a cycle: looking through them at every 700th,
    and through all modules now and then, takes as long as parsing them.
    """
    gc.set_threshold(200_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*_USUAL_COLLECTIONS)


def _run(
    settings: Settings,
    engine: sa.Engine,
    *,
    chosen: Sequence[StreamSettings],
    lane: Lane,
    progress: Callable[[IngestProgress], None] | None,
    until: date | None,
    clock: Callable[[], datetime],
) -> IngestReport:
    region = open_region(settings, engine, clock=clock)
    opened, failed = _open_streams(settings, region, chosen)
    entries = {
        stream.name: _describe(stream, declaration_of(stream, settings), opened.get(stream.name))
        for stream in settings.streams
    }
    reconciled = reconcile(engine, region.definition, entries, now=clock())
    region = replace(region, routing=reconciled.routing)
    reports = [_report_failure(region, name, lane, error) for name, error in failed.items()]
    reports += [
        LaneReport(name, lane, state="gone", reason="it left or was retired")
        for name in opened.keys() - reconciled.active
    ]
    reassigned, reassign_error = _reassign(region)
    end = _find_end(settings, until, clock())

    def ingest(stream: OpenStream) -> LaneReport:
        return StreamIngester(region, stream, lane).run(end, progress)

    threads = settings.caps.workers if settings.caps.parallelism == "threads" else 1
    active = [stream for name, stream in opened.items() if name in reconciled.active]
    with ThreadPoolExecutor(max(1, min(threads, len(active))), "stream") as pool:
        reports += pool.map(ingest, active)
    order = [stream.name for stream in chosen]
    reports.sort(key=lambda report: order.index(report.stream))
    frontier = publish_frontier(engine, region.definition.region, now=clock())
    return IngestReport(tuple(reports), frontier, reassigned, reassign_error)


def _choose(settings: Settings, names: Sequence[str] | None) -> list[StreamSettings]:
    if names is None:
        return list(settings.streams)
    by_name = {stream.name: stream for stream in settings.streams}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise UsageError(
            f"there is no stream {unknown[0]} in the settings",
            next_step=f"streams are {', '.join(by_name)}",
        )
    return [by_name[name] for name in names]


def _open_streams(
    settings: Settings, region: Region, chosen: Sequence[StreamSettings]
) -> tuple[dict[str, OpenStream], dict[str, ScenePipelineError]]:
    opened: dict[str, OpenStream] = {}
    failed: dict[str, ScenePipelineError] = {}
    for stream in chosen:
        try:
            source = open_source(stream, settings, region.engine)
            opened[stream.name] = OpenStream(
                name=stream.name,
                collection=stream.collection,
                source=source,
                scope=scope_of(source, stream.collection, region.area, region.first),
                page_limit=stream.page_limit,
                # An archive gives everything to every query: windows would only read it again.
                window=timedelta(days=36_500 if stream.path else stream.window_days),
                rescan=timedelta(days=stream.rescan_days),
                hold=stream.on_unusable == "hold",
                max_area_km2=stream.max_footprint_km2,
            )
        except ScenePipelineError as error:
            failed[stream.name] = error
    return opened, failed


def _report_failure(
    region: Region, stream: str, lane: Lane, error: ScenePipelineError
) -> LaneReport:
    block_stream(
        region.engine,
        region.definition.region,
        stream,
        lane=lane,
        reason=error.what,
        now=region.clock(),
    )
    return LaneReport(stream, lane, state="blocked", reason=error.what, error=error)


def _describe(
    stream: StreamSettings, declaration: Declaration, opened: OpenStream | None
) -> StreamEntry:
    hours = declaration.lag_hours
    return StreamEntry(
        stream=stream.name,
        scope=opened.scope if opened else None,
        address=opened.source.address if opened else "",
        finality=declaration.finality if hours is None else f"{declaration.finality} {hours:g} h",
        cadence_hours=declaration.cadence_hours,
    )


def _reassign(region: Region) -> tuple[int, ScenePipelineError | None]:
    """Re-assign what an earlier grid has placed; a damaged segment stops this, and nothing else."""
    done = 0
    try:
        while reassign_segment(
            region.engine,
            region.store,
            definition=region.definition,
            grid=region.grid,
            generation=region.routing,
            now=region.clock(),
        ):
            done += 1
    except ScenePipelineError as error:
        return done, error
    return done, None


def _find_end(settings: Settings, until: date | None, now: datetime) -> datetime:
    """Where the forward lane ends: now (whole seconds), ``until``, or the definition's end."""
    days = [day for day in (until, settings.end_date) if day is not None]
    ends = [datetime.combine(day, time(), UTC) for day in days]
    return min([now.replace(microsecond=0), *ends])
