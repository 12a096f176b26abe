"""The body of ``daily_coverage``: numbers and a map of one day, without Dagster."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from scene_pipeline.errors import LakeFileError
from scene_pipeline.scenes.keys import PartitionKey

if TYPE_CHECKING:
    import pyarrow as pa

    from scene_pipeline.defs.pipeline import Pipeline

__all__ = ["CoveredDay", "build_coverage_of_day"]


@dataclass(frozen=True, slots=True)
class CoveredDay:
    """One day's coverage by tile, and where its Parquet file is; the map lies beside it.

    ``missing`` are tiles whose footprints were never built: their numbers are unknown, not zero,
    and they are not in ``table``. ``picture`` is Markdown, or why it could not be drawn.
    """

    day: date
    table: pa.Table
    missing: tuple[str, ...]
    path: str
    picture: str

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the UI shows; plain numbers plot over the days."""
        shares = self.table["covered_share"].to_pylist()
        return {
            "scenes": sum(self.table["scenes"].to_pylist()),
            "tiles": self.table.num_rows,
            "tiles_missing": list(self.missing) or None,
            "covered_share": sum(shares) / len(shares) if shares else None,
            "path": self.path,
            "map": self.picture,
        }


def build_coverage_of_day(pipeline: Pipeline, day: date) -> CoveredDay:
    """Measure, draw and store the coverage of ``day`` from the files of its tiles.

    Raises `LakeFileError` where a file is damaged or none was built.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from scene_pipeline.lake.layout import coverage_path
    from scene_pipeline.pictures.maps import draw_day_map
    from scene_pipeline.pictures.markdown import markdown_image, try_drawing
    from scene_pipeline.scenes.coverage import cover_day

    grid, lake = pipeline.grid, pipeline.lake
    footprints = lake.read_day(day, grid.keys)
    rows = {
        tile: footprints.filter(pc.field("tile") == tile)
        for tile in pc.unique(footprints["tile"]).to_pylist()
    }
    missing = tuple(
        tile
        for tile in grid.keys
        if tile not in rows and lake.read_version(PartitionKey(day, tile)) is None
    )
    if len(missing) == len(grid.keys):
        raise LakeFileError(
            f"no tile of {day} has footprints yet",
            where=f"region {pipeline.region}",
            next_step="materialize scene_footprints of that day first",
        )
    done = [tile for tile in grid.keys if tile not in missing]
    table = cover_day(rows, grid, tiles=done)
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    path = coverage_path(pipeline.region, day)
    pipeline.store.write(path, file.getvalue())
    drawing, picture = try_drawing(
        lambda: draw_day_map(
            table,
            {tile: grid.bounds(tile) for tile in grid.keys},
            title=f"{pipeline.region}, {day}",
            pieces={tile: part["geometry"].to_pylist() for tile, part in rows.items()},
        )
    )
    if drawing is not None:
        pipeline.store.write(coverage_path(pipeline.region, day, suffix="svg"), drawing.encode())
        alt = f"Map of {day}: {footprints.num_rows} footprints over {len(done)} tiles"
        picture = markdown_image(drawing, alt)
    return CoveredDay(day, table, missing, pipeline.store.address(path), picture)
