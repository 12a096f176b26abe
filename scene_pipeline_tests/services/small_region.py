"""A region of six tiles whose assets write nothing but events: Dagster's side without rasters.

Its jobs and asset keys are named as the pipeline's own, its bodies take claims and check their
keys as those do, and a file says which keys fail. A daemon loads the same definitions from the
module that `SmallRegion.write_module` leaves in the folder.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa

from scene_pipeline import errors
from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, TrackedAsset, choose_policy
from scene_pipeline.backfill.causes import describe_error
from scene_pipeline.backfill.claims import Claims
from scene_pipeline.backfill.key_states import Site, read_key_states
from scene_pipeline.backfill.policies import policies_of
from scene_pipeline.backfill.selection import Selection
from scene_pipeline.backfill.states import StateName
from scene_pipeline.backfill.tags import LAUNCH_TAG, require_planned_keys
from scene_pipeline.backfill.versions import DataVersion
from scene_pipeline.backfill.waves import LocalExecutor, Wave, launch_waves
from scene_pipeline.defs.partitions import scene_partitions
from scene_pipeline.defs.sensors import build_scenes_sensor
from scene_pipeline.ingest.raw import read_raw_versions
from scene_pipeline.scenes.keys import PartitionKey, SceneDefinition, parse_key
from scene_pipeline.settings import PolicyName, PolicySettings, SensorSettings, read_settings
from scene_pipeline.state import tables as t
from scene_pipeline.state.database import migrate_state, open_state, transact

REGION = "small"
START = date(2024, 6, 1)
TILES = ("f", "e", "d", "c", "b", "a")  # declared order is not alphabetical
# Rows of a key with raw scenes; a key without any is made empty.
ROWS = 3

_MODULE = """\
from pathlib import Path

from scene_pipeline_tests.services.small_region import SmallRegion

