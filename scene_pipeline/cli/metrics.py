"""``metrics``: what a Prometheus node exporter collects from a text file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scene_pipeline.cli.console import Console, pass_console
from scene_pipeline.cli.selecting import Desk, open_desk

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

__all__ = ["HELP", "Sample", "format_metrics", "metrics"]

# Name (without its prefix) → what it is. A name that ends in _total is a counter.
HELP = {
    "frontier_lag_seconds": "Age of the instant before which every stream is proven complete.",
    "frontier_holder": "1 for the stream that holds the frontier.",
    "stream_lag_seconds": "Age of the instant before which the stream is proven complete.",
    "stream_blocked": "1 for a stream that does not move on.",
    "quarantined_items": "Items that wait for a decision.",
    "keys": "Partition keys of the newest covered days.",
    "open_writers": "Connections of the pipeline's writer to the warehouse.",
    "pool_slots": "Slots of a Dagster pool: its limit, taken ones, steps that wait.",
    "requests_total": "Requests to a source.",
    "refused_requests_total": "Requests that a source answered with 429.",
    "written_at_seconds": "When this was written, in seconds since 1970.",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric of `HELP`, with its labels."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


def format_metrics(samples: Iterable[Sample]) -> str:
    """The Prometheus text format, version 0.0.4: a metric's samples stand together."""
    by_name: dict[str, list[Sample]] = {name: [] for name in HELP}
    for sample in samples:
        by_name[sample.name].append(sample)
    lines = []
    for name, found in by_name.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP scene_pipeline_{name} {HELP[name]}"]
        lines += [f"# TYPE scene_pipeline_{name} {kind}"]
        for sample in found:
            labels = ",".join(f'{label}="{_escape(value)}"' for label, value in sample.labels)
            lines.append(f"scene_pipeline_{name}{{{labels}}} {sample.value:.15g}")
    return "\n".join(lines) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@click.command()
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write here, whole or not at all; without it, to standard output.",
)
@click.option("--days", type=click.IntRange(1, 366), default=30, show_default=True,
              help="Newest covered days whose keys are counted.")  # fmt: skip
@pass_console
def metrics(console: Console, *, textfile: Path | None, days: int) -> None:
    """Write the region's numbers for Prometheus; run it by the minute.

    Alerts on them are in infra/alerts.yml.
    """
    with open_desk() as desk:
        samples = list(_collect(desk, days))
    text = format_metrics(samples)
    if textfile is not None:
        textfile.parent.mkdir(parents=True, exist_ok=True)
        draft = textfile.with_name(f".{textfile.name}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(textfile)
    elif not console.as_json:
        click.echo(text, nl=False)
    console.result({"textfile": textfile, "samples": len(samples)}, lambda: None)


def _collect(desk: Desk, days: int) -> Iterator[Sample]:
    from scene_pipeline.defs.home import POOLS
    from scene_pipeline.ingest.frontier import read_frontier
    from scene_pipeline.ingest.throttle import read_requests

    state, now = desk.pipeline.state, desk.now
    region = ("region", desk.pipeline.region)
    frontier = read_frontier(state, desk.pipeline.region)
    if frontier and frontier.bound:
        lag = (now - frontier.bound.value).total_seconds()
        yield Sample("frontier_lag_seconds", lag, (region,))
    if frontier and frontier.holder:
        yield Sample("frontier_holder", 1, (region, ("stream", frontier.holder)))
    for view in desk.pipeline.list_streams(now=now):
        labels = (region, ("stream", view.stream))
        yield Sample("stream_blocked", view.state == "blocked", labels)
        if view.bound:
            lag = (now - view.bound.value).total_seconds()
            yield Sample("stream_lag_seconds", lag, labels)
        for reason, count in sorted(view.quarantined.items()):
            yield Sample("quarantined_items", count, (*labels, ("reason", reason)))
    yield from _count_keys(desk, days)
    for pool in POOLS:
        info = desk.instance.event_log_storage.get_concurrency_info(pool)
        slots = {
            "limit": info.slot_count,
            "active": info.active_slot_count,
            "pending": info.pending_step_count,
        }
        for what, count in slots.items():
            yield Sample("pool_slots", count, (("pool", pool), ("slots", what)))
    writer = desk.pipeline.settings.warehouse_engine_url
    if writer is not None:
        reader = desk.pipeline.settings.warehouse_reader_engine_url
        yield Sample("open_writers", _count_writers(reader or writer, str(writer.username)))
    for source, requests, refused in read_requests(state):
        yield Sample("requests_total", requests, (("source", source),))
        yield Sample("refused_requests_total", refused, (("source", source),))
    yield Sample("written_at_seconds", datetime.now(UTC).timestamp())


def _count_keys(desk: Desk, days: int) -> Iterator[Sample]:
    from scene_pipeline.backfill.assets import WAVES
    from scene_pipeline.backfill.key_states import read_key_states
    from scene_pipeline.backfill.states import STATES

    last = desk.pipeline.last_covered_day()
    if last is None:
        return
    first = max(desk.definition.start, last - timedelta(days=days - 1))
    for asset in WAVES:
        found = read_key_states(
            desk.site,
            asset,
            keys=desk.pipeline.definition.iter_window(first, last),
            now=desk.now,
        )
        counts = Counter(each.state for each in found.values())
        for name in STATES:
            labels = (("region", desk.pipeline.region), ("asset", asset.name), ("state", name))
            yield Sample("keys", counts[name], labels)


def _count_writers(url: URL, role: str) -> int:
    import sqlalchemy as sa

    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE usename = :role"
        " AND application_name = 'scene-pipeline' AND datname = current_database()"
    )
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        return int(connection.execute(sa.text(query), {"role": role}).scalar_one())
