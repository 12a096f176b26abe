"""Build scene_pipeline/pictures/land.parquet, the land that maps are drawn over.

Natural Earth 4.1, 1:10m land (public domain), as TopoJSON from the npm package world-atlas 2.0.2
(`npm pack world-atlas@2.0.2`, ISC), split at the antimeridian, simplified to 0.006° and rounded to
0.005° (550 m): under a pixel on a tile of zoom 7.

Run: ``python infra/build_land.py package/land-10m.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely

TOLERANCE_DEG = 0.006
UNITS_PER_DEG = 200
WEB_MERCATOR_LATITUDES = (-180, -85.0511, 180, 85.0511)
TARGET = Path(__file__).parents[1] / "scene_pipeline" / "pictures" / "land.parquet"


def read_polygons(path: Path) -> list[shapely.Geometry]:
    """The polygons of a TopoJSON file's object ``land`` (quantized arcs, shared or not)."""
    topology = json.loads(path.read_text())
    scale, shift = (np.array(topology["transform"][name]) for name in ("scale", "translate"))
    arcs = [np.cumsum(arc, axis=0) * scale + shift for arc in topology["arcs"]]

    def read_ring(indexes: list[int]) -> np.ndarray:
        lines = [arcs[i] if i >= 0 else arcs[~i][::-1] for i in indexes]
        return np.concatenate([lines[0], *(line[1:] for line in lines[1:])])

    return [
        split_polygon(read_ring(polygon[0]), [read_ring(hole) for hole in polygon[1:]])
        for geometry in topology["objects"]["land"]["geometries"]
        for polygon in (
            geometry["arcs"] if geometry["type"] == "MultiPolygon" else [geometry["arcs"]]
        )
    ]


def split_polygon(shell: np.ndarray, holes: list[np.ndarray]) -> shapely.Geometry:
    """One polygon, cut where its ring jumps over ±180 (Fiji, Chukotka) or runs around a pole."""
    unrolled = np.column_stack((np.unwrap(shell[:, 0], period=360), shell[:, 1]))
    if abs(unrolled[-1, 0] - unrolled[0, 0]) > 180:  # Antarctica: close it below the map
        unrolled = np.vstack((unrolled, [unrolled[-1, 0], -90], [unrolled[0, 0], -90]))
    polygon = shapely.make_valid(shapely.Polygon(unrolled, holes))
    turns = [
        shapely.transform(polygon, lambda xy, dx=dx: np.add(xy, (dx, 0))) for dx in (-360, 0, 360)
    ]
    return shapely.union_all(shapely.intersection(turns, shapely.box(*WEB_MERCATOR_LATITUDES)))


def reduce_detail(polygons: list[shapely.Geometry]) -> np.ndarray:
    """Valid polygons on the grid of 1/200 degree, largest detail dropped."""
    land = shapely.simplify(polygons, TOLERANCE_DEG)
    land = shapely.set_precision(land, 1 / UNITS_PER_DEG)
    parts = shapely.get_parts(shapely.get_parts(land))
    return parts[shapely.area(parts) > 0]


def main() -> None:
    """Write the file and say what is in it."""
    land = reduce_detail(read_polygons(Path(sys.argv[1])))
    _, points, (rings, polygons) = shapely.to_ragged_array(list(land))
    units = np.round(points * UNITS_PER_DEG).astype(np.int32)

    def nest(column: np.ndarray) -> pa.ListArray:
        inner = pa.ListArray.from_arrays(rings.astype(np.int32), pa.array(column))
        return pa.ListArray.from_arrays(polygons.astype(np.int32), inner)

    leaf = "list.element.list.element"
    pq.write_table(
        pa.table({"lon": nest(units[:, 0]), "lat": nest(units[:, 1])}).replace_schema_metadata(
            {"source": "Natural Earth 4.1, 1:10m land, public domain", "unit": "1/200 degree"}
        ),
        TARGET,
        use_dictionary=False,
        column_encoding={f"{name}.{leaf}": "DELTA_BINARY_PACKED" for name in ("lon", "lat")},
        compression="zstd",
        compression_level=19,
    )
    print(
        f"{TARGET.name}: {len(land)} polygons, {len(units)} points, {TARGET.stat().st_size} bytes"
    )


if __name__ == "__main__":
    main()