region = SmallRegion(
    Path({base!r}), state_url={url!r}, batched={batched}, pause_minutes={pause_minutes}
)
defs = region.build_definitions(running={running})
"""


def make_instance(base: Path, *, postgres_url: str = "") -> dg.DagsterInstance:
    """A quiet instance in ``base/home``, on SQLite or PostgreSQL storage."""
    home = base / "home"
    home.mkdir(exist_ok=True)
    config = "telemetry:\n  enabled: false\n"
    if postgres_url:
        config += f"storage:\n  postgres:\n    postgres_url: {postgres_url}\n"
    (home / "dagster.yaml").write_text(config)
    return dg.DagsterInstance.from_config(str(home))


def window(days: int, tiles: Iterable[str] = TILES, *, first: int = 0) -> list[PartitionKey]:
    """``days`` days from the ``first``-th after the start, days outermost."""
    chosen = tuple(tiles)
    return [
        PartitionKey(START + timedelta(days=first + day), tile)
        for day in range(days)
        for tile in chosen
    ]


class SmallRegion:
    """Definition, state and definitions under one folder."""

    def __init__(
        self,
        base: Path,
        *,
        state_url: str = "",
        batched: int = 4,
        pause_minutes: float = 10,
        tiles: tuple[str, ...] = TILES,
        start: date = START,
    ) -> None:
        self.base = base
        self.state_url = state_url or f"sqlite:///{base}/state.db"
        self.settings = read_settings(
            region=REGION,
            policies=PolicySettings(batched=batched),
            sensor=SensorSettings(relaunch_pause_minutes=pause_minutes, max_relaunches=2),
        )
        self.policies = self.settings.policies
        self.definition = SceneDefinition(REGION, start, None, "small", tiles)
        self._engine: sa.Engine | None = None

    @property
    def region(self) -> str:
        """As a `Pipeline` has it, for the sensor."""
        return REGION

    @property
    def state(self) -> sa.Engine:
        """As a `Pipeline` has it, for the sensor."""
        return self.engine

    @property
    def engine(self) -> sa.Engine:
        """The state database, made on first use."""
        if self._engine is None:
            migrate_state(self.state_url)
            self._engine = open_state(self.state_url)
        return self._engine

    def site(self, instance: dg.DagsterInstance) -> Site:
        """This region in ``instance``."""
        return Site(instance, self.engine, self.definition)

    def write_module(self, *, running: bool = False) -> Path:
        """A file that a daemon can load; ``running``: with the sensor on."""
        path = self.base / "small_defs.py"
        path.write_text(
            _MODULE.format(
                base=str(self.base),
                url=self.state_url,
                batched=self.policies.batched,
                pause_minutes=self.settings.sensor.relaunch_pause_minutes,
                running=running,
            )
        )
        return path

    # ------------------------------------------------------------------ the world outside

    def publish(self, through: date, *, revision: int = 1, epoch: int = 1) -> None:
        """A frontier that covers every day up to and with ``through``."""
        bound = datetime(through.year, through.month, through.day, tzinfo=UTC) + timedelta(days=1)
        row = {
            "revision": revision,
            "epoch": epoch,
            "routing": 1,
            "bound_value": bound,
            "bound_endpoint": "excluded",
            "withheld": "",
            "vector": "[]",
            "published_at": datetime.now(UTC),
        }

        def write(connection: sa.Connection) -> None:
            connection.execute(t.frontiers.delete().where(t.frontiers.c.region == REGION))
            connection.execute(t.frontiers.insert().values(region=REGION, **row))
            connection.execute(t.routings.delete().where(t.routings.c.region == REGION))
            connection.execute(
                t.routings.insert().values(
                    region=REGION,
                    generation=1,
                    fingerprint=self.definition.fingerprint,
                    grid="small",
                    tiles=" ".join(self.definition.tiles),
                    opened_at=datetime.now(UTC),
                )
            )

        transact(self.engine, write)

    def land(self, keys: Iterable[PartitionKey], *, raw_seq: int = 1, reopen: bool = False) -> None:
        """Raw scenes at version ``raw_seq``; ``reopen`` puts the keys into the dirty set."""

        def write(connection: sa.Connection) -> None:
            for key in keys:
                place = {"region": REGION, "day": key.day, "tile": key.tile}
                for table in (t.raw_versions, *([t.reopened] if reopen else [])):
                    is_key = [table.c[name] == value for name, value in place.items()]
                    connection.execute(table.delete().where(*is_key))
                connection.execute(
                    t.raw_versions.insert().values(**place, raw_seq=raw_seq, reported_seq=0)
                )
                if reopen:
                    connection.execute(
                        t.reopened.insert().values(
                            **place, raw_seq=raw_seq, since=datetime.now(UTC)
                        )
                    )

        transact(self.engine, write)

    def break_keys(self, faults: Mapping[PartitionKey, type[Exception]]) -> None:
        """From now on these keys fail, with that error."""
        names = {str(key): kind.__name__ for key, kind in faults.items()}
        (self.base / "faults.json").write_text(json.dumps(names))

    def hold_runs(self, *days: date) -> None:
        """Bodies wait before they work on a key of these days; none lets all go on."""
        (self.base / "gate").write_text(" ".join(map(str, days)))

    def slow_down(self, seconds: float) -> None:
        """From now on each key's work takes so long."""
        (self.base / "seconds").write_text(str(seconds))

    def executed(self) -> list[tuple[str, str]]:
        """(asset, key) of every execution of a key's work, failed ones too, in order."""
        journal = self.base / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [(line.split(" ")[0], line.split(" ")[1]) for line in lines]

    def states(
        self, instance: dg.DagsterInstance, asset: TrackedAsset, keys: Iterable[PartitionKey]
    ) -> dict[PartitionKey, StateName]:
        """State of each key."""
        found = read_key_states(self.site(instance), asset, keys=keys, now=datetime.now(UTC))
        return {key: state.state for key, state in found.items()}

    # ------------------------------------------------------------------ definitions

    def build_definitions(self, *, running: bool = False) -> dg.Definitions:
        """Both assets, their five jobs and the sensor."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            footprints = _build_asset(self, FOOTPRINTS)
            table = _build_asset(self, TABLE)
            batch = self.policies.batched
            jobs = [
                _resolve([_limit(footprints, policy.max_keys)], policy.job_name)
                for policy in policies_of(self.policies).values()
            ]
            jobs += [
                _resolve([_limit(footprints, 1), _limit(table, 1)], "daily_scenes_job"),
                _resolve([_limit(table, 2 * batch)], "footprint_table_job"),
            ]
            return dg.Definitions(
                assets=[_limit(footprints, batch), _limit(table, 2 * batch)],
                jobs=jobs,
                sensors=[
                    # Dagster's daemon looks at sensors each 5 s.
                    build_scenes_sensor(self, jobs=jobs, running=running, interval_s=5)  # type: ignore[arg-type]
                ],
                executor=dg.in_process_executor,
            )

    def work(self, asset: TrackedAsset, key: PartitionKey) -> DataVersion:
        """One key's work: fails if told to, else its version."""
        with (self.base / "journal").open("a") as journal:
            journal.write(f"{asset.name} {key}\n")
        faults = self.base / "faults.json"
        name = json.loads(faults.read_text()).get(str(key)) if faults.exists() else None
        if name is not None and asset == FOOTPRINTS:
            kind: type[errors.ScenePipelineError] = getattr(errors, name)
            raise kind(f"{key} cannot be made", where="scene S2A_1")
        seconds = self.base / "seconds"
        time.sleep(float(seconds.read_text()) if seconds.exists() else 0)
        raw_seq = read_raw_versions(self.engine, REGION, [key]).get(key, 0)
        return DataVersion(raw_seq, ROWS if raw_seq else 0, asset.code_version)

    def wait_at_gate(self, keys: Iterable[PartitionKey]) -> None:
        """Wait while a day of the keys is held."""
        gate = self.base / "gate"
        days = {str(key.day) for key in keys}
        while gate.exists() and days & set(gate.read_text().split()):
            time.sleep(0.05)


