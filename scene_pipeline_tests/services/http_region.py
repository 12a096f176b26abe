"""A region of one tile, the whole world, that ingests one stream over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.ingester import IngestProgress, LaneReport
from scene_pipeline.ingest.runner import run_ingest
from scene_pipeline.settings import Caps, FinalitySettings, Settings, StreamSettings
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import open_state

# No landing page is asked for.
DIRECT = {"method": "POST", "sortby": "no"}
NOW = datetime(2024, 7, 10, 12, tzinfo=UTC)
# What a traversal that begins now proves, with the lag of a day.
BEFORE_TODAY = Bound(datetime(2024, 7, 9, 12, tzinfo=UTC))


def make_settings(url: str, folder: Path, *, deadline_s: float = 60, **stream: Any) -> Settings:
    """A region of the whole world at zoom 0, one stream, no waiting."""
    fields = {
        "url": url,
        "collection": "c",
        "name": "s",
        "finality": FinalitySettings(rule="lag", hours=24),
        "requests_per_s": 100_000,
        "page_limit": 10,
        "window_days": 60,
        "options": DIRECT,
        **stream,
    }
    return Settings(
        region="world",
        area=(-180.0, -90.0, 180.0, 90.0),
        zoom=0,
        start_date=date(2024, 6, 1),
        end_date=date(2024, 7, 10),
        state_url=f"sqlite:///{folder}/state.db",  # type: ignore[arg-type]
        lake=str(folder / "lake"),
        streams=(StreamSettings(**fields),),
        caps=Caps(stac_requests_per_s=100_000, http_deadline_s=deadline_s),
    )


def ingest(
    settings: Settings,
    now: datetime = NOW,
    progress: Callable[[IngestProgress], None] | None = None,
) -> LaneReport:
    """One round of the one stream."""
    (report,) = run_ingest(settings, clock=lambda: now, progress=progress).streams
    return report


def read_ids(settings: Settings) -> set[str]:
    """Ids with any outcome, from the receipts."""
    engine = open_state(settings.state_engine_url)
    try:
        with engine.connect() as connection:
            return set(connection.execute(sa.select(t.receipts.c.item_id)).scalars())
    finally:
        engine.dispose()


def make_item(item_id: str, at: str) -> dict[str, Any]:
    ring = [[10, 1], [11, 1], [11, 2], [10, 2], [10, 1]]
    return {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": item_id,
        "collection": "c",
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "bbox": [10, 1, 11, 2],
        "properties": {"datetime": at},
        "links": [],
        "assets": {},
    }
