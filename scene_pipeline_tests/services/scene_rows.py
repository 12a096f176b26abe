"""Partitions of made-up scenes, for tests and benchmarks of lake and warehouse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import shapely

from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.scenes.schema import BBOX, SCENE_COLUMNS, arrow_schema
from scene_pipeline.warehouse.port import PartitionRows

REGION = "alps"
DAY = date(2024, 6, 1)
_SIDE_M = 313_086.07  # a Web Mercator tile of zoom 7


def key_of(day: int = 1, tile: str = "7-66-45") -> PartitionKey:
    """The ``day``-th day from 2024-06-01 on."""
    return PartitionKey(DAY + timedelta(days=day - 1), tile)


def make_partition(
    key: PartitionKey,
    items: Sequence[str] | int,
    *,
    raw_seq: int = 1,
    region: str = REGION,
    columns: Mapping[str, Sequence[Any]] | None = None,
    seed: int = 0,
) -> PartitionRows:
    """``items`` (ids, or how many) as 11-vertex footprints; ``columns`` replaces whole columns."""
    ids = (
        [f"S2A_{key.day:%Y%m%d}_{key.tile}_{n:06d}" for n in range(items)]
        if isinstance(items, int)
        else items
    )
    count = len(ids)
    pieces = _make_pieces(count, seed)
    sides = [pa.array(side, pa.float64()) for side in shapely.bounds(pieces).reshape(-1, 4).T]
    noon = datetime(key.day.year, key.day.month, key.day.day, 12, 0, 0, 123456, tzinfo=UTC)
    filled: dict[str, Any] = {
        "region": [region] * count,
        "tile": [key.tile] * count,
        "acq_date": [key.day] * count,
        "collection": ["sentinel-2-l2a"] * count,
        "item_id": list(ids),
        "acquired_at": [noon + timedelta(microseconds=n) for n in range(count)],
        "created_at": [noon + timedelta(days=1)] * count,
        "platform": ["sentinel-2a"] * count,
        "constellation": ["sentinel-2"] * count,
        "grid_code": [f"MGRS-32T{n % 90:02d}" for n in range(count)],
        "gsd_m": [10.0] * count,
        "cloud_cover_pct": [n % 1000 / 10 for n in range(count)],
        "processing_baseline": ["05.10"] * count,
        "item_href": [f"https://stac.example/items/{item}" for item in ids],
        "properties": [_make_properties(item) for item in ids],
        "repairs": [["dropped Z"] if n % 7 == 0 else [] for n in range(count)],
        "area_share": [1.0] * count,
        "raw_seq": [raw_seq] * count,
        "geometry": list(shapely.to_wkb(pieces)),
        "bbox": pa.StructArray.from_arrays(sides, fields=list(BBOX.type)),
        **(columns or {}),
    }
    arrays = [
        filled[column.name]
        if isinstance(filled.get(column.name), pa.Array)
        else pa.array(filled.get(column.name, [None] * count), column.type)
        for column in SCENE_COLUMNS
    ]
    return PartitionRows(key, pa.table(arrays, schema=arrow_schema(SCENE_COLUMNS)), raw_seq)


def _make_pieces(count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, _SIDE_M, (count, 1, 2))
    angles = np.linspace(0, 2 * np.pi, 11)[:-1]
    rings = centres + 55_000 * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    pieces = np.empty(count, dtype=object)
    pieces[:] = [shapely.MultiPolygon([shapely.Polygon(ring)]) for ring in rings]
    return pieces


def _make_properties(item: str) -> str:
    href = f"https://data.example/{item}"
    return (
        f'{{"assets":{{"B04":"{href}/B04.tif","visual":"{href}/TCI.tif"}},"s2:mean":0.25,'
        '"sat:orbit_state":"descending","sat:relative_orbit":65,"view:sun_azimuth":151.625}'
    )


def make_wide_properties(item: str) -> str:
    """As many bytes, keys and hrefs as the median Sentinel-2 Item of Earth Search has: 5 kB."""
    base = f"https://sentinel-data.s3.us-west-2.example/sentinel-2-c1-l2a/13/T/DE/2024/4/{item}"
    bands = [f"B{n:02d}" for n in range(1, 13)]
    layers = ["AOT", "CLD_20m", "L2A_PVI", "SCL", "SNW_20m", "TCI", "WVP", "metadata", "tileInfo",
              "product_metadata", "thumbnail"]  # fmt: skip
    shares = ["cloud_shadow", "dark_features", "degraded_msi_data", "high_proba_clouds",
              "medium_proba_clouds", "nodata_pixel", "not_vegetated", "snow_ice", "thin_cirrus",
              "unclassified", "vegetation", "water"]  # fmt: skip
    properties = {
        "assets": {name.lower(): f"{base}/S2A_T13TDE_20240405T175934_L2A/{name}.tif"
                   for name in bands + layers},
        "earthsearch:payload_id": f"roda-sentinel-2-c1-l2a/workflow/{item}",
        "instruments": ["msi"],
        "processing:software": {"sentinel-2-c1-l2a-to-stac": "v2024.02.01"},
        "proj:centroid": {"lat": 40.15442, "lon": -105.53002},
        "proj:epsg": 32613,
        **{f"s2:{name}_percentage": 29.967618 for name in shares},
        **{f"s2:{name}": f"S2A_OPER_MSI_L2A_DS_2APS_20240406T010253_{item}_N05.10"
           for name in ("datastrip_id", "datatake_id", "product_uri", "tile_id")},
        "storage:requester_pays": False,
        "view:azimuth": 232.86576267913935,
        "view:sun_azimuth": 153.575015779937,
    }  # fmt: skip
    return json.dumps(properties, sort_keys=True, separators=(",", ":"))
