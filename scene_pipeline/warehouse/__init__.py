"""The table of footprints: PostGIS, or a GeoPackage where no server is set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scene_pipeline.errors import SettingsError
from scene_pipeline.warehouse.port import PartitionRows, Replaced, TableVersion, Warehouse

if TYPE_CHECKING:
    from scene_pipeline.settings import Settings

__all__ = ["PartitionRows", "Replaced", "TableVersion", "Warehouse", "open_warehouse"]

GEOPACKAGE_NAME = "scenes.gpkg"


def open_warehouse(settings: Settings) -> Warehouse:
    """The warehouse of ``settings``; touches neither network nor disk before its first call.

    With ``warehouse_url`` empty it is a GeoPackage beside the lake. Raises `SettingsError` where
    there is no such place.
    """
    url, deadline_s = settings.warehouse_engine_url, settings.caps.db_deadline_s
    if url is None:
        if "://" in settings.lake:
            raise SettingsError(
                "a lake in an object store has no folder for a GeoPackage beside it",
                where="warehouse_url",
                next_step="set SCENE_PIPELINE_WAREHOUSE_URL to a PostGIS database, or keep the"
                " lake in a local folder",
            )
        from scene_pipeline.warehouse.geopackage import GeoPackageWarehouse

        path = Path(settings.lake).absolute().parent / GEOPACKAGE_NAME
        return GeoPackageWarehouse(path, region=settings.region, deadline_s=deadline_s)
    # SQLAlchemy, GeoAlchemy2 and psycopg cost a second that the embedded demo need not pay.
    from scene_pipeline.warehouse.postgis import PostGISWarehouse

    return PostGISWarehouse(
        url,
        schema=settings.warehouse_schema,
        region=settings.region,
        deadline_s=deadline_s,
        reader_url=settings.warehouse_reader_engine_url,
    )
