"""What ``ingest_frontier`` and the command line share: the outbox, and what a round looks like."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, get_args

import dagster as dg

from scene_pipeline.backfill.versions import DATA_VERSION_TAG
from scene_pipeline.defs.failures import retry_helps
from scene_pipeline.defs.metadata import to_metadata
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.errors import UsageError
from scene_pipeline.ingest.checkpoints import Lane

if TYPE_CHECKING:
    from scene_pipeline.ingest.frontier import PublishedFrontier
    from scene_pipeline.ingest.runner import IngestReport

__all__ = [
    "as_round_failure",
    "describe_round",
    "document_frontier",
    "document_round",
    "draw_vector",
    "ingest_round",
    "log_streams",
    "parse_lane",
    "report_raw_scenes",
]

# Keys whose events go out between two marks: a crash repeats these at most.
_OUTBOX = 500

Record = Callable[[dg.AssetMaterialization], None]


def report_raw_scenes(
    pipeline: Pipeline, record: Record, *, advance: Callable[[int, str], None] | None = None
) -> int:
    """Send an event of ``raw_scenes`` for each covered key whose raw version is not reported.

    Once a key when its day is covered, and again when it changes; returns how many. A crash
    between event and mark sends an event twice, never not at all.
    """
    from scene_pipeline.ingest.raw import mark_reported, read_unreported

    through = pipeline.last_covered_day()
    if through is None:
        return 0
    asset_key = dg.AssetKey([pipeline.region, "raw_scenes"])
    sent = 0
    while waiting := read_unreported(
        pipeline.state, pipeline.region, through_day=through, limit=_OUTBOX
    ):
        for version in waiting:
            record(
                dg.AssetMaterialization(
                    asset_key,
                    partition=str(version.key),
                    metadata={"raw_version": version.raw_seq},
                    tags={DATA_VERSION_TAG: str(version.raw_seq)},
                )
            )
            sent += 1
            if advance is not None:
                advance(sent, "keys reported to Dagster")
        mark_reported(pipeline.state, pipeline.region, waiting)
    return sent


def parse_lane(text: str) -> Lane:
    """``forward`` or ``rescan``; raises `UsageError` for anything else."""
    if text not in get_args(Lane):
        raise UsageError(f"there is no lane {text!r}", next_step="choose forward or rescan")
    lane: Lane = text  # type: ignore[assignment]  # a member of get_args
    return lane


def ingest_round(
    pipeline: Pipeline, *, lane: Lane, streams: Sequence[str] | None, record: Record
) -> tuple[IngestReport, dict[str, Any]]:
    """Read the streams, publish the frontier, empty the outbox; the report and its metadata."""
    from scene_pipeline.ingest.runner import run_ingest

    report = run_ingest(pipeline.settings, streams=streams, lane=lane)
    reported = report_raw_scenes(pipeline, record)
    return report, describe_round(report, reported=reported)


def as_round_failure(report: IngestReport) -> dg.Failure:
    """The streams that failed, by name; retried only where that can help one of them."""
    return dg.Failure(
        description="\n".join(f"{stream}: {error}" for stream, error in report.errors),
        metadata={stream: type(error).__name__ for stream, error in report.errors},
        allow_retries=any(retry_helps(error) for _, error in report.errors),
    )


def log_streams(log: logging.Logger, report: IngestReport) -> None:
    """A line a stream, which carries its name for structured logs."""
    for each in report.streams:
        words = f"{each.stream}: {each.state}, {each.landed} landed of {each.items} in {each.pages}"
        level = logging.WARNING if each.error else logging.INFO
        log.log(level, f"{words} pages {each.error or ''}".rstrip(), extra={"stream": each.stream})


def document_round(report: IngestReport) -> dict[str, Any]:
    """A round as JSON-able values: each stream's counts and what failed, then the frontier."""
    return {
        "streams": [
            {
                "stream": each.stream,
                "lane": each.lane,
                "state": each.state,
                "reason": each.reason or None,
                "complete_through": each.bound.value if each.bound else None,
                "pages": each.pages,
                "items": each.items,
                "landed": each.landed,
                "outside": each.outside,
                "known": each.known + each.older,
                "superseded": each.superseded,
                "late": each.late,
                "removed": each.tombstones,
                "quarantined": dict(each.quarantined),
                "error": each.error and str(each.error),
            }
            for each in report.streams
        ],
        "reassigned_segments": report.reassigned_segments,
        "reassign_error": report.reassign_error and str(report.reassign_error),
        "frontier": document_frontier(report.frontier),
    }


