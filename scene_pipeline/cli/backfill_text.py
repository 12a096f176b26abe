"""What the backfill commands print: documents for ``--json``, lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scene_pipeline.cli.console import Console

if TYPE_CHECKING:
    from scene_pipeline.backfill.diagnose import Account, Finding
    from scene_pipeline.backfill.waves import Wave

__all__ = [
    "account_document",
    "show_account",
    "show_diagnosis",
    "show_overview",
    "show_previews",
    "show_waves",
    "wave_document",
]

_SHOWN = 8


def _name_some(names: Sequence[object]) -> str:
    shown = ", ".join(map(str, names[:_SHOWN]))
    if len(names) <= _SHOWN:
        return shown
    return f"{len(names)}: {shown} … (--json lists all)"


def _so_many(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def _count(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def show_previews(console: Console, documents: Sequence[Mapping[str, Any]]) -> None:
    """A dry run, an asset at a time."""
    for document in documents:
        _show_preview(console, document)


def _show_preview(console: Console, document: Mapping[str, Any]) -> None:
    line = console.line
    line(f"  plan {document['plan_id']}", lead=document["asset"])
    line(f"  keys asked for: {document['asked_for']} ({_count(document['by_state'])})")
    runs = ", ".join(f"{name} {count}" for name, count in document["runs"].items())
    line(f"  to run: {_so_many(document['keys'], 'key')}; runs by policy: {runs}")
    if document["keys"]:
        why = f": {document['why_so_many']}" if document["why_so_many"] else ""
        rectangles = document["rectangles"]
        count = _so_many(len(rectangles), "run")
        line(f"  {document['policy']} ({document['job']}), {count}{why}")
        for each in rectangles[:_SHOWN]:
            line(f"    {each['from']} … {each['to']}  {_so_many(each['keys'], 'key')}")
        if len(rectangles) > _SHOWN:
            line(f"    … and {len(rectangles) - _SHOWN} more (--json lists all)")
        estimate = document["estimated_s"]
        line(f"  expected: {'unknown, nothing ran yet' if estimate is None else _span(estimate)}")
    for name in ("trimmed", "waiting_for_upstream"):
        if document[name]:
            line(f"  {name.replace('_', ' ')}: {_name_some(document[name])}")
    advice = document["recommended"]
    low, high = advice["batch"]
    size = f"{low}" if low == high else f"{low} to {high}"
    line(f"  recommended: {advice['policy']}, {size} keys a run")
    line(f"    {advice['reason']}")


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 7200 else f"about {seconds / 3600:.1f} h"


def wave_document(wave: Wave) -> dict[str, Any]:
    """A wave as JSON."""
    stored = wave.stored
    return {
        "asset": wave.asset.name,
        "backfill": stored.plan.plan_id if stored else None,
        "launch": stored.launch_id if stored else None,
        "policy": stored.plan.policy.name if stored else None,
        "runs": len(stored.plan.rectangles) if stored else 0,
        "keys": len(stored.plan.keys) if stored else 0,
        "by_state": dict(wave.choice.by_state),
        "trimmed": [str(key) for key in wave.choice.trimmed],
        "waiting_for_upstream": [str(key) for key in wave.choice.waiting],
        "held": [str(key) for key in wave.held],
        "then": _continue_command(wave) if wave.held else None,
        "account": account_document(wave.account) if wave.account else None,
    }


def _continue_command(wave: Wave) -> str:
    return f"scene-pipeline backfill launch --asset {wave.asset.name} --keys-of {wave.held_by}"


def show_waves(console: Console, documents: Sequence[Mapping[str, Any]]) -> None:
    """What a launch came to."""
    for document in documents:
        if document["backfill"] is None:
            console.line(
                f"  nothing to run: {_count(document['by_state'])}", lead=document["asset"]
            )
        else:
            console.line(
                f"  backfill {document['backfill']}: {_so_many(document['keys'], 'key')}, "
                f"{_so_many(document['runs'], 'run')} ({document['policy']})",
                lead=document["asset"],
            )
        for name in ("trimmed", "waiting_for_upstream"):
            if document[name]:
                console.line(f"  {name.replace('_', ' ')}: {_name_some(document[name])}")
        if document["held"]:
            count = len(document["held"])
            console.line(f"  {count} keys wait for the runs above; once these have ended:")
            console.line(f"    {document['then']}")
        if document["account"]:
            show_account(console, document["account"], heading=False)
            if document["account"]["causes"]:
                console.line(f"  see why: scene-pipeline backfill diagnose {document['backfill']}")


def account_document(account: Account, *, rebuilt: int | None = None) -> dict[str, Any]:
    """An account as JSON; ``rebuilt`` is of the closing account of a retry."""
    document: dict[str, Any] = {
        "asset": account.asset.name,
        "requested": account.requested,
        **{
            name.replace(" ", "_"): [str(key) for key in keys] if name != "done" else len(keys)
            for name, keys in account.by_outcome.items()
        },
        "rejected": dict(account.rejected),
        "trimmed": [str(key) for key in account.trimmed],
        "causes": dict(account.by_cause),
        "findings": [_finding_document(finding) for finding in account.findings],
    }
    if rebuilt is not None:
        document["good_keys_rebuilt"] = rebuilt
    return document


def _finding_document(finding: Finding) -> dict[str, Any]:
    evidence = finding.state.evidence
    return {
        "key": str(finding.key),
        "outcome": finding.outcome,
        "cause": finding.cause,
        "error": finding.failure.name,
        "text": finding.failure.text,
        "run": finding.run_id,
        "attempt": evidence.run_attempt or None,
        "upstream_version": evidence.upstream_seq,
        "try": finding.command,
    }


def show_account(console: Console, document: Mapping[str, Any], *, heading: bool = True) -> None:
    """Requested, done, in progress, failed, missing, in one line."""
    counts = {
        "requested": document["requested"],
        "done": document["done"],
        "in progress": len(document["in_progress"]),
        "failed": len(document["failed"]),
        "missing": len(document["missing"]),
    }
    console.line(
        "  " + ", ".join(f"{count} {text}" for text, count in counts.items()),
        lead=document["asset"] if heading else "",
    )
    if "good_keys_rebuilt" in document:
        console.line(f"  good keys rebuilt: {document['good_keys_rebuilt']}")


def show_diagnosis(
    console: Console, documents: Sequence[Mapping[str, Any]], *, backfill_id: str | None
) -> None:
    """The five steps."""
    line = console.line
    for document in documents:
        show_account(console, document)
        for name in ("failed", "missing", "in_progress", "trimmed"):
            if document[name]:
                line(f"  {name.replace('_', ' ')}: {_name_some(document[name])}")
        if document["rejected"]:
            line("  keys that the definition rejects, and no run can make:")
            for key, reason in list(document["rejected"].items())[:_SHOWN]:
                line(f"    {key}  {reason}")
        failed = [f for f in document["findings"] if f["outcome"] == "failed"]
        for finding in (failed or document["findings"])[:1]:
            line(f"  for example {finding['key']}  ({finding['cause']})")
            line(f"    error     {finding['error']} {finding['text']}".rstrip())
            line(f"    run       {finding['run'] or 'none'}")
            version = finding["upstream_version"]
            line(f"    upstream  {'never made' if version is None else f'version {version}'}")
            console.command(finding["try"], lead="    try it    ")
        if document["causes"]:
            line(f"  causes: {_count(document['causes'])}")
        if document["trimmed"]:
            line(f"  trimmed by design (--limit): {len(document['trimmed'])}")
    if any(document["failed"] or document["missing"] for document in documents):
        line()
        line(f"launch what is not done{'' if backfill_id else ', with the same window'}:")
        console.command(
            f"scene-pipeline backfill retry {backfill_id}"
            if backfill_id
            else "scene-pipeline backfill launch --states failed,missing,changed",
            lead="  ",
        )


def show_overview(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Two lines a backfill and asset."""
    if not rows:
        console.line("no backfill yet")
        return
    for row in rows:
        started = f"{row['started']:%Y-%m-%d %H:%M}"
        console.line(f"{row['backfill']:<10}  {started}  {row['asset']:<16}  {row['status']}")
        console.line(
            f"{'':<10}  {row['done']} of {row['keys']} done, {row['in progress']} in progress, "
            f"{row['failed']} failed, {row['missing']} missing"
        )
