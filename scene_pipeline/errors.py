"""Every error the project raises, in one tree.

A message has three parts, printed as three lines: what happened, where (partition, stream, Item,
file or setting) and what to do next. ``retry_helps`` says whether the same call can succeed
later; ``exit_code`` is what the command line returns for it (0 fine, 1 findings, 2 usage,
3 unavailable).

::

    ScenePipelineError
    ├── UsageError               2  the request itself is wrong; nothing was started
    │   ├── SettingsError            a setting is missing, malformed or contradicts another
    │   ├── InvalidKeyError          a partition key that the definition rejects
    │   ├── NotCoveredError          the published frontier does not reach the key's day
    │   ├── StalePlanError           definition or raw data changed since the plan was made
    │   └── MigrationError           a database is behind (or ahead of) this version
    ├── UnavailableError         3  a service did not answer in time; retrying helps
    │   ├── SourceUnavailableError   a provider: connection, 5xx, throttled past the deadline
    │   ├── StoreUnavailableError    the object store
    │   ├── WarehouseUnavailableError  PostGIS: refused connection, restart, deadlock
    │   └── StateUnavailableError    the state database
    ├── SourceFaultError         3  a provider broke its contract; the stream is blocked
    │   ├── SourceRefusedError       a final refusal, such as 403; only other settings help
    │   └── TokenExpiredError        the resume token is no longer honoured; restart the window
    ├── CheckpointLostError      1  another ingester moved the checkpoint first; retrying helps
    ├── DataError                1  the data is wrong; only other data helps
    │   ├── SceneRejectedError       one Item cannot become a scene (has a reason code)
    │   ├── LakeFileError            a lake file is foreign, damaged or missing
    │   └── TableMismatchError       rows or types in the table are not those of the file
    └── RunError                 1  a run would break a promise, so it stops
        ├── KeySetError              the run's keys are empty or not the planned ones
        ├── ClaimRefusedError        another live run works on the key; retrying helps
        ├── StaleVersionError        a newer raw version is already stored
        └── PartitionsFailedError    some keys of a run failed; names them
"""

from __future__ import annotations

from typing import ClassVar


class ScenePipelineError(Exception):
    """Base of the tree: what happened, ``where``, and the ``next_step`` for whoever reads it."""

    retry_helps: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.next_step = next_step

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.where, self.next_step) if part)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only fields must survive the trip from a worker process.
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(kind: type[ScenePipelineError], fields: dict[str, object]) -> ScenePipelineError:
    error = kind.__new__(kind)
    Exception.__init__(error, fields["what"])
    error.__dict__.update(fields)
    return error


class UsageError(ScenePipelineError):
    """The request itself is wrong; nothing was started."""

    exit_code = 2


class SettingsError(UsageError):
    """A setting is missing, malformed or contradicts another."""


class InvalidKeyError(UsageError):
    """A partition key that the definition rejects; ``reason`` is one of `keys.KeyFault`."""

    def __init__(
        self, what: str, *, reason: str = "format", where: str = "", next_step: str = ""
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.reason = reason


class NotCoveredError(UsageError):
    """The published frontier does not reach the end of the key's day."""


class StalePlanError(UsageError):
    """The definition or the raw data changed since the plan was made."""


class MigrationError(UsageError):
    """A database schema is not at the revision this version needs."""


class UnavailableError(ScenePipelineError):
    """A service did not answer within its deadline."""

    retry_helps = True
    exit_code = 3


class SourceUnavailableError(UnavailableError):
    """A provider refused, failed or throttled past the deadline."""


class StoreUnavailableError(UnavailableError):
    """The object store did not answer."""


class WarehouseUnavailableError(UnavailableError):
    """The warehouse refused the connection, restarted or rolled back."""


class StateUnavailableError(UnavailableError):
    """The state database did not answer."""


class SourceFaultError(ScenePipelineError):
    """A provider broke its own contract (repeated page, shortfall, foreign host, not STAC)."""

    exit_code = 3


class SourceRefusedError(SourceFaultError):
    """A provider refused a request for good; ``status`` is that of HTTP."""

    def __init__(
        self, what: str, *, status: int = 400, where: str = "", next_step: str = ""
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.status = status


class TokenExpiredError(SourceFaultError):
    """The provider no longer honours a resume token; the window starts again (replays are safe)."""


class CheckpointLostError(ScenePipelineError):
    """Another ingester moved the checkpoint first; reread it and go on from there."""

    retry_helps = True


class DataError(ScenePipelineError):
    """The data is wrong; only other data helps."""


class SceneRejectedError(DataError):
    """One Item cannot become a scene; ``reason`` is a code of `scenes.item.Rejection`."""

    def __init__(
        self, what: str, *, reason: str = "", where: str = "", next_step: str = ""
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.reason = reason


class LakeFileError(DataError):
    """A lake file is foreign, damaged or missing."""


class TableMismatchError(DataError):
    """Rows or types in the table are not those of the lake file."""


class RunError(ScenePipelineError):
    """A run would break a promise, so it stops."""


class KeySetError(RunError):
    """The run's keys are empty or not the planned ones."""


class ClaimRefusedError(RunError):
    """Another live run works on the key."""

    retry_helps = True


class StaleVersionError(RunError):
    """A newer raw version of the key is already stored."""


class PartitionsFailedError(RunError):
    """Some keys of a run failed; ``failed`` maps each key to its error text."""

    def __init__(
        self, what: str, *, failed: dict[str, str], where: str = "", next_step: str = ""
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.failed = failed
