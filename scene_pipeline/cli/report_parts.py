"""What a report says: every part read from the state database, Dagster and the lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import dagster as dg

from scene_pipeline.backfill.assets import FOOTPRINTS, WAVES, TrackedAsset
from scene_pipeline.backfill.key_states import (
    Coverage,
    Site,
    asset_key_of,
    read_coverage,
    read_key_states,
)
from scene_pipeline.backfill.states import KeyState, StateName
from scene_pipeline.cli.console import Advance
from scene_pipeline.defs.home import open_instance, pool_limits
from scene_pipeline.defs.ingest import draw_vector
from scene_pipeline.defs.partitions import MOST_KEYS, measure_definition
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.ingest.quarantine import count_quarantine, list_quarantine
from scene_pipeline.ingest.throttle import read_requests
from scene_pipeline.pictures.charts import draw_strip
from scene_pipeline.pictures.maps import draw_day_map
from scene_pipeline.pictures.report import Block, Figure, Page, Paragraph, Section, Table
from scene_pipeline.scenes.coverage import cover_day
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.settings import Settings

__all__ = ["collect_report"]

# Most rows of a table: a page that is too long is not read.
_ROWS = 20
_EXAMPLES = 3
# How many of the newest materializations are searched for the slowest.
_NEWEST = 500
_TO_DO: tuple[StateName, ...] = ("failed", "changed", "missing", "in progress")
_BUILT: tuple[StateName, ...] = ("materialized", "empty", "changed", "outdated")

States = Mapping[PartitionKey, KeyState]


@dataclass(frozen=True, slots=True)
class _Site:
    pipeline: Pipeline
    instance: dg.DagsterInstance
    coverage: Coverage
    now: datetime


def collect_report(settings: Settings, *, days: int, now: datetime, advance: Advance) -> Page:
    """The page of ``settings.region`` at ``now`` (aware UTC), with ``days`` days of key states."""
    pipeline = Pipeline(settings)
    with open_instance(settings) as instance:
        site = _Site(pipeline, instance, read_coverage(pipeline.state, pipeline.definition), now)
        first, last = _choose_window(site, days)
        states = {}
        for number, asset in enumerate(WAVES, start=1):
            advance(number, f"states of {asset.name}", len(WAVES) + 1)
            states[asset] = read_key_states(
                Site(instance, pipeline.state, pipeline.definition),
                asset,
                keys=pipeline.definition.iter_window(first, last),
                now=now,
                coverage=site.coverage,
            )
        advance(len(WAVES) + 1, "coverage, quarantine, times")
        sections = [
            _describe_frontier(site),
            *(_describe_states(site, asset, states[asset]) for asset in WAVES),
            _describe_coverage(site, states[FOOTPRINTS]),
            _describe_quarantine(site),
            _describe_slowest(site),
            _describe_caps(site),
        ]
    summary = _summarize(site, states)
    return Page(f"Scene pipeline, region {settings.region}", summary, now, sections)


def _choose_window(site: _Site, days: int) -> tuple[date, date]:
    """``days`` days that end two after the newest covered one, so that the edge is seen."""
    definition = site.pipeline.definition
    covered = site.pipeline.last_covered_day()
    last = definition.last_day(site.now.date())
    if covered is not None:
        last = min(last, covered + timedelta(days=2))
    last = max(last, definition.start)
    return max(definition.start, last - timedelta(days=days - 1)), last


def _summarize(site: _Site, states: Mapping[TrackedAsset, States]) -> str:
    covered = site.pipeline.last_covered_day()
    parts = [f"Complete through {covered}" if covered else "No day is complete yet"]
    for asset, of_asset in states.items():
        counts = Counter(state.state for state in of_asset.values())
        words = [f"{counts[name]:,} {name}" for name in _TO_DO if counts[name]]
        if words or covered:
            parts.append(f"{asset.name}: {', '.join(words) or 'nothing left to do'}")
    return "; ".join(parts) + "."


def _describe_frontier(site: _Site) -> Section:
    frontier = site.coverage.frontier
    if frontier is None:
        text = "Nothing was published yet."
        return Section("Frontier", [Paragraph(text, "scene-pipeline ingest run")], attention=True)
    chart, alt = draw_vector(frontier, now=site.now)
    rows = [
        (p.stream, p.bound.value if p.bound else None, p.finality, p.state, p.since, p.reason)
        for p in frontier.vector
    ]
    columns = ["stream", "complete before", "declared finality", "state", "since", "reason"]
    blocks: list[Block] = [Figure(chart, alt), Table("Streams of the epoch", columns, rows)]
    if frontier.withheld:
        blocks.append(Paragraph(f"Held back: {frontier.withheld}"))
    if frontier.gaps:
        gaps = [(g.stream, g.proven_through, g.declared_through, g.reason) for g in frontier.gaps]
        columns = ["stream", "proven before", "given up before", "reason"]
        blocks.append(Table("Gaps that retired streams left", columns, gaps))
    blocked = any(part.state != "active" for part in frontier.vector)
    return Section("Frontier", blocks, attention=blocked or bool(frontier.withheld))


def _describe_states(site: _Site, asset: TrackedAsset, states: States) -> Section:
    names = {key: state.state for key, state in states.items()}
    counts = Counter(names.values())
    said = ", ".join(f"{number:,} {name}" for name, number in counts.most_common())
    strip = draw_strip(names, tiles=site.pipeline.definition.tiles, title=asset.name)
    blocks: list[Block] = [Figure(strip, f"States of {asset.name} by tile and day: {said}")]
    failed = [state for state in states.values() if state.state == "failed"]
    if failed:
        rows = [
            (str(s.key), s.evidence.run_attempt, s.evidence.run_ended_at, s.evidence.planned_run)
            for s in failed[-_ROWS:]
        ]
        columns = ("key", "attempt", "run ended", "run")
        blocks.append(Table(_of("failed keys, newest", rows, failed), columns, rows))
        command = f"scene-pipeline backfill diagnose --keys '{failed[-1].key}'"
        blocks.append(Paragraph("Why the newest of them failed, and what to do:", command))
    return Section(f"Keys of {asset.name}", blocks, attention=bool(failed))


def _describe_coverage(site: _Site, states: States) -> Section:
    """The newest day that is built whole, else the newest of which anything is."""
    built = Counter(key.day for key, state in states.items() if state.state in _BUILT)
    if not built:
        command = "scene-pipeline backfill launch --local"
        return Section("Coverage", [Paragraph("No day of the window is built yet.", command)])
    day = max(built, key=lambda each: (built[each], each))
    pipeline = site.pipeline
    done = [key for key, s in states.items() if key.day == day and s.state in _BUILT]
    rows = {key.tile: pipeline.lake.read_many([key], missing="skip") for key in done}
    table = cover_day(rows, pipeline.grid, tiles=[key.tile for key in done])
    drawing = draw_day_map(
        table,
        {tile: pipeline.grid.bounds(tile) for tile in pipeline.definition.tiles},
        title=f"{pipeline.region}, {day}",
        pieces={tile: part["geometry"].to_pylist() for tile, part in rows.items()},
    )
    tiles = table.to_pylist()
    scenes = sum(row["scenes"] for row in tiles)
    alt = f"Map of {day}: {scenes} footprints in {len(tiles)} tiles, coloured by covered share"
    listed = [
        (row["tile"], row["scenes"], 100 * row["covered_share"], row["cloud_cover_pct"])
        for row in sorted(tiles, key=lambda row: -row["covered_share"])[:_ROWS]
    ]
    columns = ("tile", "scenes", "covered, %", "cloud, %")
    caption = _of(f"tiles of {day}, most covered", listed, tiles)
    return Section("Coverage", [Figure(drawing, alt), Table(caption, columns, listed)])


def _describe_quarantine(site: _Site) -> Section:
    engine, region = site.pipeline.state, site.pipeline.region
    counts = sorted(count_quarantine(engine, region).items(), key=lambda item: -item[1])
    if not counts:
        return Section("Quarantine", [Paragraph("No Item is in quarantine.")])
    by_reason = [(reason, stream, number) for (stream, reason), number in counts]
    examples = [
        (item.reason, item.collection, item.item_id, item.explanation)
        for (stream, reason), _ in counts[:_ROWS]
        for item in list_quarantine(engine, region, stream=stream, reason=reason, limit=_EXAMPLES)
    ]
    caption = f"Examples, the oldest {_EXAMPLES} of a reason and stream"
    blocks: list[Block] = [
        Table("Items in quarantine", ("reason", "stream", "Items"), by_reason),
        Table(caption, ("reason", "Collection", "Item", "explanation"), examples),
        Paragraph("All of them, whole:", "scene-pipeline quarantine list"),
    ]
    return Section("Quarantine", blocks, attention=True)


def _describe_slowest(site: _Site) -> Section:
    slowest = []
    for asset in WAVES:
        key = asset_key_of(site.pipeline.definition, asset.name)
        for record in site.instance.fetch_materializations(key, limit=_NEWEST).records:
            made = record.asset_materialization
            if made is None:
                continue
            seconds = {
                name.removeprefix("seconds_"): float(value.value or 0)
                for name, value in made.metadata.items()
                if name.startswith("seconds_") and isinstance(value, dg.FloatMetadataValue)
            }
            written = made.metadata.get("rows")
            count = written.value if isinstance(written, dg.IntMetadataValue) else None
            stages = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())
            slowest.append((asset.name, made.partition, count, sum(seconds.values()), stages))
    if not slowest:
        return Section("Slowest partitions", [Paragraph("Nothing was materialized yet.")])
    rows = sorted(slowest, key=lambda row: -row[3])[:10]
    caption = f"Slowest of the newest {len(slowest):,} materializations"
    columns = ("asset", "key", "rows", "seconds", "by stage")
    return Section("Slowest partitions", [Table(caption, columns, rows)])


def _describe_caps(site: _Site) -> Section:
    settings, storage = site.pipeline.settings, site.instance.event_log_storage
    rows: list[tuple[object, ...]] = []
    for pool in pool_limits(settings):
        info = storage.get_concurrency_info(pool)
        note = f"{info.pending_step_count} waiting"
        rows.append((f"pool {pool}", info.active_slot_count, info.slot_count, note))
    active = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING)
    running = site.instance.get_runs_count(dg.RunsFilter(statuses=active))
    queued = site.instance.get_runs_count(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]))
    rows.append(
        ("caps.backfill_runs", running, settings.caps.backfill_runs, f"{queued} runs queued")
    )
    size = measure_definition(site.pipeline.definition, today=site.now.date())
    crossing = f"crossed on {size.crosses_on}" if size.crosses_on else "never crossed"
    rows.append(("partition keys", size.keys, MOST_KEYS, f"where Dagster slows down; {crossing}"))
    caps = Table("Use of each cap", ("cap", "now", "most", "note"), rows)
    asked = read_requests(site.pipeline.state)
    blocks: list[Block] = [caps]
    if asked:
        columns = ("source", "requests", "refused with 429")
        blocks.append(Table("Requests to providers so far", columns, asked))
    return Section("Caps", blocks, attention=size.too_many)


def _of(what: str, shown: Sequence[object], everything: Sequence[object]) -> str:
    """A caption that says when a table is not the whole."""
    if len(shown) == len(everything):
        return f"{len(everything):,} {what} first"
    return f"{len(shown):,} of {len(everything):,} {what} first"
