"""Sources over local servers, with no shared database and no waiting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import SecretStr

from scene_pipeline.ingest.http import HttpClient
from scene_pipeline.ingest.http_parse import parse_root
from scene_pipeline.ingest.sources.base import Declaration, Page, Query, Source
from scene_pipeline.ingest.sources.options import StacOptions
from scene_pipeline.ingest.sources.stac_api import StacApi

WORLD = (-180.0, -90.0, 180.0, 90.0)


@dataclass(slots=True)
class StoppedClock:
    """Time that passes only by sleeping; remembers each pause."""

    now_s: float = 1000.0
    pauses_s: list[float] = field(default_factory=list)

    def read(self) -> float:
        """Seconds."""
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        """Pass the time at once."""
        self.pauses_s.append(pause_s)
        self.now_s += pause_s


@dataclass(slots=True)
class FreeThrottle:
    """A `Throttle` of one process: every slot is free, except after a hold."""

    clock: StoppedClock
    free_at_s: float = 0.0
    holds_s: list[float] = field(default_factory=list)

    def reserve(self, patience_s: float) -> float | None:
        """Wait for the hold alone."""
        wait_s = max(0.0, self.free_at_s - self.clock.now_s)
        return None if wait_s > patience_s else wait_s

    def hold(self, pause_s: float) -> None:
        """Remember it."""
        self.holds_s.append(pause_s)
        self.free_at_s = max(self.free_at_s, self.clock.now_s + pause_s)


def open_local(
    url: str,
    *,
    secrets: Mapping[str, str] | None = None,
    deadline_s: float = 60,
    clock: StoppedClock | None = None,
    max_body_bytes: int = 64 * 2**20,
    declaration: Declaration | None = None,
    allowed_hosts: tuple[str, ...] = (),
    **options: Any,
) -> StacApi:
    """A `StacApi` at ``url`` whose waits take no time."""
    clock = clock or StoppedClock()
    client = HttpClient(
        parse_root(url),
        FreeThrottle(clock),
        deadline_s=deadline_s,
        secrets={name: SecretStr(value) for name, value in (secrets or {}).items()},
        allowed_hosts=allowed_hosts,
        max_body_bytes=max_body_bytes,
        sleep=clock.sleep,
        clock=clock.read,
    )
    return StacApi(client, declaration or Declaration(), StacOptions(**options))


def make_query(
    collection: str = "c", start: str = "2024-06-01", end: str = "2024-07-01", limit: int = 100
) -> Query:
    """A query of the whole world, days in UTC, ``end`` excluded."""
    instants = [datetime.fromisoformat(day).replace(tzinfo=UTC) for day in (start, end)]
    return Query(collection, WORLD, instants[0], instants[1], limit)


def iterate_pages(source: Source, query: Query, token: str | None = None) -> Iterator[Page]:
    """Pages until there is no next one."""
    while True:
        page = source.fetch_page(query, token)
        yield page
        token = page.next_token
        if token is None:
            return
