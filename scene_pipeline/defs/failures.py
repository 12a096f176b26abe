"""The one place where the project's errors become Dagster's.

Dagster's retry policy repeats a step after any exception. An error that no retry can help is
therefore raised as `dg.Failure` with retries off; one that a retry may help passes as it is.
Whatever is not in the project's tree is a fault of the program, which no retry cures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from scene_pipeline.errors import PartitionsFailedError, ScenePipelineError

__all__ = ["as_failure", "mapped_failures", "retry_helps"]


def retry_helps(error: BaseException) -> bool:
    """Whether ``error`` is one of the closed list that another attempt can cure."""
    return isinstance(error, ScenePipelineError) and error.retry_helps


def as_failure(error: Exception) -> dg.Failure:
    """``error`` as a failure that Dagster does not retry, its three parts as metadata."""
    metadata: dict[str, dg.MetadataValue] = {"error": dg.MetadataValue.text(type(error).__name__)}
    if isinstance(error, ScenePipelineError):
        if error.where:
            metadata["where"] = dg.MetadataValue.text(error.where)
        if error.next_step:
            metadata["what to do"] = dg.MetadataValue.text(error.next_step)
    if isinstance(error, PartitionsFailedError):
        metadata["failed"] = dg.MetadataValue.json(error.failed)
        # JSON hides behind a button in the UI; a line of text shows.
        key, why = next(iter(error.failed.items()))
        metadata["for example"] = dg.MetadataValue.text(f"{key}: {why}")
    return dg.Failure(description=str(error), metadata=metadata, allow_retries=False)


@contextmanager
def mapped_failures() -> Iterator[None]:
    """Raise errors that no retry can help as failures that Dagster does not retry."""
    try:
        yield
    except dg.Failure:
        raise
    except Exception as error:
        if retry_helps(error):
            raise
        raise as_failure(error) from error
