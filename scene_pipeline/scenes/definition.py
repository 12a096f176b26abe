"""From settings to the partition definition and its grid."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Protocol

from scene_pipeline.scenes.grid import Area, WebMercatorGrid, read_area
from scene_pipeline.scenes.keys import SceneDefinition

__all__ = ["DefinitionValues", "define_scenes"]


class DefinitionValues(Protocol):
    """The five values that decide which keys exist; `Settings` has them."""

    @property
    def region(self) -> str: ...
    @property
    def start_date(self) -> date: ...
    @property
    def end_date(self) -> date | None: ...
    @property
    def area(self) -> Area | Path: ...
    @property
    def zoom(self) -> int: ...


def define_scenes(
    values: DefinitionValues, removed_tiles: frozenset[str] = frozenset()
) -> tuple[SceneDefinition, WebMercatorGrid]:
    """The definition and the grid that ``values`` describe.

    ``removed_tiles`` held data under an earlier grid. Raises `SettingsError` for an unreadable
    area.
    """
    grid = WebMercatorGrid(values.zoom, read_area(values.area))
    definition = SceneDefinition(
        region=values.region,
        start=values.start_date,
        end=values.end_date,
        grid=grid.name,
        tiles=grid.keys,
        removed_tiles=removed_tiles - set(grid.keys),
    )
    return definition, grid
