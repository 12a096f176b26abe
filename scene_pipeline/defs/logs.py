"""Structured logs: one JSON object a line on standard output, for whatever collects logs.

Dagster's instance loads `JsonHandler` by its name (``python_logs`` in ``dagster.yaml``), so every
run, sensor and schedule logs through it, beside Dagster's own text on standard error. An event of
Dagster (a key is materialized, a step begins) is of level debug.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from scene_pipeline.backfill.tags import BACKFILL_TAG, LAUNCH_TAG, PARTITION_TAG, PLAN_TAG

__all__ = ["PYTHON_LOGS", "JsonHandler", "describe_record"]

# What `dagster.yaml` gets where ``log_format`` is json.
PYTHON_LOGS = """
python_logs:
  dagster_handler_config:
    handlers:
      scene_pipeline:
        class: scene_pipeline.defs.logs.JsonHandler
        level: DEBUG
"""

_TAGS = {
    "partition": PARTITION_TAG,
    "plan": PLAN_TAG,
    "launch": LAUNCH_TAG,
    "backfill": BACKFILL_TAG,
}


class JsonHandler(logging.StreamHandler):  # type: ignore[type-arg]  # unlike typeshed's, not generic
    """Prints each record as `describe_record` has it."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds."""
        return json.dumps(describe_record(record), ensure_ascii=False, default=str)


def describe_record(record: logging.LogRecord) -> dict[str, Any]:
    """``at``, ``level``, ``message`` and those of run, job, step, plan, partition and stream known.

    What a call gives as ``extra`` wins over what the run's tags say: a run has many partitions.
    """
    meta: dict[str, Any] = getattr(record, "dagster_meta", None) or {}
    event = meta.get("dagster_event")
    tags = meta.get("job_tags") or {}
    fields = {
        "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "message": meta.get("orig_message") or record.getMessage(),
        "run": meta.get("run_id"),
        "job": meta.get("job_name"),
        "step": meta.get("step_key"),
        "event": event.event_type_value if event else None,
        **{name: tags.get(tag) for name, tag in _TAGS.items()},
        "stream": getattr(record, "stream", None),
    }
    partition = getattr(record, "partition", None) or getattr(event, "partition", None)
    if partition:
        fields["partition"] = partition
    return {name: value for name, value in fields.items() if value is not None}
