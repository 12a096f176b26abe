"""Known providers by name, with what we declare of each and why.

No provider documents when its past is complete. Each lag below is our own reading of published
processing times with a margin; a stream's ``finality`` overrides it, and late Items are found by
the rescan lane and recorded against the declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scene_pipeline.errors import SettingsError
from scene_pipeline.ingest.sources.base import Declaration
from scene_pipeline.ingest.sources.simulator import SIMULATED
from scene_pipeline.settings import Settings, StreamSettings

__all__ = ["PRESETS", "Preset", "declaration_of", "find_preset"]


@dataclass(frozen=True, slots=True)
class Preset:
    """The root of a STAC API, our declaration, and the reason for it."""

    url: str
    declaration: Declaration
    reason: str


PRESETS: Mapping[str, Preset] = {
    "earth-search": Preset(
        "https://earth-search.aws.element84.com/v1",
        Declaration(finality="lag", lag_hours=72, matched="estimate"),
        "",
    ),
    "planetary-computer": Preset(
        "https://planetarycomputer.microsoft.com/api/stac/v1",
        Declaration(finality="lag", lag_hours=120),
        "",
    ),
    "copernicus-dataspace": Preset(
        "https://stac.dataspace.copernicus.eu/v1", Declaration(finality="lag", lag_hours=72), ""
    ),
    "usgs-landsat": Preset(
        "https://landsatlook.usgs.gov/stac-server",
        Declaration(finality="lag", lag_hours=384, matched="estimate"),
        "",
    ),
}


def declaration_of(stream: StreamSettings, settings: Settings | None = None) -> Declaration:
    """The preset's declaration with the stream's own settings over it, under the caps."""
    if stream.source == "simulator":
        declared = SIMULATED
    elif stream.source:
        declared = find_preset(stream.source).declaration
    elif stream.options.get("complete_through"):
        declared = Declaration(finality="explicit")
    else:
        declared = Declaration()
    if stream.finality is not None:
        declared = replace(declared, finality=stream.finality.rule, lag_hours=stream.finality.hours)
    if stream.cadence_hours is not None:
        declared = replace(declared, cadence_hours=stream.cadence_hours)
    rate = stream.requests_per_s or declared.requests_per_s
    if settings is not None:
        rate = min(rate, settings.caps.stac_requests_per_s)
    return replace(declared, requests_per_s=rate)


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
