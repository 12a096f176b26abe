"""Why the keys of a run failed, from what the run itself recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import dagster as dg

from scene_pipeline.backfill.causes import FailureText, join_lines, parse_failure

__all__ = ["RunFailure", "read_run_failure"]

# Under this name a failed run of many keys says each key's error.
FAILED_METADATA = "failed"


@dataclass(frozen=True, slots=True)
class RunFailure:
    """``by_key`` where the run kept an account; ``whole`` for every other key (None: killed)."""

    by_key: Mapping[str, FailureText] = field(default_factory=dict)
    whole: FailureText | None = None
    last_words: str = ""


def read_run_failure(instance: dg.DagsterInstance, run_id: str) -> RunFailure:
    """The account of one ended run."""
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    by_key: dict[str, FailureText] = {}
    whole: FailureText | None = None
    last_words = ""
    for entry in instance.all_logs(run_id, of_type=kinds):
        event = entry.dagster_event
        if event is None:
            continue
        if event.event_type == dg.DagsterEventType.RUN_FAILURE:
            last_words = event.message or ""
            continue
        by_key, whole = _read_step(event)
    run = instance.get_run_by_id(run_id)
    if run is not None and run.status == dg.DagsterRunStatus.CANCELED:
        # What a cancelled step raised is the interruption itself, or its echo in the body.
        return RunFailure(by_key, None, last_words or "the run was cancelled")
    return RunFailure(by_key, whole, last_words)


def _read_step(event: dg.DagsterEvent) -> tuple[dict[str, FailureText], FailureText | None]:
    failure = event.step_failure_data
    raised = failure.user_failure_data
    if raised is not None:
        account = raised.metadata.get(FAILED_METADATA)
        if isinstance(account, dg.JsonMetadataValue) and isinstance(account.data, Mapping):
            return {key: parse_failure(str(text)) for key, text in account.data.items()}, None
        name = raised.metadata.get("error")
        return {}, FailureText(
            str(name.value) if name is not None else "", join_lines(raised.description or "")
        )
    error = failure.error
    # Dagster wraps what the body raised.
    while error is not None and error.cause is not None:
        error = error.cause
    if error is None:
        return {}, FailureText("", event.message or "")
    message = error.message.removeprefix(f"{error.cls_name}: ")
    return {}, FailureText((error.cls_name or "").rpartition(".")[2], join_lines(message))
