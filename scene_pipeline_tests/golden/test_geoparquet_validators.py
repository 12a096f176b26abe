"""Lake files under other people's rules: the official schema, validators, conformance files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import geopandas as gpd
import jsonschema
import pyarrow.parquet as pq
import pyproj
import pytest
import referencing
import shapely

from scene_pipeline.errors import LakeFileError
from scene_pipeline.lake.geoparquet import decode_geoparquet
from scene_pipeline.lake.layout import segment_path
from scene_pipeline.lake.segments import write_segment
from scene_pipeline.lake.store import LocalStore
from scene_pipeline.scenes.footprint import repair_footprints
from scene_pipeline.scenes.item import scenes_to_table
from scene_pipeline_tests.services.world_lake import build_world_lake, make_world_page


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    lake, keys = build_world_lake(tmp_path_factory.mktemp("lake"))
    return [Path(lake.store.address(lake.path(key))) for key in keys]


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = LocalStore(tmp_path_factory.mktemp("raw"))
    ref = write_segment(store, "raw", scenes_to_table(make_world_page(300).scenes))
    return Path(store.address(segment_path("raw", ref.digest)))


def geo_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(pq.read_metadata(path).metadata[b"geo"])
    return document


def test_metadata_keep_the_official_schema(
    real_data: Path, files: list[Path], segment: Path
) -> None:
    """Its PROJJSON reference is resolved by the schema that PROJ ships."""
    rules = json.loads(
        (real_data / "golden" / "ogc-geoparquet" / "format-specs" / "schema.json").read_text()
    )
    rules["properties"]["version"] = {"const": "1.1.0"}  # the repository is at 2.0-dev
    projjson = json.loads(
        (Path(pyproj.datadir.get_data_dir()) / "projjson.schema.json").read_text()
    )
    registry = referencing.Registry().with_resource(
        "https://proj.org/schemas/v0.7/projjson.schema.json",
        referencing.Resource.from_contents(projjson),
    )
    validator = jsonschema.Draft7Validator(rules, registry=registry)
    for path in [*files, segment]:
        assert not list(validator.iter_errors(geo_of(path)))
    broken = geo_of(files[0])
    broken["columns"]["geometry"]["crs"] = "EPSG:3857"
    assert list(validator.iter_errors(broken))


def run(*command: str | Path) -> str:
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    return result.stdout + result.stderr


def test_geoparquet_validator_finds_nothing(files: list[Path], segment: Path) -> None:
    program = Path(sys.executable).parent / "geoparquet-validator"
    for path in files:
        printed = run(program, "check", path)
        assert re.search(r"=> core: \d+ pass, 0 fail", printed), printed
        assert "=> covering: 6 pass, 0 fail" in printed
        if pq.read_metadata(path).num_rows:  # an empty file has no statistics to distribute
            assert "FAIL" not in printed, printed
    printed = run(program, "check", segment)
    assert "=> core: 11 pass, 0 fail" in printed, printed


@pytest.mark.full
def test_gpio_check_all_finds_nothing(files: list[Path]) -> None:
    """Its DuckDB is older than ours, so it lives in an environment of its own.

    ``uv tool install geoparquet-io``; it wants DuckDB's spatial extension.
    """
    program = shutil.which("gpio")
    if program is None:
        pytest.skip("gpio (geoparquet-io) is not on the PATH")
    for path in files:
        printed = run(program, "check", "all", path)
        if "spatial_extension" in printed or "INSTALL spatial" in printed:
            pytest.skip("gpio has no spatial extension of DuckDB here")
        assert "checks passed" in printed, printed
        assert "ERROR" not in printed
        assert "WARNING" not in printed


GOLDEN_FILES = 34


def test_valid_foreign_files_are_refused_by_name(real_data: Path) -> None:
    """All 34 conformance files, the standard's own examples and STAC's archives."""
    folders = [real_data / "golden" / "geoparquet-testing", real_data / "golden" / "ogc-geoparquet"]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.parquet"))]
    assert len([path for path in paths if "geoparquet-testing" in path.parts]) >= GOLDEN_FILES
    for path in [*paths, *sorted((real_data / "bulk").glob("*.parquet"))]:
        with pytest.raises(LakeFileError) as caught:
            decode_geoparquet(path.read_bytes(), where=str(path))
        assert caught.value.where == str(path)


def test_geometries_of_the_conformance_files_are_judged(real_data: Path) -> None:
    """Every WKB geometry of theirs: a footprint, or a reason."""
    judged: dict[str, int] = {}
    for path in sorted((real_data / "golden").rglob("*.parquet")):
        geo = json.loads((pq.read_metadata(path).metadata or {}).get(b"geo", b"{}"))
        table = pq.read_table(path)
        for name, column in geo.get("columns", {}).items():
            if column["encoding"] != "WKB":
                continue
            values = [None if v is None else bytes(v) for v in table[name].to_pylist()]
            repaired = repair_footprints(shapely.from_wkb(values))
            for shape, reason in zip(repaired.geometry, repaired.reasons, strict=True):
                assert (shape is None) == (reason is not None)
                judged[reason or "footprint"] = judged.get(reason or "footprint", 0) + 1
    assert judged["footprint"] > 5
    assert judged["not polygonal"] > 20


def test_a_bulk_archive_of_items_has_footprints(real_data: Path) -> None:
    frame = gpd.read_parquet(real_data / "bulk" / "naip_10000_stac.parquet", columns=["geometry"])
    assert set(repair_footprints(frame.geometry.to_numpy()).reasons) == {None}
    assert len(frame) == 10_000
