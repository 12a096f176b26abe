"""Why a key is not done: an error's text as a run records it, and its kind for an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scene_pipeline import errors

__all__ = [
    "CauseKind",
    "FailureText",
    "describe_error",
    "find_cause_kind",
    "join_lines",
    "parse_failure",
]

CauseKind = Literal[
    "source",  # the provider: unreachable, throttled, or breaking its contract
    "upstream missing",  # the key that this one reads was never made
    "data",  # a scene or file that cannot be treated
    "database",  # warehouse or state database
    "store",  # the object store
    "run",  # claimed by another run, other keys than planned, older than what is stored
    "killed",  # the run ended without an account of this key
    "trimmed",  # left out by the limit, by design
    "never submitted",  # asked for, but no run ever had it
    "code",  # an error that is none of ours
]

_KINDS: tuple[tuple[type[errors.ScenePipelineError], CauseKind], ...] = (
    (errors.SourceUnavailableError, "source"),
    (errors.SourceFaultError, "source"),
    (errors.StoreUnavailableError, "store"),
    (errors.UnavailableError, "database"),
    (errors.DataError, "data"),
    (errors.RunError, "run"),
    (errors.UsageError, "run"),
)


@dataclass(frozen=True, slots=True)
class FailureText:
    """An error's class name and message, as a run recorded them."""

    name: str
    text: str


def describe_error(error: BaseException) -> str:
    """``ClassName: message`` on one line, which `parse_failure` reads back."""
    return f"{type(error).__name__}: {join_lines(str(error))}"


def join_lines(text: str) -> str:
    """One line that still shows where the parts of an error began."""
    return "; ".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def parse_failure(text: str) -> FailureText:
    """The parts of `describe_error`; text of another origin has no class name."""
    name, colon, message = text.partition(": ")
    return FailureText(name, message) if colon and name.isidentifier() else FailureText("", text)


def find_cause_kind(failure: FailureText) -> CauseKind:
    """The kind of a recorded error, by its class's place in the error tree."""
    found = getattr(errors, failure.name, None)
    if isinstance(found, type):
        for parent, kind in _KINDS:
            if issubclass(found, parent):
                return kind
    return "code"
