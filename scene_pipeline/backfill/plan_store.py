"""Launched plans in the state database: the account by which a crash heals and an audit asks."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

from scene_pipeline.backfill.plan import Plan, parse_plan
from scene_pipeline.state.database import reading, transact
from scene_pipeline.state.tables import plans

__all__ = [
    "Launcher",
    "StoredPlan",
    "forget_plan",
    "launcher_here",
    "mark_recorded",
    "parse_launcher",
    "read_launch",
    "read_open_plans",
    "read_plan",
    "take_over",
    "write_plan",
]

LauncherKind = Literal["cli", "local", "sensor"]


@dataclass(frozen=True, slots=True)
class Launcher:
    """Who launched a plan: the sensor, or a process of a host."""

    kind: LauncherKind
    host: str = ""
    pid: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "sensor" else f"{self.kind}:{self.host}:{self.pid}"

    @property
    def is_dead(self) -> bool:
        """Whether its process is known to be gone; of another host nothing is known."""
        if self.kind == "sensor" or self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


def launcher_here(kind: Literal["cli", "local"]) -> Launcher:
    """This process."""
    return Launcher(kind, socket.gethostname(), os.getpid())


def parse_launcher(text: str) -> Launcher:
    """Read ``str(Launcher)`` back."""
    kind, _, rest = text.partition(":")
    host, _, pid = rest.rpartition(":")
    return Launcher(kind, host, int(pid or 0))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A launched plan. ``recorded_at`` None: its runs or its row may still be missing."""

    plan: Plan
    launch_id: str
    launcher: Launcher
    created_at: datetime
    recorded_at: datetime | None


def write_plan(
    engine: sa.Engine, plan: Plan, *, launch_id: str, launcher: Launcher, at: datetime
) -> bool:
    """Store a plan before its first run exists; False where the same plan was launched before."""

    def insert(connection: sa.Connection) -> bool:
        known = connection.execute(
            sa.select(plans.c.plan_id).where(*_is(plan.region, plan.plan_id))
        ).first()
        if known:
            return False
        connection.execute(
            plans.insert().values(
                region=plan.region,
                plan_id=plan.plan_id,
                asset=plan.asset.name,
                policy=plan.policy.name,
                fingerprint=plan.fingerprint,
                launch_id=launch_id,
                wave=plan.asset.wave,
                launched_by=str(launcher),
                created_at=at,
                document=plan.document,
            )
        )
        return True

    try:
        return transact(engine, insert)
    except sa.exc.IntegrityError:
        return False


def read_plan(engine: sa.Engine, *, region: str, plan_id: str) -> StoredPlan | None:
    """The plan of that id, or None."""
    with reading(engine) as connection:
        row = connection.execute(sa.select(plans).where(*_is(region, plan_id))).first()
    return _stored(row) if row else None


def read_open_plans(engine: sa.Engine, *, region: str, limit: int = 100) -> list[StoredPlan]:
    """Plans that are not recorded yet, oldest first."""
    with reading(engine) as connection:
        rows = connection.execute(
            sa.select(plans)
            .where(plans.c.region == region, plans.c.recorded_at.is_(None))
            .order_by(plans.c.created_at)
            .limit(limit)
        ).all()
    return [_stored(row) for row in rows]


def read_launch(engine: sa.Engine, *, region: str, launch_id: str) -> list[StoredPlan]:
    """The plans of one launch, in wave order."""
    with reading(engine) as connection:
        rows = connection.execute(
            sa.select(plans)
            .where(plans.c.region == region, plans.c.launch_id == launch_id)
            .order_by(plans.c.wave)
        ).all()
    return [_stored(row) for row in rows]


def take_over(engine: sa.Engine, stored: StoredPlan, *, launcher: Launcher) -> bool:
    """Make ``launcher`` responsible for a dead launcher's plan; one of several wins."""

    def swap(connection: sa.Connection) -> bool:
        result = connection.execute(
            plans.update()
            .where(
                *_is(stored.plan.region, stored.plan.plan_id),
                plans.c.launched_by == str(stored.launcher),
                plans.c.recorded_at.is_(None),
            )
            .values(launched_by=str(launcher))
        )
        return result.rowcount == 1

    return transact(engine, swap)


def mark_recorded(engine: sa.Engine, stored: StoredPlan, *, at: datetime) -> None:
    """Every run of the plan exists, and so does its row."""

    def update(connection: sa.Connection) -> None:
        connection.execute(
            plans.update()
            .where(*_is(stored.plan.region, stored.plan.plan_id))
            .values(recorded_at=at)
        )

    transact(engine, update)


def forget_plan(engine: sa.Engine, stored: StoredPlan) -> None:
    """Remove a plan of which no run was ever created: the same wish may be made again."""
    transact(
        engine,
        lambda connection: connection.execute(
            plans.delete().where(*_is(stored.plan.region, stored.plan.plan_id))
        ),
    )


def _is(region: str, plan_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return plans.c.region == region, plans.c.plan_id == plan_id


def _stored(row: Any) -> StoredPlan:
    return StoredPlan(
        parse_plan(row.document),
        row.launch_id,
        parse_launcher(row.launched_by),
        row.created_at,
        row.recorded_at,
    )
