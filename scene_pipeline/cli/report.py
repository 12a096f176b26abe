"""``report``: the state of a region as one HTML page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from scene_pipeline.cli.console import Console, pass_console
from scene_pipeline.settings import load_settings

__all__ = ["report"]


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("scene-pipeline-report.html"),
    show_default=True,
    help="Where to write the page.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 366),
    default=30,
    show_default=True,
    help="Days to show, up to the newest covered one and two more.",
)
@pass_console
def report(console: Console, *, output: Path, days: int) -> None:
    """Write one self-contained HTML page: frontier, key states, coverage, quarantine, caps.

    It reads, and changes nothing.
    """
    from scene_pipeline.cli.report_parts import collect_report
    from scene_pipeline.pictures.report import write_page

    with console.progress("report") as advance:
        page = collect_report(load_settings(), days=days, now=datetime.now(UTC), advance=advance)
    text = write_page(page)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    document = {
        "path": output.absolute(),
        "bytes": len(text.encode()),
        "summary": page.summary,
        "attention": [section.title for section in page.sections if section.attention],
    }

    def show() -> None:
        console.line(f"{output}  {len(text.encode()) / 1000:,.0f} kB")
        console.line(page.summary)

    console.result(document, show)
