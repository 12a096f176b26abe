"""A small region fed from an archive of made-up Items: each test says which scenes there are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyproj
import shapely
import sqlalchemy as sa

from scene_pipeline.backfill.assets import TrackedAsset, choose_policy
from scene_pipeline.backfill.key_states import Site
from scene_pipeline.backfill.selection import Selection
from scene_pipeline.backfill.waves import LocalExecutor, Wave, launch_waves
from scene_pipeline.defs.build import build_definitions
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.ingest.checkpoints import Lane
from scene_pipeline.ingest.runner import IngestReport, run_ingest
from scene_pipeline.lake.segments import read_segment, write_segment
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.settings import PolicyName, read_settings
from scene_pipeline.state import tables as t

START = date(2024, 6, 1)
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
_TO_DEGREES = pyproj.Transformer.from_crs(3857, 4326, always_xy=True)


class ArchiveRegion:
    """Six tiles over the Alps, ``days`` days; everything lives under ``base``."""

    def __init__(self, base: Path, *, days: int = 4, **settings: Any) -> None:
        self.archive = base / "items.ndjson"
        self.archive.touch()
        self.end = START + timedelta(days=days)
        values = {
            "region": "alps",
            "start_date": START,
            "end_date": self.end,
            "area": (6.0, 45.0, 12.0, 47.0),
            "zoom": 7,
            "state_url": f"sqlite:///{base}/state.db",
            "lake": str(base / "lake"),
            "retries": {"max_retries": 2, "delay_s": 0.01},
            "streams": [
                {
                    "path": str(self.archive),
                    "collection": "made-up",
                    "options": {"complete_through": self.end.isoformat()},
                }
            ],
        }
        self.settings = read_settings(**{**values, **settings})
        self.pipeline = Pipeline(self.settings)
        self.definitions: dg.Definitions = build_definitions(self.settings)
        # In memory: what storage Dagster uses is no matter here, and a home costs a second.
        self.instance = dg.DagsterInstance.ephemeral()

    @property
    def tiles(self) -> tuple[str, ...]:
        """Tiles in declared order."""
        return self.pipeline.definition.tiles

    @property
    def site(self) -> Site:
        """For launches."""
        return Site(self.instance, self.pipeline.state, self.pipeline.definition)

    def key(self, day: int, tile: int) -> PartitionKey:
        """The ``day``-th day and ``tile``-th tile, both from 0."""
        return PartitionKey(START + timedelta(days=day), self.tiles[tile])

    def window(self, days: int, tiles: int | None = None) -> list[PartitionKey]:
        """The first ``days`` days of the first ``tiles`` tiles."""
        return [
            self.key(day, tile)
            for day in range(days)
            for tile in range(len(self.tiles) if tiles is None else tiles)
        ]

    def ingest(self, items: Iterable[Mapping[str, Any]], *, lane: Lane = "forward") -> IngestReport:
        """Add Items to the archive and read it; what comes later needs the lane ``rescan``."""
        with self.archive.open("a") as archive:
            archive.writelines(json.dumps(item) + "\n" for item in items)
        report = run_ingest(self.settings, lane=lane)
        assert not report.errors, report.errors
        return report

    def make_item(self, name: str, key: PartitionKey, **changes: Any) -> dict[str, Any]:
        """An Item whose square footprint lies well inside the key's tile."""
        west, south, east, north = self.pipeline.grid.bounds(key.tile)
        inset = (east - west) / 4
        corners = shapely.box(west + inset, south + inset, east - inset, north - inset)
        ring = [_TO_DEGREES.transform(x, y) for x, y in shapely.get_coordinates(corners).tolist()]
        at = datetime(key.day.year, key.day.month, key.day.day, 10, 30, tzinfo=UTC)
        return {
            "type": "Feature",
            "stac_version": "1.0.0",
            "id": name,
            "collection": "made-up",
            "geometry": {"type": "Polygon", "coordinates": [ring]},
            "bbox": list(shapely.Polygon(ring).bounds),
            "properties": {"datetime": at.isoformat(), "eo:cloud_cover": 12.5},
            "links": [],
            "assets": {},
            **changes,
        }

    def one_scene_a_key(self, keys: Iterable[PartitionKey]) -> list[dict[str, Any]]:
        """An Item for each key, named after it."""
        return [self.make_item(f"scene-{key.day:%m%d}-{key.tile}", key) for key in keys]

    def corrupt_scene(self, key: PartitionKey) -> None:
        """The one scene of ``key`` gets a footprint that no polygon can be made of."""
        with self.pipeline.state.begin() as connection:
            placed = t.placements.c
            item_id = connection.execute(
                sa.select(placed.item_id).where(placed.day == key.day, placed.tile == key.tile)
            ).scalar_one()
            is_item = t.items.c.item_id == item_id
            digest = connection.execute(sa.select(t.items.c.segment).where(is_item)).scalar_one()
            whole = read_segment(self.pipeline.store, self.pipeline.region, digest)
            row = whole.filter(pc.field("item_id") == item_id)
            point = pa.array([shapely.to_wkb(shapely.Point(8, 46))], row["geometry"].type)
            place = row.schema.get_field_index("geometry")
            spoilt = row.set_column(place, row.schema.field(place), point)
            stored = write_segment(self.pipeline.store, self.pipeline.region, spoilt)
            segment = connection.execute(sa.select(t.segments).limit(1)).mappings().one()
            connection.execute(t.segments.insert().values({**segment, "digest": stored.digest}))
            connection.execute(t.items.update().where(is_item).values(segment=stored.digest))

    def launch(
        self,
        keys: Iterable[PartitionKey],
        *assets: TrackedAsset,
        policy: PolicyName = "batched",
        selection: Selection | None = None,
    ) -> list[Wave]:
        """Launch ``keys`` in this process, as ``backfill launch --local`` does."""
        asked = list(keys)
        policies = self.settings.policies
        return launch_waves(
            self.site,
            LocalExecutor(self.definitions.resolve_job_def),
            policies={asset: choose_policy(asset, policies, policy) for asset in assets},
            keys=dict.fromkeys(assets, asked),
            selection=selection or Selection(),
            advance=lambda *_: None,
        )

    def run(
        self,
        job: str,
        keys: Iterable[PartitionKey],
        *,
        tags: Mapping[str, str] | None = None,
        as_range: bool | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Execute a job over the rectangle from the first to the last of ``keys``."""
        listed = list(keys)
        ranged = len(listed) > 1 if as_range is None else as_range
        span = {
            "dagster/asset_partition_range_start": str(listed[0]),
            "dagster/asset_partition_range_end": str(listed[-1]),
        }
        return self.definitions.resolve_job_def(job).execute_in_process(
            instance=self.instance,
            partition_key=None if ranged else str(listed[0]),
            tags={**(span if ranged else {}), **(tags or {})},
            run_config=_QUIET,
            raise_on_error=False,
        )

    def run_coverage(self, first: date, last: date) -> dg.ExecuteInProcessResult:
        """Execute `coverage_job` over the days ``first`` to ``last``, both included."""
        return self.definitions.resolve_job_def("coverage_job").execute_in_process(
            instance=self.instance,
            tags={
                "dagster/asset_partition_range_start": first.isoformat(),
                "dagster/asset_partition_range_end": last.isoformat(),
            },
            run_config=_QUIET,
            raise_on_error=False,
        )

    def materializations(self, result: dg.ExecuteInProcessResult) -> list[dg.AssetMaterialization]:
        """What a run recorded, in order; the result of a failed run leaves out what came before."""
        kind = dg.DagsterEventType.ASSET_MATERIALIZATION
        records = self.instance.all_logs(result.run_id, of_type=kind)
        return [entry.asset_materialization for entry in records if entry.asset_materialization]

    def made_keys(self, result: dg.ExecuteInProcessResult) -> list[str]:
        """Partition keys of the run's materializations, in order."""
        return [str(each.partition) for each in self.materializations(result)]

    def close(self) -> None:
        """Give up connections."""
        self.pipeline.state.dispose()
        self.instance.dispose()


def failure_of(result: dg.ExecuteInProcessResult) -> Any:
    """The data of the step failure that ended a run."""
    assert not result.success
    (event,) = [each for each in result.all_events if each.is_step_failure]
    return event.step_failure_data
