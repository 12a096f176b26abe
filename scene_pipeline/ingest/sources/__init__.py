"""Providers of Items behind one port: a STAC API, an archive of files, a simulator."""

from __future__ import annotations

from datetime import UTC, datetime, time
from pathlib import Path

import sqlalchemy as sa

from scene_pipeline.ingest.sources.base import Declaration, Page, Query, Source
from scene_pipeline.ingest.sources.options import (
    ArchiveOptions,
    SimulatorOptions,
    StacOptions,
    parse_options,
)
from scene_pipeline.ingest.sources.presets import declaration_of, find_preset
from scene_pipeline.ingest.throttle import SharedThrottle
from scene_pipeline.settings import Settings, StreamSettings

__all__ = ["Declaration", "Page", "Query", "Source", "declaration_of", "open_source"]


def open_source(stream: StreamSettings, settings: Settings, engine: sa.Engine) -> Source:
    """The provider of a stream; nothing is fetched yet.

    ``engine`` is the state database, through which one rate a provider is shared. Raises
    `SettingsError` for an unknown preset or option.
    """
    # Loaded by those who fetch: every run worker comes as far as this module.
    declaration = declaration_of(stream, settings)
    if stream.source == "simulator":
        from scene_pipeline.ingest.sources.simulator import Simulator

        simulated = parse_options(SimulatorOptions, stream)
        return Simulator(settings.start_date, simulated.days, simulated.missions, declaration)
    if stream.path:
        from scene_pipeline.ingest.sources.archive import Archive

        through = parse_options(ArchiveOptions, stream).complete_through
        midnight = None if through is None else datetime.combine(through, time(), UTC)
        return Archive(Path(stream.path), declaration, midnight)
    from scene_pipeline.ingest.http import HttpClient
    from scene_pipeline.ingest.http_parse import parse_root
    from scene_pipeline.ingest.sources.stac_api import StacApi

    options = parse_options(StacOptions, stream)
    root = parse_root(stream.url or find_preset(stream.source).url)
    origin = f"{root.scheme}://{root.netloc.decode()}"
    client = HttpClient(
        root,
        SharedThrottle(engine, origin, declaration.requests_per_s),
        deadline_s=settings.caps.http_deadline_s,
        secrets=stream.headers,
        allowed_hosts=options.allowed_hosts,
        max_body_bytes=round(options.max_page_mb * 2**20),
    )
    return StacApi(client, declaration, options)
