"""Known providers by name, with what we declare of each and why.

No provider documents when its past is complete. Each lag is our own reading, with a margin, of
published processing times or of `created` minus `datetime` in published Items; a stream's
``finality`` overrides it, and the rescan lane finds late Items and records them against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scene_pipeline.errors import SettingsError
from scene_pipeline.ingest.sources.base import Declaration
from scene_pipeline.ingest.sources.options import ArchiveOptions, StacOptions, parse_options
from scene_pipeline.ingest.sources.simulator import SIMULATED
from scene_pipeline.settings import Settings, StreamSettings

__all__ = ["PRESETS", "Preset", "declaration_of", "find_preset"]


@dataclass(frozen=True, slots=True)
class Preset:
    """The root of a STAC API, our declaration, the reason for it and where that can be read.

    ``lag_hours`` names Collections that differ from the declaration.
    """

    url: str
    declaration: Declaration
    reason: str
    sources: tuple[str, ...]
    lag_hours: Mapping[str, float] = field(default_factory=dict)


PRESETS: Mapping[str, Preset] = {
    "earth-search": Preset(
        url="https://earth-search.aws.element84.com/v1",
        declaration=Declaration(
            finality="lag",
            lag_hours=72,
            matched="exact",
            null_datetime_matches=False,
            max_page_items=100,
            cadence_hours=48,
        ),
        reason=(
            "Published Sentinel-2 Items were created 1 to 11 hours after their datetime: 72 hours. "
            "When its feed stalled for a week in 2023, only the rescan lane would have found the "
            "rest. The server (stac-server) counts every match and continues after the last row; "
            "only its recent versions match interval-only Items. Pages above 6 MB fail with "
            "status 500, which is about 267 Sentinel-2 Items: 100 a page."
        ),
        sources=(
            "https://github.com/stac-utils/stac-server",
            "https://github.com/Element84/earth-search/issues/60",
            "https://github.com/Element84/earth-search/issues/17",
            "https://github.com/cirrus-geo/cirrus-earth-search/issues/41",
        ),
        lag_hours={"landsat-c2-l2": 720},
    ),
    "planetary-computer": Preset(
        url="https://planetarycomputer.microsoft.com/api/stac/v1",
        declaration=Declaration(
            finality="lag", lag_hours=168, max_page_items=1000, cadence_hours=72
        ),
        reason=(
            "Its own ingestion has stalled for one to four weeks more than once, and then caught "
            "up: a week, and the rescan lane for the rest. Of 106 published Landsat Items half "
            "were created within 9 days and nine tenths within 25: 30 days there. The server "
            "(pgstac) gives no count, and its tokens name the last row."
        ),
        sources=(
            "https://github.com/microsoft/PlanetaryComputer/issues/413",
            "https://github.com/microsoft/PlanetaryComputer/issues/433",
            "https://planetarycomputer.microsoft.com/docs/reference/stac/",
        ),
        lag_hours={"landsat-c2-l2": 720},
    ),
    "copernicus-dataspace": Preset(
        url="https://stac.dataspace.copernicus.eu/v1",
        declaration=Declaration(
            finality="lag",
            lag_hours=72,
            requests_per_s=4,
            max_page_items=200,
            cadence_hours=48,
        ),
        reason=(
            "Operational products are out within hours; three days leave room for a ground "
            "segment that catches up. Users report 429 above 5 requests a second, and a page of "
            "at most 200 Items for sentinel-2-l2a (1000 elsewhere). No count is given."
        ),
        sources=(
            "https://github.com/e-sensing/sits/issues/1560",
            "https://forum.dataspace.copernicus.eu/t/waf-rate-limit-exceeded-status-429/4857",
            "https://forum.dataspace.copernicus.eu/t/problem-with-items-per-page-in-stac-api-search-request/4875",
        ),
    ),
    "usgs-landsat": Preset(
        url="https://landsatlook.usgs.gov/stac-server",
        declaration=Declaration(
            finality="lag",
            lag_hours=336,
            matched="exact",
            null_datetime_matches=False,
            max_page_items=100,
            cadence_hours=48,
        ),
        reason=(
            "USGS: Landsat 8 takes up to 10 days to Tier 1 or 2 and a day more to Level-2, "
            "Landsat 9 three days: 14 days. Real-Time Items disappear when their tier is known, "
            "which the rescan lane turns into tombstones. Same server as Earth Search."
        ),
        sources=(
            "https://www.usgs.gov/media/images/landsat-collection-2-generation-timeline",
            "https://www.usgs.gov/landsat-missions/spatiotemporal-asset-catalog-stac",
            "https://github.com/stac-utils/stac-server/issues/116",
        ),
    ),
}


def declaration_of(stream: StreamSettings, settings: Settings | None = None) -> Declaration:
    """What we declare of a stream's source: its own settings, over the preset's, under the caps.

    A source without a preset is declared to prove nothing.
    """
    declared = _declare_source(stream)
    if stream.finality is not None:
        declared = replace(declared, finality=stream.finality.rule, lag_hours=stream.finality.hours)
    if stream.cadence_hours is not None:
        declared = replace(declared, cadence_hours=stream.cadence_hours)
    rate = stream.requests_per_s or declared.requests_per_s
    if settings is not None:
        rate = min(rate, settings.caps.stac_requests_per_s)
    return replace(declared, requests_per_s=rate)


def _declare_source(stream: StreamSettings) -> Declaration:
    if stream.source == "simulator":
        return SIMULATED
    if stream.path:
        told = parse_options(ArchiveOptions, stream).complete_through is not None
        return Declaration(finality="explicit" if told else "none")
    own = parse_options(StacOptions, stream).declared
    if not stream.source:
        return Declaration(**own)
    preset = find_preset(stream.source)
    lag_hours = preset.lag_hours.get(stream.collection, preset.declaration.lag_hours)
    return replace(preset.declaration, lag_hours=lag_hours, **own)


def find_preset(name: str) -> Preset:
    """The preset, or `SettingsError` naming those that exist."""
    try:
        return PRESETS[name]
    except KeyError:
        raise SettingsError(
            f"there is no source named {name!r}",
            where="streams.source",
            next_step=f"use one of simulator, {', '.join(PRESETS)}, or give url or path",
        ) from None
