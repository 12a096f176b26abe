"""A real Dagster daemon and web server over an isolated home, on SQLite or PostgreSQL storage.

Everything that is started is killed at the end, with the code servers and runs below it. Waits
are for conditions, with a deadline that fails by naming what was waited for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg

from scene_pipeline_tests.services.postgres import find_free_port

T = TypeVar("T")

_CONFIG = """\
telemetry:
  enabled: false
run_queue:
  dequeue_interval_seconds: 1
  # One after the other, each launch would wait for the process of the one before it.
  dequeue_use_threads: true
  dequeue_num_workers: {max_runs}
run_monitoring:
  enabled: true
  poll_interval_seconds: 2
  start_timeout_seconds: 600
  free_slots_after_run_end_seconds: 5
concurrency:
  runs:
    max_concurrent_runs: {max_runs}
  pools:
    granularity: op
    default_limit: 4
"""
# Dagster's daemon looks at backfills each 30 s, which no setting changes.
_DAEMON = """\
import sys
import dagster._daemon.controller as controller
controller.DEFAULT_DAEMON_INTERVAL_SECONDS = {look_every_s}
from dagster._daemon.cli import main
sys.argv = ["dagster-daemon", "run", "-w", {workspace!r}]
main()
"""
_POSTGRES = """\
storage:
  postgres:
    postgres_url: {url}
"""


def wait_until(
    condition: Callable[[], T], what: str, *, deadline_s: float = 600, every_s: float = 0.2
) -> T:
    """The first true value of ``condition``; fails with ``what`` after the deadline."""
    begun = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() - begun > deadline_s:
            raise AssertionError(f"waited {deadline_s:.0f} s in vain for {what}")
        time.sleep(every_s)


class DagsterServices:
    """One home with its definitions file; processes are started and killed by the test."""

    def __init__(
        self,
        base: Path,
        definitions: Path,
        *,
        postgres_url: str = "",
        max_runs: int = 4,
        look_every_s: int = 30,
        config: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.home = base / "dagster_home"
        self.home.mkdir()
        config = config or _CONFIG.format(max_runs=max_runs)
        if postgres_url:
            config += _POSTGRES.format(url=postgres_url)
        (self.home / "dagster.yaml").write_text(config)
        self.workspace = base / "workspace.yaml"
        self.workspace.write_text(
            "load_from:\n"
            f"  - python_file: {{relative_path: {definitions}, location_name: scene_pipeline}}\n"
        )
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                # Every run worker would compile the package anew, which no deployment does.
                if not name.startswith("SCENE_PIPELINE_") and name != "PYTHONDONTWRITEBYTECODE"
            },
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            **(environment or {}),
        }
        self._daemon = base / "daemon.py"
        self._daemon.write_text(
            _DAEMON.format(look_every_s=look_every_s, workspace=str(self.workspace))
        )
        # Made before any process starts: two at once on a fresh home race for the schema.
        self.instance = dg.DagsterInstance.from_config(str(self.home))
        self.port = find_free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, *arguments: str) -> list[str]:
        """A command line of this environment's Python."""
        return [sys.executable, "-m", *arguments]

    def start_daemon(self) -> None:
        """Sensors, schedules, queue, monitoring and backfills; returns when it beats."""
        self._start("daemon", [sys.executable, str(self._daemon)])

        def beats() -> bool:
            log = self.log("daemon")
            if self._processes["daemon"].poll() is not None:
                raise AssertionError(f"the daemon ended:\n{log[-3000:]}")
            return "Instance is configured with the following daemons" in log

        wait_until(beats, "the daemon's start")

    def start_webserver(self, *options: str) -> None:
        """GraphQL and the UI on loopback."""
        where = ("-w", str(self.workspace), "-h", "127.0.0.1", "-p", str(self.port))
        self._start("webserver", self.command("dagster_webserver", *where, *options))

        def answers() -> bool:
            if self._processes["webserver"].poll() is not None:
                raise AssertionError(f"the web server ended:\n{self.log('webserver')[-3000:]}")
            try:
                self.graphql("{ version }")
            except OSError:
                return False
            return True

        wait_until(answers, "the web server's answer")

    def _start(self, name: str, command: list[str]) -> None:
        with self._log_path(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                cwd=self.home.parent,
                # A group of its own: its code servers and runs end with it.
                start_new_session=True,
            )

    def _log_path(self, name: str) -> Path:
        return self.home.parent / f"{name}.log"

    def log(self, name: str) -> str:
        """What a process has printed so far."""
        path = self._log_path(name)
        return path.read_text(errors="replace") if path.exists() else ""

    def read_cpu_seconds(self, name: str) -> float:
        """CPU of a process and all below it, those that have ended included (Linux)."""
        session = self._processes[name].pid
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):
                # After the command's closing bracket: state, parent, group, session, …
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def kill(self, name: str) -> None:
        """kill -9 of a process, its code servers and its runs."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """Ask the web server; fails on errors."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            answer: dict[str, Any] = json.load(response)
        assert "errors" not in answer, answer["errors"]
        found: dict[str, Any] = answer["data"]
        return found

    def run_command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``python -m …`` in the home's environment and return its output."""
        finished = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            cwd=self.home.parent,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if check and finished.returncode:
            raise AssertionError(f"{arguments} returned {finished.returncode}:\n{finished.stderr}")
        return finished

    def wait_for_runs(self, runs_filter: dg.RunsFilter, count: int) -> list[dg.DagsterRun]:
        """At least ``count`` runs of the filter, all of them finished."""

        def finished() -> list[dg.DagsterRun]:
            runs = list(self.instance.get_runs(runs_filter))
            done = len(runs) >= count and all(run.is_finished for run in runs)
            return runs if done else []

        return wait_until(finished, f"{count} finished runs")

    def stop(self) -> None:
        """Kill what was started."""
        for name in list(self._processes):
            self.kill(name)
        self.instance.dispose()


@contextmanager
def run_services(base: Path, definitions: Path, **options: Any) -> Iterator[DagsterServices]:
    """Services for the length of the block."""
    services = DagsterServices(base, definitions, **options)
    try:
        yield services
    finally:
        services.stop()
