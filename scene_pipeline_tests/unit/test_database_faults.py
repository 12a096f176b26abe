"""Which database errors are waited for, how long, and what the others become."""

from __future__ import annotations

import time

import psycopg
import pytest
from psycopg import errors

from scene_pipeline.errors import (
    MigrationError,
    ScenePipelineError,
    TableMismatchError,
    WarehouseUnavailableError,
)
from scene_pipeline.warehouse.faults import passes_by_itself, retry_within, translate_error

PASSING = [
    errors.DeadlockDetected("deadlock detected"),
    errors.SerializationFailure("could not serialize access"),
    errors.TooManyConnections("sorry, too many clients already"),
    errors.AdminShutdown("terminating connection due to administrator command"),
    errors.CrashShutdown("terminating connection because of crash of another server process"),
    errors.CannotConnectNow("the database system is starting up"),
    errors.ConnectionFailure("connection failure"),
    # At connection time libpq gives no SQLSTATE.
    psycopg.OperationalError('FATAL:  too many connections for role "scenes_writer"'),
    psycopg.OperationalError("FATAL:  sorry, too many clients already"),
    psycopg.OperationalError("FATAL:  remaining connection slots are reserved for superusers"),
    psycopg.OperationalError("connection failed: Connection refused"),
    psycopg.OperationalError('connection on socket "/x" failed: No such file or directory'),
    psycopg.OperationalError("FATAL:  the database system is in recovery mode"),
    psycopg.OperationalError("FATAL:  the database system is shutting down"),
    psycopg.OperationalError("server closed the connection unexpectedly"),
    psycopg.OperationalError("the connection is lost"),
    psycopg.OperationalError("the connection is closed"),
    psycopg.OperationalError("consuming input failed: terminating connection due to …"),
]  # fmt: skip
LASTING = [
    errors.InsufficientPrivilege("permission denied for table scene_footprints"),
    errors.LockNotAvailable("canceling statement due to lock timeout"),
    errors.QueryCanceled("canceling statement due to user request"),
    errors.UniqueViolation("duplicate key value violates unique constraint"),
    errors.DiskFull("could not extend file"),
    psycopg.OperationalError('FATAL:  password authentication failed for user "u"'),
    psycopg.OperationalError('FATAL:  database "nowhere" does not exist'),
    psycopg.OperationalError('FATAL:  role "nobody" is not permitted to log in'),
    psycopg.ProgrammingError("the connection is closed, said someone else"),
]


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_these_pass_by_themselves(error: psycopg.Error) -> None:
    assert passes_by_itself(error)


@pytest.mark.parametrize("error", LASTING, ids=str)
def test_whatever_is_not_listed_fails_at_once(error: psycopg.Error) -> None:
    calls = 0

    def attempt() -> None:
        nonlocal calls
        calls += 1
        raise error

    with pytest.raises(ScenePipelineError) as caught:
        retry_within(60, attempt, where="here")
    assert calls == 1
    assert caught.value.where == "here"
    assert caught.value.next_step
    assert caught.value.__cause__ is error


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only pauses move."""
    taken: list[float] = []
    monkeypatch.setattr(time, "sleep", taken.append)
    monkeypatch.setattr(time, "monotonic", lambda: 1000 + sum(taken))
    return taken


def test_no_fault_means_no_wait(pauses: list[float]) -> None:
    assert retry_within(1, lambda: 7, where="here") == (7, 0.0)
    assert pauses == []


def test_the_wait_is_short_jittered_and_counted(pauses: list[float]) -> None:
    faults = [PASSING[n % len(PASSING)] for n in range(40)]

    def attempt() -> str:
        if faults:
            raise faults.pop()
        return "done"

    outcome, waited_s = retry_within(60, attempt, where="here")
    assert outcome == "done"
    assert len(pauses) == 40
    assert all(0.02 <= pause <= 0.1 for pause in pauses)
    assert len(set(pauses)) > 30, "a herd in step would collide again and again"
    assert waited_s == pytest.approx(sum(pauses))


def test_the_deadline_counts_from_the_first_fault(pauses: list[float]) -> None:
    def attempt() -> None:
        time.sleep(0.5)  # the work itself
        raise PASSING[0]

    with pytest.raises(WarehouseUnavailableError, match="within 2 s: deadlock detected") as caught:
        retry_within(2, attempt, where="partition 2024-06-01|a")
    assert 2 <= sum(pauses) <= 3.2
    assert caught.value.retry_helps
    assert caught.value.exit_code == 3
    assert "partition 2024-06-01|a" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.UndefinedTable('relation "scenes.x" does not exist'), MigrationError),
        (errors.InvalidSchemaName('schema "scenes" does not exist'), MigrationError),
        (errors.UndefinedColumn("column x does not exist"), MigrationError),
        (errors.UniqueViolation("duplicate key"), TableMismatchError),
        (errors.NotNullViolation("null value in column"), TableMismatchError),
        (errors.InvalidParameterValue("Geometry SRID (4326) does not match"), TableMismatchError),
        (errors.UntranslatableCharacter(r"unsupported Unicode escape"), TableMismatchError),
        (errors.LockNotAvailable("canceling statement"), WarehouseUnavailableError),
        (errors.InsufficientPrivilege("permission denied"), WarehouseUnavailableError),
    ],
)  # fmt: skip
def test_what_an_error_becomes(error: psycopg.Error, kind: type[ScenePipelineError]) -> None:
    ours = translate_error(error, where="here")
    assert type(ours) is kind
    assert ours.where == "here"
    assert ours.next_step


def test_a_long_server_message_becomes_one_line() -> None:
    error = errors.UniqueViolation("duplicate   key\nDETAIL:  Key (item_id)=(x) already exists.")
    assert translate_error(error, where="").what == "duplicate key"
