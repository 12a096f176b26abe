"""``streams``: who feeds the region, how far each is proven, and who is given up."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

import click

from scene_pipeline.cli.console import Console, pass_console
from scene_pipeline.scenes.keys import parse_day
from scene_pipeline.settings import load_settings

__all__ = ["streams"]


@click.group()
def streams() -> None:
    """The streams of the region: members of the frontier, joining, leaving, retired.

    \b
    Examples:
      scene-pipeline streams list
      scene-pipeline streams leave landsat-c2-l2 --through 2024-06-30
      scene-pipeline streams retire old-mirror --through 2024-05-31 --reason "provider closed"
    """


@streams.command("list")
@pass_console
def list_all(console: Console) -> int:
    """Show every stream, how far it is proven, and what is wrong with it.

    Exits with 1 where a stream is blocked or stalled, or has never brought an Item.
    """
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.ingest.streams import BARREN

    views = Pipeline(load_settings()).list_streams(now=datetime.now(UTC))
    document = {
        "streams": [
            {
                "stream": view.stream,
                "membership": view.membership,
                "configured": view.is_configured,
                "address": view.address,
                "finality": view.finality,
                "complete_through": view.bound.value if view.bound else None,
                "state": view.state,
                "reason": view.reason or None,
                "since": view.since,
                "last_page_at": view.last_page_at,
                "last_new_at": view.last_new_at,
                "stalled_hours": view.stalled_for and round(view.stalled_for / timedelta(hours=1)),
                "barren": view.is_barren,
                "pages": view.pages,
                "landed": view.landed,
                "outside": view.outside,
                "quarantined": dict(view.quarantined),
                "violations": dict(view.violations),
            }
            for view in views
        ]
    }

    def show() -> None:
        console.table(
            ["stream", "role", "complete through", "landed", "unusable", "state"],
            [
                [
                    view.stream,
                    view.membership,
                    f"{view.bound.value:%Y-%m-%d %H:%M}" if view.bound else "-",
                    view.landed,
                    sum(view.quarantined.values()),
                    view.state,
                ]
                for view in views
            ],
        )
        for view in views:
            if view.reason:
                console.line(f"{view.stream}: {view.reason}")
            if view.stalled_for is not None:
                days = view.stalled_for / timedelta(days=1)
                console.line(f"{view.stream}: alive, but nothing new for {days:.1f} days")
            if view.is_barren:
                console.line(f"{view.stream}: {BARREN}")
            for kind, count in view.violations.items():
                console.line(f"{view.stream}: {count} Items {kind} behind the frontier")

    console.result(document, show)
    unwell = [
        view
        for view in views
        if view.membership in {"member", "joining"}
        and (view.state == "blocked" or view.stalled_for is not None or view.is_barren)
    ]
    return 1 if unwell else 0


@streams.command()
@click.argument("stream")
@pass_console
def join(console: Console, *, stream: str) -> None:
    """Let a stream that left or was retired join again, with the next ingest."""
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.ingest.streams import join_stream

    pipeline = Pipeline(load_settings())
    join_stream(pipeline.state, pipeline.region, stream, now=datetime.now(UTC))
    console.result({"joining": stream}, lambda: console.line(f"{stream} joins with the next run"))


@streams.command()
@click.argument("stream")
@click.option("--through", required=True, metavar="DATE", help="Its last UTC day, included.")
@pass_console
def leave(console: Console, *, stream: str, through: str) -> None:
    """Let a stream go once it is complete through a day; until then the frontier waits for it."""
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.ingest.streams import leave_stream

    pipeline = Pipeline(load_settings())
    epoch = leave_stream(
        pipeline.state,
        pipeline.region,
        stream,
        through=_end_of(through),
        now=datetime.now(UTC),
    )
    console.result(
        {"stream": stream, "pending_epoch": epoch},
        lambda: console.line(
            f"{stream} leaves with epoch {epoch}, once complete through {through}"
        ),
    )


@streams.command()
@click.argument("stream")
@click.option("--through", required=True, metavar="DATE", help="Up to which UTC day, included, "
              "it delivered, by your word.")  # fmt: skip
@click.option("--reason", required=True, help="Why; every reader of the frontier sees it.")
@pass_console
def retire(console: Console, *, stream: str, through: str, reason: str) -> None:
    """Give up a dead provider at once: what it never proved is recorded as a gap."""
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.ingest.frontier import publish_frontier
    from scene_pipeline.ingest.streams import retire_stream

    pipeline = Pipeline(load_settings())
    now = datetime.now(UTC)
    epoch = retire_stream(
        pipeline.state,
        pipeline.region,
        stream,
        through=_end_of(through),
        reason=reason,
        now=now,
    )
    publish_frontier(pipeline.state, pipeline.region, now=now)
    console.result(
        {"stream": stream, "epoch": epoch},
        lambda: console.line(f"{stream} is retired; epoch {epoch} goes on without it"),
    )


def _end_of(text: str) -> datetime:
    """The midnight that ends a UTC day."""
    return datetime.combine(parse_day(text) + timedelta(days=1), time(), UTC)
