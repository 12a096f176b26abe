"""``expire`` and ``gc``: what an archive gives up by its settings, and what nothing refers to."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

import click

from scene_pipeline.cli.console import Console, pass_console
from scene_pipeline.cli.selecting import Desk, open_desk

if TYPE_CHECKING:
    from scene_pipeline.backfill.states import StateName

__all__ = ["expire", "gc"]

# Days whose key states are read at once.
_DAYS = 31
_TO_DO: set[StateName] = {"missing", "changed", "failed", "in progress"}


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@pass_console
def expire(console: Console, *, dry_run: bool) -> None:
    """Give up what the settings under [retention] no longer keep; run it daily.

    Raw scenes that a key is yet to be built from stay, and so does the window of rescans. Keys
    of days that were given up are refused by name, and keep their files.
    """
    from scene_pipeline.ingest import retention

    with open_desk() as desk:
        pipeline, keep = desk.pipeline, desk.pipeline.settings.retention
        state, region = pipeline.state, pipeline.region
        covered = pipeline.last_covered_day()
        days = {
            "raw_days": keep.raw_days,
            "rescan_days": max((each.rescan_days for each in pipeline.settings.streams), default=0),
        }
        needed = retention.read_needed_day(state, region)
        raw_from = retention.first_kept_raw_day(covered, needed=needed, **days)
        if raw_from is not None and (unbuilt := _find_unbuilt(desk, raw_from)) is not None:
            needed = min(unbuilt, needed or unbuilt)
            raw_from = min(raw_from, unbuilt)
        rows_from = retention.first_kept_row_day(covered, table_months=keep.table_months)
        segments = rows = 0
        if raw_from is not None and not dry_run:
            segments = retention.expire_raw(
                state, pipeline.store, region, before=raw_from, now=desk.now
            )
        if rows_from is not None and not dry_run:
            retention.close_rows(state, region, before=rows_from)
            rows = pipeline.warehouse.remove_before(rows_from)
    document = {
        "covered": covered,
        "raw_from": raw_from,
        "raw_needed_from": needed if needed == raw_from else None,
        "rows_from": rows_from,
        "segments_removed": segments,
        "rows_removed": rows,
    }

    def show() -> None:
        if raw_from is None and rows_from is None:
            console.line("nothing is given up: no [retention] in the settings, or nothing covered")
        if raw_from is not None:
            why = ": a key of that day is yet to be built" if needed == raw_from else ""
            console.line(f"raw scenes stay from {raw_from}{why}; {segments} segments removed")
        if rows_from is not None:
            console.line(f"the table keeps rows from {rows_from}; {rows:,} rows removed")

    console.result(document, show)


def _find_unbuilt(desk: Desk, before: date) -> date | None:
    """The first day before ``before`` of which a key is yet to be built from raw scenes."""
    from scene_pipeline.backfill.assets import FOOTPRINTS
    from scene_pipeline.backfill.key_states import read_coverage, read_key_states
    from scene_pipeline.ingest.retention import read_retention

    pipeline = desk.pipeline
    definition, state = pipeline.definition, pipeline.state
    coverage = read_coverage(state, definition)
    day = read_retention(state, pipeline.region)[0] or definition.start
    while day < before:
        end = min(day + timedelta(days=_DAYS), before)
        keys = definition.iter_window(day, end - timedelta(days=1))
        found = read_key_states(desk.site, FOOTPRINTS, keys=keys, now=desk.now, coverage=coverage)
        to_do = [key.day for key, each in found.items() if each.state in _TO_DO]
        if to_do:
            return min(to_do)
        day = end
    return None


@click.command()
@click.option("--delete", "is_meant", is_flag=True, help="Remove them; without it they are listed.")
@pass_console
def gc(console: Console, *, is_meant: bool) -> None:
    """Find files in the lake that nothing refers to: of killed pages, killed writes, probes.

    Younger ones than a day before the last page of the slowest stream stay: they may be in use.
    """
    from scene_pipeline.defs.pipeline import Pipeline
    from scene_pipeline.ingest.retention import find_orphans, orphans_until, read_segment_paths
    from scene_pipeline.settings import load_settings

    pipeline = Pipeline(load_settings())
    before = orphans_until(pipeline.state, pipeline.region)
    # Listed first: whatever a page refers to by then is in the second answer.
    found = list(pipeline.store.list(pipeline.region)) if before else []
    kept = read_segment_paths(pipeline.state, pipeline.region)
    orphans = find_orphans(found, kept, before=before) if before else []
    for orphan in orphans if is_meant else ():
        pipeline.store.delete(orphan.path)
    document = {
        "before": before,
        "objects": len(found),
        "deleted": is_meant,
        "orphans": [{"path": each.path, "bytes": each.bytes} for each in orphans],
    }

    def show() -> None:
        if before is None:
            console.line("a stream has never brought a page: nothing is judged")
            return
        for each in orphans:
            console.line(f"{each.bytes:>12,}  {each.path}")
        done = "removed" if is_meant else "found (--delete removes them)"
        console.line(f"{len(orphans)} orphans of {len(found):,} objects {done}")

    console.result(document, show)
