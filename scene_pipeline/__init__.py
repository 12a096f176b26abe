"""Satellite scene archives with Dagster: from STAC streams to GeoParquet and PostGIS."""

__version__ = "0.1.0"
