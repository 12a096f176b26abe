"""A few days of the simulated region, ingested and built by the real pipeline in this process.

For tests that look at results: the report, the pages, the recipes of the docs.
"""

from __future__ import annotations

import tomllib
import warnings
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg

from scene_pipeline.backfill.assets import FOOTPRINTS, WAVES, choose_policy
from scene_pipeline.backfill.key_states import Site
from scene_pipeline.backfill.launch import new_launch_id, reserve_keys
from scene_pipeline.backfill.local import execute_plan
from scene_pipeline.backfill.selection import Selection
from scene_pipeline.defs.build import build_definitions
from scene_pipeline.defs.home import open_instance
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.ingest.runner import run_ingest
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.settings import Settings, read_settings

START = date(2024, 6, 1)

_CONFIG = """\
region = "fiji"
start_date = {start}
end_date = {end}
area = [175.5, -21.0, -178.0, -17.0]
zoom = 7
state_url = "sqlite:///{base}/.scene_pipeline/state.db"
lake = "{base}/.scene_pipeline/lake"
warehouse_url = "{warehouse_url}"
dagster_home = "{base}/.scene_pipeline/dagster_home"

[[streams]]
source = "simulator"
collection = "sim-optical"

[retries]
max_retries = 0
"""


_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True, slots=True)
class BuiltRegion:
    """``damaged`` has footprints whose file was spoilt, so that its table partition failed."""

    base: Path
    config: Path
    settings: Settings
    days: tuple[date, ...]
    damaged: PartitionKey | None

    @property
    def pipeline(self) -> Pipeline:
        """The region's parts."""
        return Pipeline(self.settings)


def build_region(
    base: Path, *, days: int = 3, warehouse_url: str = "", damage: bool = False
) -> BuiltRegion:
    """Ingest ``days`` days from `START`, build both assets and each day's coverage."""
    base.mkdir(parents=True, exist_ok=True)
    config = base / "scene_pipeline.toml"
    end = START + timedelta(days=days)
    config.write_text(_CONFIG.format(base=base, start=START, end=end, warehouse_url=warehouse_url))
    settings = read_settings(**tomllib.loads(config.read_text()))
    report = run_ingest(settings)
    assert not report.errors, report.errors
    pipeline = Pipeline(settings)
    window = list(pipeline.definition.iter_window(START, end - timedelta(days=1)))
    damaged = None
    with warnings.catch_warnings(), open_instance(settings) as instance:
        warnings.simplefilter("ignore", dg.BetaWarning)
        definitions = build_definitions(settings)
        site = Site(instance, pipeline.state, pipeline.definition)
        for asset in WAVES:
            stored, _ = reserve_keys(
                site,
                asset,
                choose_policy(asset, settings.policies),
                keys=window,
                selection=Selection(),
                launcher="test",
                launch_id=new_launch_id(),
                now=datetime.now(UTC),
            )
            assert stored is not None
            execute_plan(site, stored, find_job=definitions.resolve_job_def)
            if asset == FOOTPRINTS and damage:
                damaged = window[1]
                pipeline.store.write(pipeline.lake.path(damaged), b"not a parquet file")
        for day in sorted({key.day for key in window} - {damaged.day if damaged else None}):
            job = definitions.resolve_job_def("coverage_job")
            made = job.execute_in_process(
                instance=instance, partition_key=day.isoformat(), run_config=_QUIET
            )
            assert made.success
    pipeline.state.dispose()
    return BuiltRegion(base, config, settings, tuple(sorted({k.day for k in window})), damaged)
