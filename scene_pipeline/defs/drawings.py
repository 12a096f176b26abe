"""The pictures in a partition's metadata: its map, and a repair before and after."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import shapely

from scene_pipeline.pictures.maps import draw_partition_map, draw_repair
from scene_pipeline.pictures.markdown import markdown_image
from scene_pipeline.scenes.footprint import repair_footprints
from scene_pipeline.scenes.keys import PartitionKey

__all__ = ["draw_first_repair", "draw_map"]


def draw_map(key: PartitionKey, rows: Any, bounds: tuple[float, float, float, float]) -> str:
    """The partition's pieces in their tile, as Markdown."""
    repaired = [bool(repairs) for repairs in rows["repairs"].to_pylist()]
    counted = f"{rows.num_rows} scene{'s' if rows.num_rows > 1 else ''}"
    note = f"{counted}, {sum(repaired)} repaired" if any(repaired) else counted
    pieces = rows["geometry"].to_pylist()
    drawing = draw_partition_map(pieces, bounds, title=str(key), note=note, repaired=repaired)
    return markdown_image(drawing, f"Map of {key}: {note}")


def draw_first_repair(raw: Any, rows: Any) -> str | None:
    """The first repaired footprint as published and as stored; None where none was."""
    place = next((n for n, done in enumerate(rows["repairs"].to_pylist()) if done), None)
    if place is None:
        return None
    row = rows.select(["collection", "item_id", "repairs"]).slice(place, 1).to_pylist()[0]
    same = (pc.field("collection") == row["collection"]) & (pc.field("item_id") == row["item_id"])
    published = shapely.from_wkb(raw.filter(same)["geometry"].to_numpy())
    stored = repair_footprints(published).geometry[0]
    note = ", ".join(row["repairs"])
    drawing = draw_repair(published[0], stored, title=row["item_id"], note=note)
    return markdown_image(drawing, f"{row['item_id']} as published and as stored: {note}")
