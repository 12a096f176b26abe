"""A burst against a provider that throttles: ingest and rescan together keep to its rate.

The provider counts; with a cap below its limit it refuses nobody, without one it does. A backfill
of footprints is no burden to it at all.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest

from scene_pipeline.backfill.assets import FOOTPRINTS, choose_policy
from scene_pipeline.backfill.key_states import Site
from scene_pipeline.backfill.selection import Selection
from scene_pipeline.backfill.waves import LocalExecutor, launch_waves
from scene_pipeline.defs.build import build_definitions
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.ingest.checkpoints import Lane
from scene_pipeline.ingest.runner import run_ingest
from scene_pipeline.settings import Caps, Settings
from scene_pipeline_tests.services.http_region import NOW, ingest, make_item, make_settings
from scene_pipeline_tests.services.http_server import Answer, Incoming, answer_json, serve
from scene_pipeline_tests.services.memory_stac import MemoryStac

# What the provider bears in any second, and our cap below it.
LIMIT, CAP = 30, 20


@dataclass(slots=True)
class ThrottlingStac:
    """A STAC API that refuses whatever is above `LIMIT` requests in a second."""

    memory: MemoryStac
    last: deque[float] = field(default_factory=deque)
    times: list[float] = field(default_factory=list)
    refused: int = 0

    def respond(self, incoming: Incoming) -> Answer:
        now = time.monotonic()
        self.times.append(now)
        while self.last and self.last[0] < now - 1:
            self.last.popleft()
        if len(self.last) >= LIMIT:
            self.refused += 1
            return answer_json({"description": "too many requests"}, 429, retry_after="1")
        self.last.append(now)
        return self.memory.respond(incoming)

    @property
    def per_minute(self) -> float:
        """Requests a minute from the first to the last."""
        return 60 * (len(self.times) - 1) / (self.times[-1] - self.times[0])


def read_both_lanes(settings: Settings) -> None:
    """The next forward round and a rescan at once, as two runs of ingest would."""

    def read(lane: Lane) -> None:
        report = run_ingest(settings, lane=lane, clock=lambda: NOW)
        assert not report.errors, report.errors

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, ("forward", "rescan")))


@pytest.mark.parametrize(("cap", "is_refused"), [(CAP, False), (10_000, True)])
def test_ingest_and_rescan_share_the_providers_rate(
    tmp_path: Path, cap: int, *, is_refused: bool
) -> None:
    memory = MemoryStac(
        [make_item(f"i{n:03d}", f"2024-06-{1 + n % 30:02d}T12:00:00Z") for n in range(60)]
    )
    provider = ThrottlingStac(memory)
    with serve(provider.respond) as server:
        memory.url = server.url
        settings = make_settings(server.url, tmp_path, page_limit=1)
        ingest(settings)
        provider.times.clear()
        provider.last.clear()
        provider.refused = 0
        capped = settings.model_copy(
            update={"caps": Caps(stac_requests_per_s=cap, http_deadline_s=60)}
        )
        read_both_lanes(capped)
        assert (provider.refused > 0) == is_refused
        if not is_refused:
            assert len(provider.times) > 2 * CAP
            assert provider.per_minute <= 60 * CAP * 1.05

        # Footprints are built from the raw lake: the provider hears nothing of it.
        before = len(server.requests)
        pipeline = Pipeline(settings)
        keys = list(pipeline.definition.iter_window(settings.start_date, NOW.date().replace(day=5)))
        with dg.DagsterInstance.ephemeral() as instance:
            (wave,) = launch_waves(
                Site(instance, pipeline.state, pipeline.definition),
                LocalExecutor(build_definitions(settings).resolve_job_def),
                policies={FOOTPRINTS: choose_policy(FOOTPRINTS, settings.policies, "single_run")},
                keys={FOOTPRINTS: keys},
                selection=Selection(),
                advance=lambda *_: None,
            )
        assert wave.account is not None
        assert wave.account.clean
        assert len(wave.account.by_outcome["done"]) == 35
        assert len(server.requests) == before
        pipeline.state.dispose()
