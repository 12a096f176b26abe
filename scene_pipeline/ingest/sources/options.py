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
    """Of ``source = "simulator"``: synthetic satellites for the demo and for tests."""

    days: int = Field(default=14, ge=1, le=3660, description="counted from start_date")
    missions: tuple[str, ...] = Field(default=tuple(MISSIONS), description="who flies")

    @field_validator("missions")
    @classmethod
    def _known(cls, missions: tuple[str, ...]) -> tuple[str, ...]:
        if not missions or not set(missions) <= set(MISSIONS):
            raise ValueError(f"missions are {', '.join(MISSIONS)}")
        return missions


class ArchiveOptions(_Options):
    """Of a stream with ``path``: files of Items."""

    complete_through: date | None = Field(
        default=None, description="your word that every Item before this UTC day is there"
    )


class StacOptions(_Options):
    """Of a stream with ``url`` or a preset: a STAC API. The last four override the preset's."""

    method: Literal["auto", "GET", "POST"] = Field(
        default="auto", description="auto asks the API's landing page"
    )
    sortby: Literal["auto", "yes", "no"] = Field(
        default="auto", description="ask for Items by datetime and id; auto as above"
    )
    filter: dict[str, Any] = Field(
        default_factory=dict, description="merged into every first request"
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="hosts that next links may name too; they get no credentials"
    )
    max_page_mb: float = Field(default=64, gt=0, description="a larger answer is refused")
    matched: Literal["exact", "estimate", "none"] | None = Field(
        default=None, description="what the count in its answers is worth"
    )
    paging: Literal["keyset", "offset"] | None = Field(
        default=None, description="offset pages shift under writes, and are read twice"
    )
    token_lifetime_s: float | None = Field(
        default=None, gt=0, description="after which a page token is not tried again"
    )
    null_datetime_matches: bool | None = Field(
        default=None, description="whether Items without datetime match a search by datetime"
    )

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
