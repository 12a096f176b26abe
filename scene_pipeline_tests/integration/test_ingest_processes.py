"""kill -9 at every step of an ingest, and two ingesters at once: the end is that of one run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scene_pipeline.errors import StateUnavailableError
from scene_pipeline.ingest.runner import run_ingest
from scene_pipeline.state.database import migrate_state
from scene_pipeline_tests.services import ingest_processes as runs
from scene_pipeline_tests.services.postgres import PostgresCluster, run_cluster


def _run_once(folder: Path, url: str) -> dict[str, Any]:
    folder.mkdir()
    runs.write_archives(folder)
    settings = runs.settings_of(folder, url)
    runs.ingest(settings)
    return runs.dump_state(settings)


def _run_in_processes(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", runs.__name__, *arguments],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _expect(ended: list[dict[str, Any]], expected: dict[str, Any], *, at_least: int) -> None:
    assert len(ended) >= at_least
    for each in ended:
        # A page that was lost with its process is fetched again, and counts once.
        assert each["state"] == expected, f"run {each['run']}"


@pytest.fixture
def once(tmp_path: Path) -> dict[str, Any]:
    """What one undisturbed run leaves."""
    return _run_once(tmp_path / "once", f"sqlite:///{tmp_path}/once.db")


def test_one_run_lands_what_the_archives_hold(once: dict[str, Any]) -> None:
    assert len(once["receipts"]) == 22  # 9, a newer version, and a shared Item, in each
    assert len(once["items"]) == 17  # one of each 9 is unusable, the shared one is one
    assert len(once["quarantine"]) == 2
    assert sum(row.count("outside") for row in once["receipts"]) == 2
    assert "2024, 6, 6" in once["frontier"][0]


def test_kill_at_every_eleventh_effect_then_run_again(tmp_path: Path, once: dict[str, Any]) -> None:
    url = f"sqlite:///{tmp_path}/kills/{{}}/state.db"
    _expect(_run_in_processes("kill", f"{tmp_path}/kills", url, "2", "11"), once, at_least=15)


@pytest.mark.full
def test_kill_at_every_effect_then_run_again(tmp_path: Path, once: dict[str, Any]) -> None:
    url = f"sqlite:///{tmp_path}/kills/{{}}/state.db"
    _expect(_run_in_processes("kill", f"{tmp_path}/kills", url, "0", "1"), once, at_least=150)


@pytest.mark.postgres
def test_kill_on_postgresql_then_run_again(
    tmp_path: Path, postgres: PostgresCluster, once: dict[str, Any]
) -> None:
    for number in range(3, 400, 60):
        postgres.execute(f"CREATE DATABASE kill_{number}")
    ended = _run_in_processes("kill", f"{tmp_path}/kills", postgres.url("kill_{}"), "3", "60")
    _expect(ended, once, at_least=3)


def test_two_ingesters_at_once_on_sqlite(tmp_path: Path, once: dict[str, Any]) -> None:
    url = f"sqlite:///{tmp_path}/both/{{}}/state.db"
    _expect(_run_in_processes("together", f"{tmp_path}/both", url, "6"), once, at_least=6)


@pytest.mark.postgres
def test_two_ingesters_at_once_on_postgresql(
    tmp_path: Path, postgres: PostgresCluster, once: dict[str, Any]
) -> None:
    for number in range(6):
        postgres.execute(f"CREATE DATABASE together_{number}")
    url = postgres.url("together_{}")
    _expect(_run_in_processes("together", f"{tmp_path}/both", url, "6"), once, at_least=6)


@pytest.mark.postgres
def test_the_database_dies_and_comes_back(tmp_path: Path, once: dict[str, Any]) -> None:
    with run_cluster() as cluster:
        folder = tmp_path / "crash"
        folder.mkdir()
        runs.write_archives(folder)
        settings = runs.settings_of(folder, cluster.url(cluster.new_database()))
        migrate_state(settings.state_engine_url)

        def pull_the_plug(progress: Any) -> None:
            if progress.stream == "a" and progress.pages == 2:
                cluster.stop("immediate")

        with pytest.raises(StateUnavailableError):
            run_ingest(settings, progress=pull_the_plug)
        cluster.start()
        runs.ingest(settings)
        assert runs.dump_state(settings) == once
