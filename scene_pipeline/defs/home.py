"""The Dagster instance: its folder, made once from the template, and the limits of its pools."""

from __future__ import annotations

import os
import re
from pathlib import Path

import dagster as dg

from scene_pipeline.defs.logs import PYTHON_LOGS
from scene_pipeline.errors import SettingsError
from scene_pipeline.settings import Settings

__all__ = ["POOLS", "find_home", "make_home", "open_instance", "pool_limits", "set_pool_limits"]

# Pool → what it guards and the setting that limits it.
POOLS = {
    "postgis": ("connections that write to the warehouse", "caps.postgis_writers"),
    "stac_api": ("rounds of ingest that page through a provider", "caps.ingest_runs"),
}
_CONFIG = "dagster.yaml"


def find_home(settings: Settings) -> Path:
    """The instance's folder, absolute; it may not exist yet."""
    return Path(settings.dagster_home).absolute()


def make_home(settings: Settings) -> Path:
    """Create the folder and its ``dagster.yaml`` where they are missing; an existing file stays."""
    home = find_home(settings)
    config = home / _CONFIG
    if not config.exists():
        home.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: two commands may start at once on a fresh folder.
        draft = home / f"{_CONFIG}.{os.getpid()}"
        draft.write_text(render_config(settings))
        draft.replace(config)
    return home


def render_config(settings: Settings) -> str:
    """The template with the numbers that the settings decide."""
    numbers = {
        "caps.backfill_runs": settings.caps.backfill_runs,
        "caps.backfill_runs + 2": settings.caps.backfill_runs + 2,
    }

    def put(match: re.Match[str]) -> str:
        return f"{match[1]}{numbers[match[3]]}{match[2]}{match[3]}"

    logs = PYTHON_LOGS if settings.log_format == "json" else ""
    return re.sub(r"(: )\d+(  # )(caps\..+)", put, find_template().read_text()) + logs


def find_template() -> Path:
    """``infra/dagster.yaml``: in the wheel beside the code, in a checkout at its root."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "infra", package.parent / "infra"):
        if (folder / _CONFIG).is_file():
            return folder / _CONFIG
    raise SettingsError(
        "the template of dagster.yaml is missing",
        where=str(package),
        next_step="reinstall the package, or put a dagster.yaml into the Dagster home",
    )


def open_instance(settings: Settings) -> dg.DagsterInstance:
    """The instance, its storage made before anything else starts.

    Web server and daemon that start at once on a fresh folder race for the schema.
    """
    home = make_home(settings)
    instance = dg.DagsterInstance.from_config(str(home))
    limits = {limit.name for limit in instance.event_log_storage.get_pool_limits()}
    if not set(POOLS) <= limits:
        set_pool_limits(instance, settings)
    return instance


def pool_limits(settings: Settings) -> dict[str, int]:
    """The limit of each of `POOLS`."""
    return {"postgis": settings.caps.postgis_writers, "stac_api": settings.caps.ingest_runs}


def set_pool_limits(instance: dg.DagsterInstance, settings: Settings) -> dict[str, int]:
    """Give each pool its own limit, which ``dagster.yaml`` cannot; returns them."""
    limits = pool_limits(settings)
    for pool, limit in limits.items():
        instance.event_log_storage.set_concurrency_slots(pool, limit)
    return limits
