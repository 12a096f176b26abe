"""Runs on two workers that share PostgreSQL, S3 and a queue: spread, killed, capped."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import yaml

from scene_pipeline_tests.services.dagster import wait_until
from scene_pipeline_tests.services.postgres import find_free_port
from scene_pipeline_tests.unit.test_infra import INFRA, load_stack

pytestmark = [pytest.mark.full, pytest.mark.daemon, pytest.mark.postgres, pytest.mark.s3]

WINDOW = ("--from", "2024-06-01", "--to", "2024-07-04")
KEYS = 34 * 6
WORKSPACE = ("--workspace", "/opt/scene-pipeline/workspace.yaml")


@contextmanager
def run_redis() -> Iterator[str]:
    port, password = find_free_port(), secrets.token_hex(8)
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
               "--requirepass", password]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield f"redis://:{password}@127.0.0.1:{port}/0"
        finally:
            process.terminate()


class CeleryStack(load_stack().Stack):  # type: ignore[misc]  # loaded from a script
    """The server's stack whose runs go to workers."""

    broker = ""

    def environment(self, name: str) -> dict[str, str]:
        found: dict[str, str] = super().environment("code" if name.startswith("worker") else name)
        found["CELERY_BROKER"] = self.broker
        if name.startswith("worker"):
            found["DAGSTER_HOME"] = str(self.folder / name)
            found["PYTHONPATH"] += f":{INFRA}/celery"
        return found

    def write_instance(self, home: Path) -> None:
        """A machine's own Dagster home: only the instance file is the same."""
        home.mkdir(parents=True)
        config = yaml.safe_load((INFRA / "dagster.production.yaml").read_text())
        config |= yaml.safe_load((INFRA / "celery/launcher.yaml").read_text())
        # A worker that is gone with its machine says nothing: its runs end by their longest time.
        config["run_monitoring"] |= {"max_runtime_seconds": 90, "poll_interval_seconds": 5}
        (home / "dagster.yaml").write_text(yaml.safe_dump(config))

    def start_worker(self, name: str) -> None:
        """A worker that takes two runs at a time."""
        self.write_instance(self.folder / name)
        self._spawn(name, self.command("celery", "-A", "dagster_celery.app", "worker", "-Q",
                    "dagster", "-c", "2", "-n", f"{name}@%h", "-l", "WARNING"))  # fmt: skip

    def kill(self, name: str) -> None:
        """kill -9 of a worker and its runs, as when its machine goes."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def runs_of(self, name: str) -> set[str]:
        """Runs that logged on that worker."""
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return {json.loads(line)["run"] for line in lines if line.startswith('{"at"')}


def test_two_workers_share_a_backfill_and_one_is_killed(tmp_path: Path) -> None:
    stack = CeleryStack(tmp_path / "stack")
    stack.folder.mkdir()
    settings = (INFRA / "server.toml").read_text().replace("2024-06-03", "2024-07-05")
    settings += "options = { days = 34 }\n"
    # Six keys a run are many runs; without maps a key is quick.
    settings = f"maps = false\n{settings}\n[policies]\nbatched = 6\n[caps]\nbackfill_runs = 6\n"
    stack.settings_file.write_text(settings)
    most_writers, stopped = 0, threading.Event()

    def watch(url: str) -> None:
        nonlocal most_writers
        with psycopg.connect(url, autocommit=True) as connection:
            while not stopped.wait(0.05):
                query = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'scenes_writer'"
                row = connection.execute(query).fetchone()
                most_writers = max(most_writers, row[0] if row else 0)

    with run_redis() as broker:
        stack.broker = broker
        with stack:
            for name in ("worker-1", "worker-2"):
                stack.start_worker(name)
            report = json.loads(stack.run("code", "scene-pipeline", "ingest", "run", "--json"))
            assert report["frontier"]["last_covered_day"] == "2024-07-04"
            superuser = stack.translate("postgresql://postgres@postgres:5432/postgres")
            watcher = threading.Thread(target=watch, args=(superuser,))
            watcher.start()
            try:
                command = ["scene-pipeline", "backfill", "launch", *WINDOW, *WORKSPACE]
                launch = subprocess.Popen(
                    stack.command(*command), env=stack.environment("code"), cwd=stack.folder,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )  # fmt: skip
                wait_until(
                    lambda: len(stack.runs_of("worker-1")) > 2 and stack.runs_of("worker-2"),
                    "runs on both workers",
                )
                stack.kill("worker-1")
                output, _ = launch.communicate(timeout=900)
                assert launch.returncode in {0, 1}, output
                # Whatever died with the worker failed by name; nothing else is launched again.
                again = ("--states", "failed,missing,changed")
                done = stack.run("code", *command, *again)
                assert "0 failed" in done
            finally:
                stopped.set()
                watcher.join()
            assert stack.runs_of("worker-1")
            assert len(stack.runs_of("worker-2")) > 5
            status = json.loads(
                stack.run("code", "scene-pipeline", "partitions", "status", *WINDOW, "--json")
            )
            for each in status["assets"]:
                counts = Counter(each["counts"])
                assert counts["materialized"] + counts["empty"] == KEYS, each
            with psycopg.connect(superuser.removesuffix("postgres") + "warehouse") as connection:
                row = connection.execute(
                    "SELECT (SELECT count(*) FROM scenes.scene_footprints),"
                    " (SELECT count(*) FROM (SELECT DISTINCT acq_date, tile, collection, item_id"
                    " FROM scenes.scene_footprints) AS items),"
                    " (SELECT sum(row_count) FROM scenes.partition_versions),"
                    " (SELECT count(*) FROM scenes.partition_versions)"
                ).fetchone()
            assert row is not None
            assert row[0] == row[1] == row[2] > 0, "nothing is lost or doubled"
            assert row[3] == KEYS
            assert 1 <= most_writers <= 4, "caps.postgis_writers holds across workers"