def document_frontier(frontier: PublishedFrontier | None) -> dict[str, Any] | None:
    """The published frontier as JSON-able values, with the whole vector."""
    if frontier is None:
        return None
    bound = frontier.bound
    return {
        "complete_through": bound.value if bound else None,
        "endpoint": bound.endpoint if bound else None,
        "last_covered_day": bound.last_covered_day if bound else None,
        "withheld": frontier.withheld or None,
        "holder": frontier.holder,
        "holder_since": frontier.holder_since,
        "epoch": frontier.epoch,
        "revision": frontier.revision,
        "routing": frontier.routing,
        "published_at": frontier.published_at,
        "vector": [
            {
                "stream": part.stream,
                "complete_through": part.bound.value if part.bound else None,
                "endpoint": part.bound.endpoint if part.bound else None,
                "finality": part.finality,
                "state": part.state,
                "reason": part.reason or None,
                "since": part.since,
            }
            for part in frontier.vector
        ],
        "gaps": [
            {
                "stream": gap.stream,
                "proven_through": gap.proven_through,
                "declared_through": gap.declared_through,
                "reason": gap.reason,
            }
            for gap in frontier.gaps
        ],
    }


def describe_round(report: IngestReport, *, reported: int) -> dict[str, Any]:
    """Metadata of ``ingest_frontier``: totals that plot, the streams as a table, the chart."""
    streams = document_round(report)["streams"]
    totals = {
        name: sum(stream[name] for stream in streams)
        for name in ("pages", "items", "landed", "outside", "late")
    }
    facts: dict[str, Any] = {
        **totals,
        "quarantined": sum(sum(stream["quarantined"].values()) for stream in streams),
        "keys_reported": reported,
        "chart": None,
    }
    if report.frontier:
        from scene_pipeline.pictures.markdown import markdown_image

        facts["chart"] = markdown_image(*draw_vector(report.frontier, now=datetime.now(UTC)))
    if report.frontier and report.frontier.bound:
        facts["complete_through"] = report.frontier.bound.value.isoformat()
    records = [dg.TableRecord(_flat(stream)) for stream in streams]
    table = {"streams": dg.MetadataValue.table(records)} if records else {}
    return {**to_metadata(facts), **table}


def _flat(stream: Mapping[str, Any]) -> dict[str, str | int | float | bool | None]:
    return {
        name: value if isinstance(value, int) else "" if value in (None, {}) else str(value)
        for name, value in stream.items()
    }


def draw_vector(frontier: PublishedFrontier, *, now: datetime) -> tuple[str, str]:
    """The chart of the streams' bounds as SVG, and what it says in words."""
    from scene_pipeline.pictures.charts import StreamBar, draw_frontier

    bars = [
        StreamBar(part.stream, part.bound.value if part.bound else None, part.state, part.reason)
        for part in frontier.vector
    ]
    at = frontier.bound.value if frontier.bound else None
    drawing = draw_frontier(
        bars,
        frontier_at=at,
        now=now,
        holder=frontier.holder,
        holder_since=frontier.holder_since,
    )
    through = f"{at:%Y-%m-%d %H:%M} UTC" if at else "no instant yet"
    held = f"; {frontier.holder} holds the frontier" if frontier.holder else ""
    return (
        drawing,
        f"Bars of {len(bars)} streams up to their bounds; everything before {through} is complete"
        + held,
    )
