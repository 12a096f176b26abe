"""Where things are in the lake: paths from region, asset, key and digest. Pure.

Hive style, so that DuckDB and pyarrow read ``date`` and ``tile`` as columns. The grammar of keys
makes key to path injective and keeps every path under its base.
"""

from __future__ import annotations

import re
from datetime import date

from scene_pipeline.errors import InvalidKeyError
from scene_pipeline.scenes.keys import PartitionKey, parse_key

__all__ = ["coverage_path", "parse_partition_path", "partition_path", "segment_path"]

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_PARTITION = re.compile(
    r"(?P<region>[A-Za-z0-9_-]+)/(?P<asset>[A-Za-z0-9_-]+)"
    r"/date=(?P<day>[0-9-]{10})/tile=(?P<tile>[A-Za-z0-9_-]+)\.parquet"
)
_DIGEST = re.compile(r"[0-9a-f]{64}")


def partition_path(region: str, asset: str, key: PartitionKey) -> str:
    """``<region>/<asset>/date=2024-06-01/tile=7-66-45.parquet``."""
    for name in (region, asset, key.tile):
        _require(_NAME, name)
    return f"{region}/{asset}/date={key.day.isoformat()}/tile={key.tile}.parquet"


def parse_partition_path(path: str) -> tuple[str, str, PartitionKey]:
    """Region, asset and key of a path that `partition_path` made; raises `InvalidKeyError`."""
    match = _PARTITION.fullmatch(path)
    if match is None:
        raise InvalidKeyError(f"{path!r} is not the path of a partition")
    return match["region"], match["asset"], parse_key(f"{match['day']}|{match['tile']}")


def coverage_path(region: str, day: date, *, suffix: str = "parquet") -> str:
    """``<region>/daily_coverage/date=2024-06-01.parquet``; the map beside it is an ``svg``."""
    _require(_NAME, region)
    return f"{region}/daily_coverage/date={day.isoformat()}.{suffix}"


def segment_path(region: str, digest: str) -> str:
    """``<region>/raw/<2 hex digits>/<sha256>.parquet``; the fan-out keeps folders small."""
    _require(_NAME, region)
    _require(_DIGEST, digest)
    return f"{region}/raw/{digest[:2]}/{digest}.parquet"


def _require(grammar: re.Pattern[str], name: str) -> None:
    if not grammar.fullmatch(name):
        raise InvalidKeyError(
            f"{name!r} cannot be part of a path", next_step=f"it must match {grammar.pattern}"
        )