def _limit(asset: dg.AssetsDefinition, max_keys: int) -> dg.AssetsDefinition:
    return asset.with_attributes(backfill_policy=dg.BackfillPolicy.multi_run(max_keys))


def _resolve(assets: list[dg.AssetsDefinition], name: str) -> dg.JobDefinition:
    jobs = [dg.define_asset_job(name, selection=[asset.key for asset in assets])]
    return dg.Definitions(
        assets=assets, jobs=jobs, executor=dg.in_process_executor
    ).resolve_job_def(name)


def _build_asset(region: SmallRegion, asset: TrackedAsset) -> dg.AssetsDefinition:
    def body(context: dg.AssetExecutionContext) -> Iterator[dg.Output[Any]]:
        keys = [parse_key(text) for text in context.partition_keys]
        region.wait_at_gate(keys)
        require_planned_keys(
            context.run.tags, keys, assets=len(context.job_def.asset_layer.selected_asset_keys)
        )
        claims = Claims(
            region.engine,
            region=REGION,
            asset=asset.name,
            run_id=context.run.run_id,
            launch_id=context.run.tags.get(LAUNCH_TAG),
        )
        failed: dict[str, str] = {}
        for key in keys:
            with claims.hold([key]) as held:
                try:
                    for refusal in held.refused.values():
                        raise refusal
                    version = region.work(asset, key)
                except errors.ScenePipelineError as error:
                    failed[str(key)] = describe_error(error)
                    continue
                if len(keys) == 1:
                    yield dg.Output(None, data_version=dg.DataVersion(str(version)))
                else:
                    context.log_event(
                        dg.AssetMaterialization(
                            context.asset_key, partition=str(key), tags=version.tags
                        )
                    )
        if failed:
            raise dg.Failure(
                f"{len(failed)} of {len(keys)} keys failed",
                metadata={"failed": dg.MetadataValue.json(failed)},
                allow_retries=False,
            )

    body.__annotations__["context"] = dg.AssetExecutionContext
    body.__annotations__["return"] = Iterator[dg.Output[Any]]
    return dg.asset(
        body,
        name=asset.name,
        key_prefix=[REGION],
        partitions_def=scene_partitions(region.definition),
        deps=[dg.AssetKey([REGION, asset.upstream])] if asset.upstream else [],
        output_required=False,
        code_version=asset.code_version,
    )


def launch_here(
    region: SmallRegion,
    instance: dg.DagsterInstance,
    keys: Iterable[PartitionKey],
    *,
    policy: PolicyName = "batched",
    assets: Iterable[TrackedAsset] = (FOOTPRINTS, TABLE),
    selection: Selection | None = None,
    now: datetime | None = None,
) -> list[Wave]:
    """Launch ``keys`` in this process, as ``backfill launch --local`` does."""
    chosen = tuple(assets)
    asked = list(keys)
    return launch_waves(
        region.site(instance),
        LocalExecutor(region.build_definitions().resolve_job_def),
        policies={asset: choose_policy(asset, region.policies, policy) for asset in chosen},
        keys=dict.fromkeys(chosen, asked),
        selection=selection or Selection(),
        advance=lambda *_: None,
        clock=lambda: now or datetime.now(UTC),
    )
