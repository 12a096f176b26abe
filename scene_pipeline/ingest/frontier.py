"""The published frontier: the instant before which every stream of an epoch is proven complete.

`plan_frontier` is the rule (pure): the least bound over all members of an epoch, published
upward only. `publish_frontier` reads durable evidence, plans, and swaps the published row if its
revision and epoch are still the ones it started from; a loser recomputes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa

from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import reading

__all__ = ["Gap", "PublishedFrontier", "StreamBound", "read_frontier"]


@dataclass(frozen=True, slots=True)
class StreamBound:
    """One member's part of the vector: how far it is proven, by which declared rule, and why not.

    ``state`` is active or blocked; ``reason`` says why the bound does not move; ``since`` is
    when it entered that state.
    """

    stream: str
    bound: Bound | None
    finality: str
    state: str
    reason: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Gap:
    """A retired stream: proven through one instant, given up by an operator at another."""

    stream: str
    proven_through: datetime | None
    declared_through: datetime
    reason: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class PublishedFrontier:
    """The latest published promise of a region.

    ``bound`` None: nothing is promised yet. ``withheld`` says, where it is not empty, which
    proof is missing for more. ``revision`` grows with every change of this row, ``epoch`` with
    every change of membership, ``routing`` with every changed grid.
    """

    bound: Bound | None
    epoch: int
    revision: int
    routing: int
    vector: tuple[StreamBound, ...]
    holder: str | None
    holder_since: datetime | None
    withheld: str
    gaps: tuple[Gap, ...]
    published_at: datetime

    def covers(self, day: date) -> bool:
        """Whether every instant of the UTC day is before the bound."""
        return self.bound is not None and self.bound.covers_day(day)


def read_frontier(engine: sa.Engine, region: str) -> PublishedFrontier | None:
    """The latest revision of ``region``, or None where nothing was ever published."""
    with reading(engine) as connection:
        return select_frontier(connection, region)


def select_frontier(connection: sa.Connection, region: str) -> PublishedFrontier | None:
    """`read_frontier` inside a transaction."""
    row = connection.execute(sa.select(t.frontiers).where(t.frontiers.c.region == region)).first()
    if row is None:
        return None
    gaps = connection.execute(
        sa.select(t.gaps).where(t.gaps.c.region == region).order_by(t.gaps.c.epoch)
    )
    return PublishedFrontier(
        bound=row_bound(row),
        epoch=row.epoch,
        revision=row.revision,
        routing=row.routing,
        vector=decode_vector(row.vector),
        holder=row.holder,
        holder_since=row.holder_since,
        withheld=row.withheld,
        gaps=tuple(
            Gap(g.stream, g.proven_through, g.declared_through, g.reason, g.recorded_at)
            for g in gaps
        ),
        published_at=row.published_at,
    )


def row_bound(row: Any, prefix: str = "bound") -> Bound | None:
    """The bound that a row keeps in two columns."""
    value = getattr(row, f"{prefix}_value")
    return None if value is None else Bound(value, getattr(row, f"{prefix}_endpoint"))


def encode_vector(vector: Sequence[StreamBound]) -> str:
    """The vector as JSON, for the published row."""
    return json.dumps([asdict(part) for part in vector], default=datetime.isoformat)


def decode_vector(text: str) -> tuple[StreamBound, ...]:
    """Inverse of `encode_vector`."""
    return tuple(
        StreamBound(
            stream=part["stream"],
            bound=part["bound"]
            and Bound(datetime.fromisoformat(part["bound"]["value"]), part["bound"]["endpoint"]),
            finality=part["finality"],
            state=part["state"],
            reason=part["reason"],
            since=part["since"] and datetime.fromisoformat(part["since"]),
        )
        for part in json.loads(text)
    )
