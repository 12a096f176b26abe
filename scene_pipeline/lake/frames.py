"""Between the lake's Arrow tables and geopandas, with the pinned schema kept both ways."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import shapely

from scene_pipeline.errors import DataError
from scene_pipeline.scenes.partition import build_bbox
from scene_pipeline.scenes.polygons import MULTIPOLYGON
from scene_pipeline.scenes.schema import (
    BBOX,
    GEOMETRY,
    SCENE_COLUMNS,
    STORAGE_SRID,
    arrow_schema,
)

if TYPE_CHECKING:
    import geopandas as gpd

__all__ = ["from_geopandas", "to_geopandas"]


@lru_cache(maxsize=1)
def _crs() -> Any:
    """Parsing it anew costs more than reading a small file."""
    import pyproj

    return pyproj.CRS.from_epsg(STORAGE_SRID)


def to_geopandas(table: pa.Table) -> gpd.GeoDataFrame:
    """A GeoDataFrame in EPSG:3857 with the table's columns but ``bbox``, which is a file's index.

    Types follow the schema, also in an empty table: texts are pandas' own text type, instants UTC
    microseconds, ``acq_date`` objects of `datetime.date`, ``repairs`` arrays; null is missing.
    """
    import geopandas as gpd

    plain = table.drop_columns([n for n in ("geometry", "bbox") if n in table.column_names])
    shapes = shapely.from_wkb(table["geometry"].to_numpy(zero_copy_only=False))
    geometry = gpd.array.GeometryArray(shapes, crs=_crs())
    return gpd.GeoDataFrame(plain.to_pandas(), geometry=geometry, copy=False)


def from_geopandas(frame: gpd.GeoDataFrame) -> pa.Table:
    """The table (`SCENE_COLUMNS`) of a frame that has these columns; ``bbox`` is computed.

    Raises `DataError` for a CRS other than EPSG:3857 or none, a missing column, a type that does
    not fit, a geometry that is null, empty or no MultiPolygon, heights.
    """
    import pandas as pd

    if frame.crs != _crs():
        raise DataError(
            f"the frame's CRS is {frame.crs.to_string() if frame.crs else 'unknown'}, "
            f"not EPSG:{STORAGE_SRID}",
            next_step=f"set it, or reproject with to_crs({STORAGE_SRID})",
        )
    shapes = frame.geometry.to_numpy()
    unfit = (shapely.get_type_id(shapes) != MULTIPOLYGON) | shapely.is_empty(shapes)
    unfit |= shapely.has_z(shapes)
    if unfit.any():
        raise DataError(
            f"{unfit.sum()} geometries are null, empty, with heights or no MultiPolygon"
        )
    # Column by column from a plain frame: geopandas rebuilds itself at every selection.
    plain = pd.DataFrame(frame)
    made = {
        GEOMETRY.name: lambda: pa.array(shapely.to_wkb(shapes), GEOMETRY.type),
        BBOX.name: lambda: build_bbox(shapes),
    }
    try:
        columns = [
            made[column.name]()
            if column.name in made
            else pa.array(plain[column.name], column.type, from_pandas=True)
            for column in SCENE_COLUMNS
        ]
    except (KeyError, pa.ArrowException) as error:
        raise DataError(f"the frame does not fit the schema: {error}") from None
    return pa.table(columns, schema=arrow_schema(SCENE_COLUMNS))
