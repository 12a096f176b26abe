"""The parts of one region's pipeline, opened from the settings on first use.

Assets, sensors and commands share this one object, so that none of them opens a database,
a store or a grid in a way of its own. Nothing here imports Dagster.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scene_pipeline.ingest.streams import StreamView
    from scene_pipeline.lake.partitions import PartitionLake
    from scene_pipeline.lake.store import ObjectStore
    from scene_pipeline.scenes.grid import WebMercatorGrid
    from scene_pipeline.scenes.keys import SceneDefinition
    from scene_pipeline.settings import Settings
    from scene_pipeline.warehouse.port import Warehouse

__all__ = ["Pipeline"]


class Pipeline:
    """Definition, grid, lake, state database and warehouse of ``settings.region``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def region(self) -> str:
        """First part of every asset key, path and lock."""
        return self.settings.region

    @cached_property
    def _defined(self) -> tuple[SceneDefinition, WebMercatorGrid]:
        from scene_pipeline.scenes.definition import define_scenes

        return define_scenes(self.settings)

    @property
    def definition(self) -> SceneDefinition:
        """Which partition keys exist."""
        return self._defined[0]

    @property
    def grid(self) -> WebMercatorGrid:
        """Where the tiles are."""
        return self._defined[1]

    @cached_property
    def store(self) -> ObjectStore:
        """The object store that holds raw segments and partitions."""
        from scene_pipeline.lake.store import open_store

        return open_store(self.settings.lake, self.settings.s3)

    @cached_property
    def lake(self) -> PartitionLake:
        """GeoParquet partitions of the region."""
        from scene_pipeline.lake.partitions import PartitionLake

        caps = self.settings.caps
        threads = 1 if caps.parallelism == "serial" else caps.workers
        return PartitionLake(self.store, self.region, threads=threads)

    @cached_property
    def state(self) -> sa.Engine:
        """The state database: checkpoints, frontier, claims, plans."""
        from scene_pipeline.state.database import open_state

        return open_state(self.settings.state_engine_url)

    @cached_property
    def warehouse(self) -> Warehouse:
        """PostGIS, or a GeoPackage where no ``warehouse_url`` is set."""
        from scene_pipeline.warehouse import open_warehouse

        return open_warehouse(self.settings)

    def require_migrated(self) -> None:
        """Open both databases; raises `MigrationError` where one is behind or ahead."""
        from scene_pipeline.scenes.keys import PartitionKey

        self.state.dispose()  # opening it has compared; a command that goes on connects anew
        # Any key: reading its version connects and compares the schema's revision.
        any_key = PartitionKey(self.definition.start, self.definition.tiles[0])
        self.warehouse.read_versions([any_key])

    def list_streams(self, *, now: datetime) -> list[StreamView]:
        """Every stream that the region has ever had, by name."""
        from scene_pipeline.ingest.streams import list_streams

        configured = {stream.name for stream in self.settings.streams}
        return list_streams(self.state, self.region, configured=configured, now=now)

    @property
    def warehouse_address(self) -> str:
        """Where the table is, for people; without a password."""
        from scene_pipeline.warehouse import GEOPACKAGE_NAME

        url = self.settings.warehouse_engine_url
        if url is None:
            return str(Path(self.settings.lake).absolute().parent / GEOPACKAGE_NAME)
        return (
            f"{url.render_as_string(hide_password=True)}, schema {self.settings.warehouse_schema}"
        )

    def last_covered_day(self) -> date | None:
        """The newest day of the definition that the published frontier covers."""
        from scene_pipeline.ingest.frontier import read_frontier

        frontier = read_frontier(self.state, self.region)
        if frontier is None or frontier.bound is None:
            return None
        covered = frontier.bound.last_covered_day
        if covered is None:
            return None
        end = self.definition.end
        last = covered if end is None else min(covered, end - timedelta(days=1))
        return last if last >= self.definition.start else None

    def recent_days(self) -> tuple[date, date] | None:
        """First and last (both included) of the newest covered days that are looked at daily."""
        last = self.last_covered_day()
        if last is None:
            return None
        back = timedelta(days=self.settings.sensor.daily_lookback_days - 1)
        return max(self.definition.start, last - back), last
