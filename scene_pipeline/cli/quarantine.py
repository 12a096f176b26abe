"""``quarantine``: Items that could not become scenes, whole, with the reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from scene_pipeline.cli.console import Console, pass_console
from scene_pipeline.errors import UsageError
from scene_pipeline.settings import load_settings

__all__ = ["quarantine"]


def _chosen(command: Any) -> Any:
    for option in (
        click.option("--item", "item_id", metavar="ID", help="This Item only."),
        click.option("--reason", help="Items of this reason only."),
        click.option("--stream", help="Items of this stream only."),
    ):
        command = option(command)
    return command


@click.group()
def quarantine() -> None:
    """Items that could not become scenes: kept whole, with the reason.

    \b
    Examples:
      scene-pipeline quarantine list --reason "geometry null"
      scene-pipeline quarantine retry
      scene-pipeline quarantine release --item S2A_1 --note "empty granule, agreed with provider"
    """


@quarantine.command("list")
@_chosen
@click.option("--limit", default=100, show_default=True, help="At most so many Items.")
@pass_console
def list_items(
    console: Console, *, stream: str | None, reason: str | None, item_id: str | None, limit: int
) -> None:
    """Show what waits in quarantine, oldest first. --json holds the whole Items."""
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.ingest.quarantine import count_quarantine, list_quarantine

    pipeline = Pipeline(load_settings())
    counts = count_quarantine(pipeline.state, pipeline.region)
    items = list_quarantine(
        pipeline.state,
        pipeline.region,
        stream=stream,
        reason=reason,
        item_id=item_id,
        limit=limit,
    )
    document = {
        "open": sum(counts.values()),
        "by_reason": [
            {"stream": place, "reason": why, "items": count}
            for (place, why), count in sorted(counts.items())
        ],
        "items": [
            {
                "stream": each.stream,
                "collection": each.collection,
                "item_id": each.item_id,
                "state": each.state,
                "reason": each.reason,
                "explanation": each.explanation,
                "page": each.page,
                "first_at": each.first_at,
                "item": each.item,
            }
            for each in items
        ],
    }

    def show() -> None:
        if not counts:
            console.line("quarantine is empty")
            return
        for (place, why), count in sorted(counts.items()):
            console.line(f"{count:>6}  {place}: {why}")
        console.line()
        console.table(
            ["item", "reason", "explanation"],
            [[each.item_id, each.reason, each.explanation] for each in items],
        )
        if len(items) == limit:
            console.line(f"the first {limit}; give --limit for more")

    console.result(document, show)


@quarantine.command()
@_chosen
@click.option("--note", required=True, help="Why it is right that these never land.")
@pass_console
def release(
    console: Console, *, stream: str | None, reason: str | None, item_id: str | None, note: str
) -> None:
    """Accept that Items never land: they no longer hold their stream."""
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.ingest.quarantine import release_quarantine

    if (stream, reason, item_id) == (None, None, None):
        raise UsageError(
            "releasing everything at once is not offered",
            next_step="name --stream, --reason or --item",
        )
    pipeline = Pipeline(load_settings())
    count = release_quarantine(
        pipeline.state,
        pipeline.region,
        note=note,
        now=datetime.now(UTC),
        stream=stream,
        reason=reason,
        item_id=item_id,
    )
    console.result({"released": count}, lambda: console.line(f"released {count} Items"))


@quarantine.command()
@_chosen
@pass_console
def retry(console: Console, *, stream: str | None, reason: str | None, item_id: str | None) -> int:
    """Parse Items again with today's code; those that become scenes land.

    Exits with 1 where some are still unusable.
    """
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.ingest.quarantine import retry_quarantine
    from scene_pipeline.ingest.region import open_region

    pipeline = Pipeline(load_settings())
    landed, left = retry_quarantine(
        open_region(pipeline.settings, pipeline.state),
        stream=stream,
        reason=reason,
        item_id=item_id,
        max_area_km2={each.name: each.max_footprint_km2 for each in pipeline.settings.streams},
    )
    console.result(
        {"landed": landed, "still_unusable": left},
        lambda: console.line(f"{landed} landed, {left} are still unusable"),
    )
    return 1 if left else 0
