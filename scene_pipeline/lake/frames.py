"""Between the lake's Arrow tables and geopandas, with the pinned schema kept both ways."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import shapely

from scene_pipeline.errors import DataError
from scene_pipeline.scenes.schema import (
    SCENE_COLUMNS,
    STORAGE_SRID,
    Column,
    arrow_schema,
)

if TYPE_CHECKING:
    import geopandas as gpd

__all__ = ["from_geopandas", "to_geopandas"]


@lru_cache(maxsize=4)
def _crs(srid: int) -> Any:
    import pyproj

    return pyproj.CRS.from_epsg(srid)


def to_geopandas(table: pa.Table) -> gpd.GeoDataFrame:
    """A GeoDataFrame in EPSG:3857 with the table's columns; ``bbox`` stays behind.

    Nulls stay missing, instants stay UTC microseconds, ``acq_date`` is a `datetime.date`.
    """
    import geopandas as gpd

    plain = table.drop_columns([n for n in ("geometry", "bbox") if n in table.column_names])
    frame = plain.to_pandas()
    geometry = shapely.from_wkb(table["geometry"].to_numpy(zero_copy_only=False))
    return gpd.GeoDataFrame(frame, geometry=geometry, crs=_crs(STORAGE_SRID))


def from_geopandas(
    frame: gpd.GeoDataFrame, *, columns: tuple[Column, ...] = SCENE_COLUMNS
) -> pa.Table:
    """The table of a frame that has the schema's columns; ``bbox`` is computed.

    Raises `DataError` for no CRS or another than EPSG:3857, a missing column, a type that does
    not fit, a null or non-MultiPolygon geometry.
    """
    if frame.crs is None or frame.crs != _crs(STORAGE_SRID):
        raise DataError(
            f"the frame's CRS is {frame.crs and frame.crs.to_string()}, not EPSG:{STORAGE_SRID}",
            next_step=f"set it, or reproject with to_crs({STORAGE_SRID})",
        )
    geometry = frame.geometry.to_numpy()
    if not (shapely.get_type_id(geometry) == 6).all():
        raise DataError("a geometry is null or not a MultiPolygon")
    bounds = shapely.bounds(geometry)
    schema = arrow_schema(columns)
    arrays = []
    try:
        for field in schema:
            if field.name == "geometry":
                arrays.append(pa.array(shapely.to_wkb(geometry), field.type))
            elif field.name == "bbox":
                arrays.append(
                    pa.StructArray.from_arrays(
                        [pa.array(b) for b in bounds.T], fields=list(field.type)
                    )
                )
            else:
                arrays.append(pa.Array.from_pandas(frame[field.name], type=field.type))
        return pa.Table.from_arrays(arrays, schema=schema)
    except (KeyError, pa.ArrowException) as error:
        raise DataError(f"the frame does not fit the schema: {error}") from None
