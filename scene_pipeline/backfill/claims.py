"""Claims: leases in the state database by which one run works on a key.

Whoever launched a run, its body claims each key before the work and releases it after. A killed
run's claims expire, and can be taken over at once where its run is known to have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from scene_pipeline.errors import ClaimRefusedError, StateUnavailableError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.state.database import reading, transact
from scene_pipeline.state.tables import claims

__all__ = ["Claim", "Claims", "Held", "read_claims"]

LEASE_S = 120.0
# Rows of one statement: SQLite takes 32,766 parameters, seven a row.
_ROWS = 1000


def _now() -> datetime:
    return datetime.now(UTC)


def _never(run_id: str) -> bool:
    del run_id
    return False


@dataclass(frozen=True, slots=True)
class Claim:
    """Who works on a key, and until when it may stay silent."""

    key: PartitionKey
    run_id: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Held:
    """What a run holds inside `Claims.hold`; ``refused`` says why for each other key."""

    keys: tuple[PartitionKey, ...]
    refused: dict[PartitionKey, ClaimRefusedError]
    _still_ours: Callable[[Iterable[PartitionKey]], set[PartitionKey]]

    def require(self, keys: Iterable[PartitionKey]) -> None:
        """Check ``keys`` just before a write; raises `ClaimRefusedError` if one was lost."""
        wanted = set(keys)
        lost = sorted(wanted - self._still_ours(wanted))
        if lost:
            raise ClaimRefusedError(
                f"the claim on {lost[0]} was lost while this run was silent",
                where=", ".join(map(str, lost)),
                next_step="nothing was written; the run that took over does the key",
            )


class Claims:
    """Takes, renews and releases the claims of one run on the keys of one asset.

    ``run_ended`` tells whether a run is known to be over: its claims need not expire first.
    ``launch_id`` is the launch of which the run is part: the claims that the launcher took until
    its runs exist pass on to them.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        region: str,
        asset: str,
        run_id: str,
        lease_s: float = LEASE_S,
        run_ended: Callable[[str], bool] = _never,
        launch_id: str | None = None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._engine = engine
        self._place = {"region": region, "asset": asset}
        self._run_id = run_id
        self._lease = timedelta(seconds=lease_s)
        self._run_ended = run_ended
        self._launch_id = launch_id
        self._clock = clock

    @contextmanager
    def hold(self, keys: Sequence[PartitionKey]) -> Iterator[Held]:
        """Claim ``keys`` for the block, renewed in the background, released at its end."""
        taken = self.take(keys)
        refused = self._explain(set(keys) - taken)
        with self.keep(taken):
            yield Held(tuple(key for key in keys if key in taken), refused, self._find_live)

    @contextmanager
    def keep(self, taken: Iterable[PartitionKey]) -> Iterator[None]:
        """Renew claims in the background for the block; release what is still ours at its end."""
        keys = set(taken)
        stop = threading.Event()
        keeper = threading.Thread(
            target=self._renew_until, args=(keys, stop), name="claim-keeper", daemon=True
        )
        keeper.start()
        try:
            yield
        finally:
            stop.set()
            keeper.join()
            self.release(keys)

    def take(self, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        """Claim those of ``keys`` that are free, expired, ours, or held by a run that ended."""
        wanted = sorted(set(keys))
        taken = self._upsert(wanted, ended=())
        left = [key for key in wanted if key not in taken]
        if left:
            holders = {claim.run_id for claim in self._read(left)}
            ended = [
                run_id for run_id in holders if run_id == self._launch_id or self._run_ended(run_id)
            ]
            # A claim can also have been released between the two statements.
            taken |= self._upsert(left, ended=ended)
        return taken

    def renew(self, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        """Extend those of ``keys`` that are still ours, and return them."""

        def extend(connection: sa.Connection) -> set[PartitionKey]:
            renewed: set[PartitionKey] = set()
            for part in _parts(keys):
                rows = connection.execute(
                    claims.update()
                    .where(*self._here(part), claims.c.run_id == self._run_id)
                    .values(expires_at=self._clock() + self._lease)
                    .returning(claims.c.day, claims.c.tile)
                )
                renewed.update(PartitionKey(day, tile) for day, tile in rows)
            return renewed

        return transact(self._engine, extend)

    def release(self, keys: Iterable[PartitionKey]) -> None:
        """Give up those of ``keys`` that are still ours."""

        def give_up(connection: sa.Connection) -> None:
            for part in _parts(keys):
                connection.execute(
                    claims.delete().where(*self._here(part), claims.c.run_id == self._run_id)
                )

        transact(self._engine, give_up)

    def _upsert(self, keys: list[PartitionKey], *, ended: Sequence[str]) -> set[PartitionKey]:
        insert = postgresql.insert if self._engine.dialect.name == "postgresql" else sqlite.insert
        now = self._clock()
        lease = {"run_id": self._run_id, "taken_at": now, "expires_at": now + self._lease}
        free = sa.or_(
            claims.c.run_id == self._run_id,
            claims.c.expires_at <= now,
            claims.c.run_id.in_(ended),
        )

        def claim(connection: sa.Connection) -> set[PartitionKey]:
            taken: set[PartitionKey] = set()
            for part in _parts(keys):
                rows = [{**self._place, "day": k.day, "tile": k.tile, **lease} for k in part]
                result = connection.execute(
                    insert(claims)
                    .values(rows)
                    .on_conflict_do_update(
                        index_elements=list(claims.primary_key.columns), set_=lease, where=free
                    )
                    .returning(claims.c.day, claims.c.tile)
                )
                taken.update(PartitionKey(day, tile) for day, tile in result)
            return taken

        return transact(self._engine, claim)

    def _find_live(self, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        now = self._clock()
        return {
            claim.key
            for claim in self._read(keys)
            if claim.run_id == self._run_id and claim.expires_at > now
        }

    def _explain(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, ClaimRefusedError]:
        holders = {claim.key: claim for claim in self._read(keys)}
        return {
            key: ClaimRefusedError(
                f"{key} is claimed by run {holders[key].run_id if key in holders else 'unknown'}",
                where=f"asset {self._place['asset']} of region {self._place['region']}",
                next_step="that run does the key; a silent run's claim expires after "
                f"{self._lease.total_seconds():.0f} s",
            )
            for key in keys
        }

    def _read(self, keys: Iterable[PartitionKey]) -> list[Claim]:
        with reading(self._engine) as connection:
            return [
                Claim(PartitionKey(row.day, row.tile), row.run_id, row.expires_at)
                for part in _parts(keys)
                for row in connection.execute(sa.select(claims).where(*self._here(part)))
            ]

    def _here(self, keys: Sequence[PartitionKey]) -> list[sa.ColumnElement[bool]]:
        return [
            claims.c.region == self._place["region"],
            claims.c.asset == self._place["asset"],
            sa.tuple_(claims.c.day, claims.c.tile).in_([(key.day, key.tile) for key in keys]),
        ]

    def _renew_until(self, keys: set[PartitionKey], stop: threading.Event) -> None:
        while not stop.wait(self._lease.total_seconds() / 3):
            try:
                self.renew(keys)
            except StateUnavailableError:
                # The lease lasts three of these; `require` decides before each write.
                continue


def _parts(keys: Iterable[PartitionKey]) -> Iterator[list[PartitionKey]]:
    # Sorted: two runs that claim the same keys wait for each other, never crosswise.
    ordered = sorted(set(keys))
    for start in range(0, len(ordered), _ROWS):
        yield ordered[start : start + _ROWS]


def read_claims(
    engine: sa.Engine, *, region: str, asset: str, first: date, last: date, at: datetime
) -> dict[PartitionKey, Claim]:
    """Claims that are live ``at`` an instant, on days ``first`` to ``last`` (both included)."""
    with reading(engine) as connection:
        rows = connection.execute(
            sa.select(claims).where(
                claims.c.region == region,
                claims.c.asset == asset,
                claims.c.day.between(first, last),
                claims.c.expires_at > at,
            )
        )
        found = [Claim(PartitionKey(row.day, row.tile), row.run_id, row.expires_at) for row in rows]
    return {claim.key: claim for claim in found}
