"""What ``options`` of a stream may say, by kind of source."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from scene_pipeline.errors import SettingsError
from scene_pipeline.ingest.sources.simulator import MISSIONS
from scene_pipeline.settings import StreamSettings

__all__ = ["ArchiveOptions", "SimulatorOptions", "StacOptions", "parse_options"]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SimulatorOptions(_Options):
    """``days`` are counted from the region's start date."""

    days: int = Field(default=14, ge=1, le=3660)
    missions: tuple[str, ...] = tuple(MISSIONS)

    @field_validator("missions")
    @classmethod
    def _known(cls, missions: tuple[str, ...]) -> tuple[str, ...]:
        if not missions or not set(missions) <= set(MISSIONS):
            raise ValueError(f"missions are {', '.join(MISSIONS)}")
        return missions


class ArchiveOptions(_Options):
    """``complete_through``: the operator's word that every Item before this UTC day is there."""

    complete_through: date | None = None


class StacOptions(_Options):
    """``auto`` asks the API's landing page. ``filter`` is merged into every first request.

    ``allowed_hosts`` may be named by next links and redirects beside the API's own host; they
    get no credentials. ``matched``, ``paging``, ``token_lifetime_s`` and
    ``null_datetime_matches`` declare what `Declaration` says of them, over the preset's.
    """

    method: Literal["auto", "GET", "POST"] = "auto"
    sortby: Literal["auto", "yes", "no"] = "auto"
    filter: dict[str, Any] = Field(default_factory=dict)
    allowed_hosts: tuple[str, ...] = ()
    max_page_mb: float = Field(default=64, gt=0)
    matched: Literal["exact", "estimate", "none"] | None = None
    paging: Literal["keyset", "offset"] | None = None
    token_lifetime_s: float | None = Field(default=None, gt=0)
    null_datetime_matches: bool | None = None

    @property
    def declared(self) -> dict[str, Any]:
        """Fields of `Declaration` that are set here."""
        names = {"matched", "paging", "token_lifetime_s", "null_datetime_matches"}
        return self.model_dump(include=names, exclude_none=True)


AnyOptions = TypeVar("AnyOptions", bound=_Options)


def parse_options(kind: type[AnyOptions], stream: StreamSettings) -> AnyOptions:
    """``stream.options`` as ``kind``; raises `SettingsError` naming each wrong option."""
    try:
        return kind.model_validate(stream.options)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False)
        raise SettingsError(
            "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in faults),
            where=f"options of stream {stream.name}",
            next_step=f"options here are {', '.join(kind.model_fields)}",
        ) from None
