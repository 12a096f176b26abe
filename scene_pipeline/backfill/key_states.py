"""Key states of a window, read in a handful of calls whose cost follows the window.

Sensor, schedule, command line and diagnosis all come here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg
import sqlalchemy as sa

from scene_pipeline.backfill.assets import TrackedAsset
from scene_pipeline.backfill.claims import read_claims
from scene_pipeline.backfill.dagster_internals import (
    read_event_facts,
    read_latest_positions,
    read_latest_versions,
)
from scene_pipeline.backfill.states import Evidence, KeyState, decide_state
from scene_pipeline.backfill.tags import ATTEMPT_TAG
from scene_pipeline.backfill.versions import parse_data_version
from scene_pipeline.ingest.frontier import PublishedFrontier, read_frontier
from scene_pipeline.ingest.raw import read_raw_versions
from scene_pipeline.scenes.keys import PartitionKey, SceneDefinition
from scene_pipeline.state.database import reading
from scene_pipeline.state.tables import routings

__all__ = ["Coverage", "Site", "asset_key_of", "has_ended", "read_coverage", "read_key_states"]

# Runs whose records one statement asks for.
_RUNS = 1000


def asset_key_of(definition: SceneDefinition, asset: str) -> dg.AssetKey:
    """Dagster's key: region, then name."""
    return dg.AssetKey([definition.region, asset])


def has_ended(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether ``run_id`` is over; a run that Dagster does not know may be another instance's."""
    run = instance.get_run_by_id(run_id)
    return run is not None and run.is_finished


@dataclass(frozen=True, slots=True)
class Site:
    """Where one region's keys live: Dagster's instance, the state database, the definition."""

    instance: dg.DagsterInstance
    engine: sa.Engine
    definition: SceneDefinition


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which keys the published frontier covers; ``tiles`` None: every tile of the definition."""

    frontier: PublishedFrontier | None
    tiles: frozenset[str] | None = None

    def covers(self, key: PartitionKey) -> bool:
        """Whether ``key``'s whole day is proven and its tile is in the published epoch."""
        return (
            self.frontier is not None
            and self.frontier.covers(key.day)
            and (self.tiles is None or key.tile in self.tiles)
        )


def read_coverage(engine: sa.Engine, definition: SceneDefinition) -> Coverage:
    """The published frontier, with the tiles of its routing where they are not this grid's."""
    frontier = read_frontier(engine, definition.region)
    if frontier is None:
        return Coverage(None)
    with reading(engine) as connection:
        row = connection.execute(
            sa.select(routings.c.tiles).where(
                routings.c.region == definition.region,
                routings.c.generation == frontier.routing,
            )
        ).first()
    tiles = frozenset(row.tiles.split()) if row else frozenset()
    return Coverage(frontier, None if tiles.issuperset(definition.tiles) else tiles)


@dataclass(frozen=True, slots=True)
class _RunEnd:
    live: bool
    attempt: int
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Upstream:
    seq: int | None
    position: int = 0


def read_key_states(
    site: Site,
    asset: TrackedAsset,
    *,
    keys: Iterable[PartitionKey],
    now: datetime,
    coverage: Coverage | None = None,
    launch_id: str | None = None,
) -> dict[PartitionKey, KeyState]:
    """The state of each of ``keys``, in their order; ``now`` is an aware UTC instant.

    What is in progress is read before what is done: a key that finishes in between is then done,
    and never asked for twice. ``launch_id``: whose claims do not count, because they are the
    caller's own.
    """
    instance, engine, definition = site.instance, site.engine, site.definition
    wanted = list(dict.fromkeys(keys))
    faults = {key: definition.find_fault(key, today=now.date()) for key in wanted}
    valid = [key for key in wanted if faults[key] is None]
    if coverage is None:
        coverage = read_coverage(engine, definition)
    asset_key = asset_key_of(definition, asset.name)
    claims = (
        read_claims(
            engine,
            region=definition.region,
            asset=asset.name,
            first=min(key.day for key in valid),
            last=max(key.day for key in valid),
            at=now,
        )
        if valid
        else {}
    )
    names = [str(key) for key in valid]
    planned = read_latest_positions(instance, asset_key, "planned", names)
    made = read_latest_positions(instance, asset_key, "materialized", names)
    open_names = [name for name in names if planned.get(name, 0) > made.get(name, 0)]
    facts = read_event_facts(instance, [planned[name] for name in open_names])
    planned_runs = {position: fact.run_id for position, fact in facts.items()}
    holders = {claim.run_id for claim in claims.values()}
    ends = _read_run_ends(instance, holders.union(planned_runs.values()))
    dead = {run_id for run_id, end in ends.items() if not end.live}
    claims = {key: claim for key, claim in claims.items() if claim.run_id not in dead}
    # Again: a run that was still live above may have made its key and ended since.
    made |= read_latest_positions(instance, asset_key, "materialized", open_names)
    versions = read_latest_versions(instance, asset_key, names)
    upstream = _read_upstream(site, asset, valid)
    states: dict[PartitionKey, KeyState] = {}
    for key in wanted:
        name = str(key)
        position = planned.get(name)
        run_id = planned_runs.get(position) if position is not None else None
        end = ends.get(run_id) if run_id is not None else None
        claim = claims.get(key)
        if claim is not None and claim.run_id == launch_id:
            claim = None
        above = upstream.get(key, _Upstream(None))
        version = versions.get(name)
        evidence = Evidence(
            fault=faults[key],
            covered=coverage.covers(key),
            claimed_by=claim.run_id if claim else None,
            claim_expires_at=claim.expires_at if claim else None,
            planned=position,
            planned_run=run_id,
            run_live=end.live if end else False,
            run_attempt=end.attempt if end else 0,
            run_ended_at=end.ended_at if end else None,
            materialized=made.get(name),
            version=parse_data_version(version) if version else None,
            code_version=asset.code_version,
            upstream_seq=above.seq,
            upstream_moved=above.position > made.get(name, 0),
        )
        states[key] = KeyState(key, decide_state(evidence), evidence)
    return states


def _read_upstream(
    site: Site, asset: TrackedAsset, keys: Sequence[PartitionKey]
) -> Mapping[PartitionKey, _Upstream]:
    """Version of what each key is made of; a day without raw scenes has version 0."""
    if asset.upstream is None:
        sequences = read_raw_versions(site.engine, site.definition.region, keys)
        return {key: _Upstream(sequences.get(key, 0)) for key in keys}
    asset_key = asset_key_of(site.definition, asset.upstream)
    names = [str(key) for key in keys]
    positions = read_latest_positions(site.instance, asset_key, "materialized", names)
    versions = read_latest_versions(site.instance, asset_key, names)
    found: dict[PartitionKey, _Upstream] = {}
    for key, name in zip(keys, names, strict=True):
        if name in positions:
            version = parse_data_version(versions.get(name, ""))
            found[key] = _Upstream(version.raw_seq if version else 0, positions[name])
    return found


def _read_run_ends(instance: dg.DagsterInstance, run_ids: set[str]) -> dict[str, _RunEnd]:
    found: dict[str, _RunEnd] = {}
    ordered = sorted(run_ids)
    for start in range(0, len(ordered), _RUNS):
        part = ordered[start : start + _RUNS]
        for record in instance.get_run_records(dg.RunsFilter(run_ids=part)):
            run = record.dagster_run
            ended = record.end_time
            found[run.run_id] = _RunEnd(
                live=not run.is_finished,
                attempt=int(run.tags.get(ATTEMPT_TAG, "1")),
                ended_at=datetime.fromtimestamp(ended, UTC) if ended else None,
            )
    return found
