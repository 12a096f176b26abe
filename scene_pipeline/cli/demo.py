"""``demo``: the whole pipeline on simulated scenes, in this process, in about a minute."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import click

from scene_pipeline.cli.console import Console, pass_console, shorten_path
from scene_pipeline.errors import UsageError
from scene_pipeline.settings import load_settings

if TYPE_CHECKING:
    import dagster as dg

    from scene_pipeline.backfill.assets import TrackedAsset
    from scene_pipeline.backfill.key_states import Site
    from scene_pipeline.defs.pipeline import Pipeline

__all__ = ["demo"]

# Dagster's console logger prints every event; the steps say enough.
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@click.command()
@pass_console
def demo(console: Console) -> int:
    """Run everything once: ingest, frontier, plan, GeoParquet files, table, coverage maps.

    Two simulated weeks over Fiji, which the antimeridian crosses. Run it again: nothing is left
    to do, and it says so. Exits with 1 where a key failed or a stream could not be read.
    """
    settings = load_settings()
    if any(stream.source != "simulator" for stream in settings.streams):
        raise UsageError(
            "the demo runs on the simulator, and the settings name other streams",
            where="streams",
            next_step="use `scene-pipeline ingest run` and `scene-pipeline backfill launch`, or "
            "run the demo where no settings file is in force",
        )
    tour = _Tour(console)
    started = time.monotonic()
    document = tour.run()
    document["seconds"] = round(time.monotonic() - started, 1)
    console.result(document, lambda: tour.show(document))
    return 1 if document["failed"] else 0


class _Tour:
    """One demo; each step says what it did as soon as it has."""

    def __init__(self, console: Console) -> None:
        from scene_pipeline.defs.pipeline import Pipeline

        self._console = console
        self._pipeline: Pipeline = Pipeline(load_settings())
        self._step = 0

    def run(self) -> dict[str, Any]:
        """Every step; the document that `show` prints."""
        from scene_pipeline.backfill.key_states import Site
        from scene_pipeline.cli.ingest import read_streams
        from scene_pipeline.defs.build import build_definitions
        from scene_pipeline.defs.home import open_instance

        pipeline = self._pipeline
        with self._doing("definitions: assets, jobs, schedules, sensor"):
            definitions = build_definitions(pipeline.settings)
        with self._doing("Dagster home"):
            instance = open_instance(pipeline.settings)
        with instance:
            with self._doing("ingest from the simulator, and the frontier"):
                report, _ = read_streams(self._console, pipeline, instance)
            last = pipeline.last_covered_day()
            site = Site(instance, pipeline.state, pipeline.definition)
            planned = self._launch(site, definitions, last)
            planned["daily_coverage"] = self._cover(instance, definitions, last)
            states = self._count_states(site, last)
        return self._document(report, planned, states, last)

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        self._step += 1
        started = time.monotonic()
        yield
        self._console.note(f"  {self._step}. {what:<44}{time.monotonic() - started:6.1f} s")

    def _launch(self, site: Site, definitions: dg.Definitions, last: date | None) -> dict[str, int]:
        """Plan what is missing or changed, and run it here; how many keys of each asset."""
        from scene_pipeline.backfill.assets import WAVES, choose_policy
        from scene_pipeline.backfill.selection import Selection
        from scene_pipeline.backfill.waves import LocalExecutor, launch_waves

        if last is None:
            return {}
        keys = list(site.definition.iter_window(site.definition.start, last))
        policies = self._pipeline.settings.policies
        with (
            self._doing("files, then the table: what is missing"),
            self._console.progress("partitions", total=len(WAVES) * len(keys)) as advance,
        ):

            def follow(asset: TrackedAsset, done: int, of: int, text: str) -> None:
                del of
                advance(len(keys) * (asset.wave - 1) + done, f"{asset.name}, {text}")

            waves = launch_waves(
                site,
                LocalExecutor(definitions.resolve_job_def),
                policies={asset: choose_policy(asset, policies) for asset in WAVES},
                keys=dict.fromkeys(WAVES, keys),
                selection=Selection(),
                advance=follow,
            )
        return {wave.asset.name: len(wave.choice.chosen) for wave in waves}

    def _cover(
        self, instance: dg.DagsterInstance, definitions: dg.Definitions, last: date | None
    ) -> int:
        from scene_pipeline.backfill.tags import RANGE_END_TAG, RANGE_START_TAG
        from scene_pipeline.defs.schedules import day_ranges, stale_days

        if last is None:
            return 0
        with self._doing("daily_coverage: numbers and a map a day"):
            days = stale_days(instance, self._pipeline, (self._pipeline.definition.start, last))
            job = definitions.resolve_job_def("coverage_job")
            with self._console.progress("daily_coverage", total=len(days)) as advance:
                for done, first, final in day_ranges(days):
                    job.execute_in_process(
                        instance=instance,
                        tags={RANGE_START_TAG: first.isoformat(), RANGE_END_TAG: final.isoformat()},
                        run_config=_QUIET,
                        raise_on_error=False,
                    )
                    advance(done, f"days, up to {final}")
        return len(days)

    @staticmethod
    def _count_states(site: Site, last: date | None) -> Counter[str]:
        from scene_pipeline.backfill.assets import FOOTPRINTS
        from scene_pipeline.backfill.key_states import read_key_states

        if last is None:
            return Counter()
        states = read_key_states(
            site,
            FOOTPRINTS,
            keys=site.definition.iter_window(site.definition.start, last),
            now=datetime.now(UTC),
        )
        return Counter(state.state for state in states.values())

    def _document(
        self, report: Any, planned: dict[str, int], states: Counter[str], last: date | None
    ) -> dict[str, Any]:
        from scene_pipeline.defs.ingest import document_round
        from scene_pipeline.ingest.quarantine import count_quarantine
        from scene_pipeline.lake.layout import coverage_path

        pipeline, region = self._pipeline, self._pipeline.region
        counted = self._count_rows(last)
        busiest = max(counted, key=lambda day: counted[day], default=None)
        store = pipeline.store
        return {
            "region": region,
            "ingest": document_round(report),
            "quarantined": {
                reason: count
                for (_, reason), count in count_quarantine(pipeline.state, region).items()
            },
            "planned": planned,
            "partitions": dict(states),
            "rows": sum(counted.values()),
            "failed": states["failed"] + len(report.errors),
            "lake": store.address(f"{region}/scene_footprints"),
            "table": pipeline.warehouse_address,
            "map": busiest and store.address(coverage_path(region, busiest, suffix="svg")),
        }

    def _count_rows(self, last: date | None) -> Counter[date]:
        """Rows of the table by day."""
        counted: Counter[date] = Counter()
        if last is not None:
            definition = self._pipeline.definition
            keys = list(definition.iter_window(definition.start, last))
            for key, rows in self._pipeline.warehouse.count_rows(keys).items():
                counted[key.day] += rows
        return counted

    def show(self, document: dict[str, Any]) -> None:
        """What there is now, and where."""
        from scene_pipeline.cli.ingest import show_round

        line = self._console.line
        line()
        show_round(self._console, document["ingest"])
        waiting = sum(document["quarantined"].values())
        line(f"in quarantine: {waiting} Items (scene-pipeline quarantine list)")
        line()
        planned = ", ".join(f"{name} {count}" for name, count in document["planned"].items())
        line(f"planned now: {planned}")
        states = ", ".join(f"{count} {state}" for state, count in document["partitions"].items())
        line(f"partitions of {document['region']}: {states}; {document['rows']} rows in the table")
        line()
        line(f"GeoParquet  {shorten_path(document['lake'])}")
        line(f"table       {shorten_path(document['table'])}")
        line(f"map         {shorten_path(str(document['map']))}")
        line()
        line("open them   docs/opening.md: DuckDB, GeoPandas, QGIS, psql")
        line("the UI      make dev (or scene-pipeline dev), then http://127.0.0.1:3000")
        line(f"done in {document['seconds']} s; run it again: it plans nothing")
