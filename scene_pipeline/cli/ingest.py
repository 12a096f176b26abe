"""``ingest`` and ``frontier``: what has come in, and up to when it is complete."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import click

from scene_pipeline.cli.console import Console, pass_console
from scene_pipeline.errors import ScenePipelineError
from scene_pipeline.scenes.keys import parse_day
from scene_pipeline.settings import load_settings

if TYPE_CHECKING:
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.ingest.checkpoints import Lane
    from scene_pipeline.ingest.ingester import IngestProgress
    from scene_pipeline.ingest.runner import IngestReport

__all__ = ["frontier", "ingest", "read_streams", "show_frontier", "show_round"]


@click.group()
def ingest() -> None:
    """Read streams of STAC Items into the raw lake.

    \b
    Examples:
      scene-pipeline ingest run
      scene-pipeline ingest run --stream earth-search-sentinel-2-l2a --until 2024-07-01
      scene-pipeline ingest rescan
    """


@ingest.command()
@click.option("--stream", "streams", multiple=True, help="Read this stream only; repeatable.")
@click.option("--until", metavar="DATE", help="Read Items before this UTC day only.")
@pass_console
def run(console: Console, *, streams: tuple[str, ...], until: str | None) -> int:
    """Move every stream on from its checkpoint and publish the frontier.

    Exits with 3 where a provider could not be read; the other streams are done all the same.
    """
    last = parse_day(until) if until else None
    return _read_and_show(console, lane="forward", streams=streams, until=last)


@ingest.command()
@click.option("--stream", "streams", multiple=True, help="Read this stream only; repeatable.")
@pass_console
def rescan(console: Console, *, streams: tuple[str, ...]) -> int:
    """Read the trailing window of every stream again, for late, newer and deleted Items.

    What changed reopens its partitions; the frontier itself never goes back. Exits with 3 where
    a provider could not be read.
    """
    return _read_and_show(console, lane="rescan", streams=streams, until=None)


@click.group()
def frontier() -> None:
    """The instant before which every stream is proven complete."""


@frontier.command()
@pass_console
def show(console: Console) -> None:
    """Show the published frontier, stream by stream, and which one holds it."""
    from scene_pipeline.defs.ingest import document_frontier
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.ingest.frontier import read_frontier

    pipeline = Pipeline(load_settings())
    document = document_frontier(read_frontier(pipeline.state, pipeline.region))
    console.result(
        {"region": pipeline.region, "frontier": document},
        lambda: show_frontier(console, document),
    )


def _read_and_show(
    console: Console, *, lane: Lane, streams: tuple[str, ...], until: date | None
) -> int:
    from scene_pipeline.defs.home import open_instance
    from scene_pipeline.defs.ingest import document_round
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.ingest.streams import BARREN

    pipeline = Pipeline(load_settings())
    with open_instance(pipeline.settings) as instance:
        report, reported = read_streams(
            console, pipeline, instance, lane=lane, streams=streams or None, until=until
        )
    views = pipeline.list_streams(now=datetime.now(UTC))
    barren = [view.stream for view in views if view.is_barren]
    document = {**document_round(report), "keys_reported": reported, "barren": barren}

    def show() -> None:
        show_round(console, document)
        for name in barren:
            console.line(f"{name}: {BARREN}")

    console.result(document, show)
    codes = [
        error.exit_code if isinstance(error, ScenePipelineError) else 1
        for _, error in report.errors
    ]
    return max(codes, default=0)


def read_streams(
    console: Console,
    pipeline: Pipeline,
    instance: Any,
    *,
    lane: Lane = "forward",
    streams: tuple[str, ...] | None = None,
    until: date | None = None,
) -> tuple[IngestReport, int]:
    """One round with its progress, recorded in Dagster as the assets' own events."""
    import dagster as dg

    from scene_pipeline.defs.ingest import describe_round, report_raw_scenes
    from scene_pipeline.ingest.runner import run_ingest

    with console.progress("ingest") as advance:
        seen: dict[str, int] = {}

        def follow(at: IngestProgress) -> None:
            seen[at.stream] = at.items
            advance(sum(seen.values()), f"Items, {at.stream} at {at.at:%Y-%m-%d}")

        report = run_ingest(
            pipeline.settings, streams=streams, lane=lane, until=until, progress=follow
        )
    with console.progress("raw_scenes") as advance:
        reported = report_raw_scenes(pipeline, instance.report_runless_asset_event, advance=advance)
    instance.report_runless_asset_event(
        dg.AssetMaterialization(
            [pipeline.region, "ingest_frontier"],
            metadata=describe_round(report, reported=reported),
        )
    )
    return report, reported


def show_round(console: Console, document: dict[str, Any]) -> None:
    """Counts a stream, then what went wrong, then the frontier."""
    console.table(
        ["stream", "items", "landed", "outside", "known", "unusable", "complete through"],
        [
            [
                stream["stream"],
                stream["items"],
                stream["landed"],
                stream["outside"],
                stream["known"],
                sum(stream["quarantined"].values()),
                _instant(stream["complete_through"]),
            ]
            for stream in document["streams"]
        ],
    )
    for stream in document["streams"]:
        for reason, count in stream["quarantined"].items():
            console.line(f"quarantined from {stream['stream']}: {reason}, {count} Items")
        if stream["error"]:
            what, *rest = stream["error"].splitlines()
            console.line(f"failed: {stream['stream']}: {what}")
            for line in rest:
                console.line(f"        {line}")
    if document["reassign_error"]:
        console.line(f"failed: re-assigning the raw lake to the grid: {document['reassign_error']}")
    _show_bound(console, document["frontier"])


def show_frontier(console: Console, document: dict[str, Any] | None) -> None:
    """The bound, who holds it, the vector and the gaps."""
    _show_bound(console, document)
    if document is None:
        return
    console.table(
        ["stream", "complete through", "finality", "state", "why"],
        [
            [
                ("> " if part["stream"] == document["holder"] else "  ") + part["stream"],
                _instant(part["complete_through"]),
                part["finality"],
                part["state"],
                part["reason"] or "",
            ]
            for part in document["vector"]
        ],
    )
    for gap in document["gaps"]:
        console.line(
            f"gap: {gap['stream']} was given up at {_instant(gap['declared_through'])}, proven to "
            f"{_instant(gap['proven_through'])}: {gap['reason']}"
        )


def _show_bound(console: Console, document: dict[str, Any] | None) -> None:
    if document is None:
        console.line("no frontier is published yet: run `scene-pipeline ingest run`")
        return
    if document["complete_through"]:
        console.line(
            f"frontier: complete through {_instant(document['complete_through'])} UTC, "
            f"last full day {document['last_covered_day']}"
        )
    else:
        console.line("frontier: nothing is proven complete yet")
    if document["withheld"]:
        console.line(f"withheld: {document['withheld']}")


def _instant(value: datetime | None) -> str:
    return f"{value:%Y-%m-%d %H:%M}" if value else "-"
