"""Fixtures that every folder of tests shares: clean environment, services, real data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from scene_pipeline_tests.services import browser as web
from scene_pipeline_tests.services import postgres as pg

if TYPE_CHECKING:
    from scene_pipeline_tests.services.built_region import BuiltRegion
    from scene_pipeline_tests.services.command import Command
    from scene_pipeline_tests.services.pgstac import PgstacServer
    from scene_pipeline_tests.services.s3 import S3Server

settings.register_profile("fast", max_examples=50, deadline=None)
settings.register_profile(
    "full", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

REAL_DATA = Path(
    os.environ.get("SCENE_PIPELINE_REAL_DATA")
    or Path(__file__).resolve().parents[2] / "shared" / "data"
)


def require_service(present: bool, name: str) -> None:
    """Skip where ``name`` is missing; fail where `make test` has promised it."""
    if present:
        return
    message = f"{name} is not installed; `make test` installs it where it may"
    if os.environ.get("SCENE_PIPELINE_REQUIRE_SERVICES"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real Items, footprints and recordings; its absence skips with a reason."""
    if not (REAL_DATA / "items").is_dir():
        pytest.skip(f"no real data at {REAL_DATA}; set SCENE_PIPELINE_REAL_DATA")
    return REAL_DATA


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the developer's settings, Dagster home or project folder."""
    for name in list(os.environ):
        if name.startswith(("SCENE_PIPELINE_", "DAGSTER_", "AWS_")) and name not in {
            "SCENE_PIPELINE_REAL_DATA",
            "SCENE_PIPELINE_REQUIRE_SERVICES",
        }:
            monkeypatch.delenv(name)
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Runs a command line in a folder that has a settings file, and reads its answer."""
    from scene_pipeline_tests.services.command import make_command

    return make_command(capsys, monkeypatch, tmp_path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[pg.PostgresCluster]:
    """A private server, one per test process."""
    require_service(pg.find_binaries() is not None, "PostgreSQL with PostGIS")
    with pg.run_cluster() as cluster:
        yield cluster


@pytest.fixture
def postgis_url(postgres: pg.PostgresCluster) -> str:
    """The superuser's URL of a fresh database that has PostGIS."""
    return postgres.url(postgres.new_database())


@pytest.fixture(scope="session")
def pgstac_server(postgres: pg.PostgresCluster) -> Iterator[PgstacServer]:
    """A real STAC API over the private server; tests keep to Collections of their own."""
    # Here, because it loads pypgstac.
    from scene_pipeline_tests.services.pgstac import run_pgstac

    with run_pgstac(postgres) as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[web.Browser]:
    """A headless Chromium, one per test process."""
    require_service(web.find_browser() is not None, "Chromium with chromedriver")
    with web.run_browser() as running:
        yield running


@pytest.fixture(scope="session")
def built_region(tmp_path_factory: pytest.TempPathFactory) -> BuiltRegion:
    """Three days of the simulated region with one failed table partition; look, don't touch."""
    from scene_pipeline_tests.services.built_region import build_region

    return build_region(tmp_path_factory.mktemp("region"), damage=True)


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3Server]:
    """One S3 server for the test process."""
    # Here, because moto loads slowly.
    from scene_pipeline_tests.services.s3 import run_s3

    with run_s3() as server:
        yield server


@pytest.fixture
def s3_server(s3_process: S3Server) -> S3Server:
    """The S3 server, its count of requests and its faults at zero."""
    s3_process.forget()
    return s3_process
