"""One typed, validated settings object; the only reader of the environment.

Sources, strongest first: ``SCENE_PIPELINE_…`` variables (``__`` steps into a section:
``SCENE_PIPELINE_CAPS__POSTGIS_WRITERS=2``), then ``scene_pipeline.toml`` (or the file that
``SCENE_PIPELINE_CONFIG`` names), then the defaults, which are the demo.
"""

from __future__ import annotations

import os
import re
from datetime import date
from functools import lru_cache
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as UnreadableSettings

from scene_pipeline.errors import SettingsError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

__all__ = [
    "Caps",
    "FinalitySettings",
    "PolicySettings",
    "RetentionSettings",
    "RetrySettings",
    "S3Settings",
    "SensorSettings",
    "Settings",
    "StreamSettings",
    "load_settings",
]

CONFIG_VARIABLE = "SCENE_PIPELINE_CONFIG"
DEFAULT_CONFIG = "scene_pipeline.toml"
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ENV_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

PolicyName = Literal["per_partition", "batched", "single_run"]


def _check_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("use letters, digits, - and _ alone: it becomes part of keys and paths")
    return text


Name = Annotated[str, AfterValidator(_check_name)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FinalitySettings(_Section):
    """When a source's past is complete: our declaration, not the provider's.

    ``lag``: every Item with a coordinate before (request time - ``hours``) is published.
    ``explicit``: the source says so itself. ``none``: never; the stream has no frontier.
    """

    rule: Literal["none", "lag", "explicit"] = Field(default="none", description="see above")
    hours: float | None = Field(default=None, ge=0, description='of rule = "lag"')

    @model_validator(mode="after")
    def _lag_has_hours(self) -> FinalitySettings:
        if (self.rule == "lag") != (self.hours is not None):
            raise ValueError('hours belongs to rule = "lag", and lag needs it')
        return self


class StreamSettings(_Section):
    """One independently paginated enumeration of a source over the region's area."""

    source: str = Field(
        default="", description="preset name, `simulator`, or empty with `url` or `path`"
    )
    url: str = Field(default="", description="root of a STAC API")
    path: str = Field(default="", description="archive: ndjson, ndjson.gz, parquet or a folder")
    collection: str = Field(default="", description="id of the STAC Collection")
    name: str = Field(default="", description="empty: source and collection, joined by -")
    finality: FinalitySettings | None = Field(default=None, description="overrides the preset's")
    requests_per_s: float | None = Field(
        default=None, gt=0, description="overrides the preset's, under caps.stac_requests_per_s"
    )
    page_limit: int = Field(
        default=250, ge=1, le=10_000, description="Items asked for at once, under the preset's most"
    )
    cadence_hours: float | None = Field(
        default=None, gt=0, description="an empty stream past this age is shown as stalled"
    )
    max_footprint_km2: float = Field(
        default=255e6,
        gt=0,
        description="an Item that covers more is unusable; the default is half of the Earth",
    )
    on_unusable: Literal["quarantine", "hold"] = Field(
        default="quarantine", description="hold: the stream waits until each Item is released"
    )
    rescan_days: int = Field(default=30, ge=0, description="trailing window of `ingest rescan`")
    window_days: int = Field(
        default=31, ge=1, description="history is enumerated, and certified, in windows this long"
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="of every request; ${NAME} is read from the environment"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="by kind of source")

    @field_validator("headers", mode="before")
    @classmethod
    def _resolve_references(cls, headers: dict[str, str]) -> dict[str, str]:
        """``${NAME}`` in a header value is taken from the environment, so no file holds a key."""

        def value_of(match: re.Match[str]) -> str:
            try:
                return os.environ[match[1]]
            except KeyError:
                raise ValueError(f"environment variable {match[1]} is not set") from None

        return {
            name: _ENV_REFERENCE.sub(value_of, value) if isinstance(value, str) else value
            for name, value in headers.items()
        }

    @model_validator(mode="before")
    @classmethod
    def _fill_name(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if not fields.get("name"):
            origin = fields.get("source") or ("archive" if fields.get("path") else "stac")
            joined = "-".join(part for part in (origin, fields.get("collection")) if part)
            fields = {**fields, "name": re.sub(r"[^A-Za-z0-9_-]+", "-", joined)}
        return fields

    @model_validator(mode="after")
    def _one_origin(self) -> StreamSettings:
        _check_name(self.name)
        if bool(self.url) + bool(self.path) + bool(self.source) != 1:
            raise ValueError("give exactly one of source (a preset), url or path")
        return self


class PolicySettings(_Section):
    """How many partition keys one run takes."""

    default: PolicyName = Field(default="batched", description="where none is asked for")
    batched: int = Field(default=20, ge=1, le=1000, description="keys a run of batched")
    single_run_max_keys: int = Field(
        default=1000, ge=1, le=10_000, description="keys that one run takes at the most"
    )
    resources: dict[PolicyName, dict[Literal["cpu", "memory"], str]] = Field(
        default_factory=dict, description="of a run on Kubernetes, by policy, such as memory 4Gi"
    )


class RetrySettings(_Section):
    """Retries around one partition key, of errors that a retry can help: doubling delay, jitter."""

    max_retries: int = Field(default=3, ge=0, description="of one key in one run")
    delay_s: float = Field(default=10, ge=0, description="before the first")


class Caps(_Section):
    """Ceilings that hold across runs and processes."""

    postgis_writers: int = Field(
        default=4, ge=1, description="the pool postgis, and the writer role's connections"
    )
    stac_requests_per_s: float = Field(default=5, gt=0, description="of one host, all processes")
    ingest_runs: int = Field(default=2, ge=1, description="concurrent runs of ingest and rescans")
    backfill_runs: int = Field(default=4, ge=1, description="concurrent runs of backfills")
    db_deadline_s: float = Field(default=90, gt=0, description="bounded wait for the database")
    http_deadline_s: float = Field(default=300, gt=0, description="bounded wait for a provider")
    workers: int = Field(default=2, ge=1, description="threads or processes inside one run")
    parallelism: Literal["serial", "threads", "processes"] = Field(
        default="serial", description="of the keys of a run, and (threads) of an ingest's streams"
    )


class RetentionSettings(_Section):
    """What `scene-pipeline expire` gives up, counted back from the newest covered day."""

    raw_days: int = Field(default=0, ge=0, description="days whose raw scenes stay; 0: all")
    table_months: int = Field(default=0, ge=0, description="months whose rows stay; 0: all")


class SensorSettings(_Section):
    """Bounds of one sensor tick."""

    max_keys_per_tick: int = Field(default=2000, ge=1, description="the rest waits for the next")
    max_relaunches: int = Field(default=3, ge=0, description="of a failed key, then it stays")
    relaunch_pause_minutes: float = Field(default=10, gt=0, description="doubles each time")
    daily_lookback_days: int = Field(
        default=7, ge=1, description="covered days that the daily schedule looks back"
    )


class S3Settings(_Section):
    """Where an ``s3://`` lake is; credentials come from the environment alone."""

    endpoint: str = Field(default="", description="empty: AWS")
    region: str = Field(default="", description="empty: us-east-1")
    access_key: SecretStr = Field(default=SecretStr(""), description="empty: the machine's role")
    secret_key: SecretStr = Field(default=SecretStr(""), description="belongs to access_key")
    timeout_s: float = Field(default=15, gt=0, description="of one connection or read")
    deadline_s: float = Field(default=90, gt=0, description="bounded wait for the object store")


# The demo: two weeks over Fiji, which the antimeridian crosses.
_DEMO_START = date(2024, 6, 1)
_DEMO_END = date(2024, 6, 15)


def _demo_streams() -> tuple[StreamSettings, ...]:
    return (StreamSettings(source="simulator", collection="sim-optical"),)


class Settings(BaseSettings):
    """Everything that differs between a laptop, a server and a cluster."""

    model_config = SettingsConfigDict(
        env_prefix="SCENE_PIPELINE_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    region: Name = Field(
        default="fiji", description="first part of every key, path, lock and table key"
    )
    start_date: date = Field(default=_DEMO_START, description="first UTC day of the archive")
    end_date: date | None = Field(default=None, description="exclusive; empty: no end")
    area: tuple[float, float, float, float] | Path = Field(
        default=(175.5, -21.0, -178.0, -17.0),
        description="west, south, east, north in degrees, or a GeoJSON file; may cross 180",
    )
    zoom: int = Field(
        default=7, ge=0, le=14, description="Web Mercator tiles of it are the tile partitions"
    )
    timezone: Literal["UTC"] = Field(
        default="UTC", description="days are UTC days: local ones have 23 or 25 hours"
    )
    state_url: SecretStr = Field(
        default=SecretStr("sqlite:///.scene_pipeline/state.db"), description="SQLite or PostgreSQL"
    )
    lake: str = Field(default=".scene_pipeline/lake", description="folder, or s3://bucket/prefix")
    warehouse_url: SecretStr = Field(
        SecretStr(""), description="PostGIS; empty: a GeoPackage beside the lake"
    )
    warehouse_reader_url: SecretStr = Field(
        SecretStr(""), description="PostGIS as its reader role; empty: warehouse_url"
    )
    warehouse_schema: str = Field(default="scenes", description="of the tables in PostGIS")
    dagster_home: str = Field(
        default_factory=lambda: os.environ.get("DAGSTER_HOME") or ".scene_pipeline/dagster_home",
        description="Dagster's own folder; defaults to DAGSTER_HOME where that is set",
    )
    maps: bool = Field(True, description="a map in each partition's metadata, 3 to 12 kB an event")
    owners: tuple[str, ...] = Field(("team:earth-observation",), description="team:… or an email")
    streams: tuple[StreamSettings, ...] = Field(
        default_factory=_demo_streams, description="what the frontier waits for"
    )
    policies: PolicySettings = PolicySettings()
    log_format: Literal["text", "json"] = Field("text", description="json: one object a line")
    alert_webhook: SecretStr = Field(SecretStr(""), description="is told of each failed run")
    retries: RetrySettings = RetrySettings()
    retention: RetentionSettings = RetentionSettings()
    caps: Caps = Caps()
    sensor: SensorSettings = SensorSettings()
    s3: S3Settings = S3Settings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        named = getattr(init_settings, "init_kwargs", {}).pop("config", None)
        toml = TomlConfigSettingsSource(settings_cls, toml_file=named or find_config())
        return init_settings, env_settings, toml

    @field_validator("state_url", "warehouse_url", "warehouse_reader_url")
    @classmethod
    def _is_a_url(cls, secret: SecretStr) -> SecretStr:
        if secret.get_secret_value():
            _engine_url(secret)
        return secret

    @model_validator(mode="before")
    @classmethod
    def _end_the_demo(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The demo is two weeks; a region, start or end of one's own is open unless it says so."""
        if {"region", "start_date", "end_date"}.isdisjoint(fields):
            return {**fields, "end_date": _DEMO_END}
        return fields

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        names = [stream.name for stream in self.streams]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two streams are named {', '.join(twice)}; set name on one of them")
        if self.end_date is not None and self.end_date <= self.start_date:
            raise ValueError("end_date is exclusive and must be after start_date")
        if isinstance(self.area, tuple):
            west, south, east, north = self.area
            if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south < north <= 90):
                raise ValueError("area is (west, south, east, north) in lon/lat degrees")
        return self

    @property
    def state_engine_url(self) -> URL:
        """`state_url` for SQLAlchemy, with psycopg 3 for PostgreSQL."""
        return _engine_url(self.state_url)

    @property
    def warehouse_engine_url(self) -> URL | None:
        """`warehouse_url` for SQLAlchemy, or None where the warehouse is a GeoPackage."""
        return _engine_url(self.warehouse_url) if self.warehouse_url.get_secret_value() else None

    @property
    def warehouse_reader_engine_url(self) -> URL | None:
        """`warehouse_reader_url` for SQLAlchemy, or None where the writer's URL serves reads."""
        return _engine_url(url) if (url := self.warehouse_reader_url).get_secret_value() else None


def _engine_url(secret: SecretStr) -> URL:
    # Pure modules know the policies' settings without knowing SQL.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(secret.get_secret_value())
    except (ArgumentError, ValueError):
        # Not repeated: it may carry a password.
        raise ValueError("not a database URL such as postgresql://user@host/name") from None
    if url.drivername in {"postgresql", "postgres"}:
        return url.set(drivername="postgresql+psycopg")
    return url


def find_config() -> Path | None:
    """The settings file in force, or None for the demo's defaults."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise SettingsError(
                f"there is no settings file {named}",
                where=CONFIG_VARIABLE,
                next_step="name an existing TOML file, or unset the variable for the demo",
            )
        return Path(named)
    return Path(DEFAULT_CONFIG) if Path(DEFAULT_CONFIG).is_file() else None


def read_settings(**overrides: Any) -> Settings:
    """The settings, read afresh (from the file ``config``); a `SettingsError` names each fault."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        # Input values are left out: a wrong URL may carry a password.
        what = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'settings'}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False)
        )
    except UnreadableSettings as error:
        what = f"{error}: a section in a variable is JSON, or one variable a field"
    except TOMLDecodeError as error:
        what = f"not TOML: {error}"
    raise SettingsError(
        what,
        where=f"settings from {overrides.get('config') or find_config() or 'environment'}",
        next_step="correct the field; docs/reference.md lists them all",
    )


@lru_cache(maxsize=1)
def load_settings() -> Settings:
    """The process's settings, read once."""
    return read_settings()
