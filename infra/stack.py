"""The services of ``compose.yaml`` as processes of this machine: ``make stack``.

Commands, environment, start order, health checks and configuration files are read from
``compose.yaml``; only places differ: loopback ports for host names, a folder for volumes and
secrets. PostgreSQL and nginx come from Debian's packages. The S3 server is the one exception:
moto, from PyPI, stands in for the image.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from string import Template
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
sys.path.insert(0, str(PROJECT))
COMPOSE = HERE / "compose.yaml"
# Services that are not run by their own image's command: by whom they are run here.
STAND_INS = {"postgres": "Debian's server", "proxy": "Debian's nginx", "s3": "moto"}
INSIDE = "/opt/scene-pipeline"
START_S = 180.0


def read_services() -> dict[str, dict[str, Any]]:
    """The services of the compose file, in an order in which each finds what it depends on."""
    services: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    ordered: dict[str, dict[str, Any]] = {}
    while len(ordered) < len(services):
        ready = [
            name
            for name, service in services.items()
            if name not in ordered and ordered.keys() >= service.get("depends_on", {}).keys()
        ]
        if not ready:
            raise ValueError(f"a circle in depends_on among {services.keys() - ordered.keys()}")
        ordered.update((name, services[name]) for name in ready)
    return ordered


class Stack:
    """The running services, under one folder; `stop` ends what `start` began."""

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        from scene_pipeline_tests.services.postgres import find_free_port

        self.folder = folder.absolute()
        self.secrets = self.folder / "secrets"
        self.home = self.folder / "home"
        self.services = read_services()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._open = ExitStack()
        self._cluster: Any = None
        self.stop_s3: Callable[[], None] = lambda: None
        self._healthy: set[str] = set()
        self.ports = {name: find_free_port() for name in ("s3", "code", "webserver")}
        self.ports["proxy"] = port or find_free_port()
        self.ports["postgres"] = 0  # the cluster chooses

    @property
    def url(self) -> str:
        """The page behind the proxy."""
        return f"http://127.0.0.1:{self.ports['proxy']}"

    def translate(self, text: str) -> str:
        """A text of the compose file with this machine's places."""
        places = {
            "postgres:5432": f"127.0.0.1:{self.ports['postgres']}",
            "s3:8333": f"127.0.0.1:{self.ports['s3']}",
            "webserver:3000": f"127.0.0.1:{self.ports['webserver']}",
            "127.0.0.1:3000": f"127.0.0.1:{self.ports['webserver']}",
            "127.0.0.1:8080": f"127.0.0.1:{self.ports['proxy']}",
            "/run/secrets": str(self.secrets),
            f"{INSIDE}/scene_pipeline.toml": str(self.settings_file),
            f"{INSIDE}/workspace.yaml": str(HERE / "workspace.yaml"),
            f"{INSIDE}/home": str(self.home),
            "/opt/": f"{HERE}/",
        }
        whole = {
            "0.0.0.0": "127.0.0.1",  # inside its container, not here
            "code": "127.0.0.1",
            "4000": str(self.ports["code"]),
            "3000": str(self.ports["webserver"]),
            "8080": f"127.0.0.1:{self.ports['proxy']}",
        }
        if text in whole:
            return whole[text]
        for theirs, ours in places.items():
            text = text.replace(theirs, ours)
        return text

    @property
    def settings_file(self) -> Path:
        """The settings: the folder's own, made from ``server.toml`` where it has none."""
        return self.folder / "scene_pipeline.toml"

    def environment(self, name: str) -> dict[str, str]:
        """What the service sees; secrets are still names of files."""
        given = self.services[name].get("environment", {})
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SCENE_", "DAGSTER_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        extra = {"PATH": path, "PYTHONPATH": str(PROJECT), "DAGSTER_DISABLE_TELEMETRY": "1"}
        return {**kept, **extra, **{k: self.translate(str(v)) for k, v in given.items()}}

    def command(self, *arguments: str) -> list[str]:
        """A command line of the image: its entry point reads the secrets."""
        return ["sh", str(HERE / "with-secrets.sh"), *map(self.translate, arguments)]

    def run(self, name: str, *arguments: str) -> str:
        """Run a one-shot service (with other ``arguments`` if given) and return its output."""
        done = subprocess.run(
            self.command(*(arguments or self.services[name]["command"])),
            env=self.environment(name),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{name} returned {done.returncode}:\n{done.stdout}")
        return done.stdout

    def start(self) -> None:
        """Start every service when what it depends on is healthy, as the compose file says."""
        self.secrets.mkdir(parents=True, exist_ok=True)
        self.write_instance(self.home)
        if not self.settings_file.exists():
            shutil.copy(HERE / "server.toml", self.settings_file)
        for name, service in self.services.items():
            for other in service.get("depends_on", {}):
                self._wait_for(other)
            print(f"starting {name}", flush=True)
            if name in STAND_INS:
                getattr(self, f"_start_{name}")()
            elif service.get("restart") == "no":
                self.run(name)
            else:
                self._spawn(name, self.command(*service["command"]))
        for name in self.services:
            self._wait_for(name)

    def write_instance(self, home: Path) -> None:
        """Dagster's instance file, into a machine's own home."""
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "dagster.production.yaml", home / "dagster.yaml")

    def _start_postgres(self) -> None:
        from scene_pipeline_tests.services.postgres import run_cluster

        # In a folder of its own user, gone at the end: the server never runs as root.
        self._cluster = self._open.enter_context(run_cluster())
        self.ports["postgres"] = self._cluster.port
        secrets = ["sh", str(HERE / "make-secrets.sh"), str(self.secrets)]
        subprocess.run([*secrets, self.translate("postgres:5432")], check=True)
        environment = {"PGHOST": "127.0.0.1", "PGPORT": str(self._cluster.port)}
        subprocess.run(
            ["sh", str(HERE / "postgres-init.sh")],
            env={**self.environment("postgres"), **environment},
            check=True,
        )
        # From here on passwords count, as in the container; only the superuser is let in without.
        rules = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (self._cluster.data / "pg_hba.conf").write_text(f"local all all trust\n{rules}")
        self._cluster.execute("SELECT pg_reload_conf()")

    def _start_s3(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        server = ThreadedMotoServer("127.0.0.1", self.ports["s3"], verbose=False)
        server.start()
        self.stop_s3 = server.stop

    def _start_proxy(self) -> None:
        nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
        if nginx is None:
            raise SystemExit("no nginx: run infra/install-services.sh")
        places = self.environment("proxy")
        server = Template((HERE / "nginx.conf.template").read_text()).safe_substitute(places)
        config = self.folder / "nginx.conf"
        user = "user root;" if os.geteuid() == 0 else ""
        temporary = "".join(
            f"{name}_temp_path {self.folder}/nginx-{name};"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config.write_text(
            f"{user} pid {self.folder}/nginx.pid; daemon off; error_log stderr;\n"
            f"events {{}} http {{ access_log off; {temporary}\n{server}}}\n"
        )
        self._spawn("proxy", [nginx, "-e", "stderr", "-c", str(config)])
        self._healthy.add("proxy")
        self._wait_until("proxy", lambda: self._answers(f"{self.url}/health"))

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                env=self.environment(name),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_for(self, name: str) -> None:
        if name not in self._processes or name in self._healthy:
            return  # a one-shot has ended, a stand-in was waited for
        self._healthy.add(name)
        check = self.services[name]["healthcheck"]["test"][1:]

        def is_healthy() -> bool:
            command = self.command(*check)
            done = subprocess.run(
                command,
                env=self.environment(name),
                cwd=self.folder,
                capture_output=True,
                check=False,
            )
            return done.returncode == 0

        self._wait_until(name, is_healthy)

    def _wait_until(self, name: str, is_healthy: Any) -> None:
        deadline = time.monotonic() + START_S
        while not is_healthy():
            log = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
            if self._processes[name].poll() is not None:
                raise SystemExit(f"{name} ended:\n{log}")
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} is not healthy after {START_S:.0f} s:\n{log}")
            time.sleep(0.3)

    def _answers(self, url: str) -> bool:
        import urllib.request

        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """End every process, the last started first."""
        for process in reversed(list(self._processes.values())):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._processes.clear()
        self.stop_s3()
        self._open.close()

    def __enter__(self) -> Stack:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def main() -> None:
    """Start everything, say where it is, and stop it all on Ctrl-C."""
    parser = argparse.ArgumentParser(description="compose.yaml without a container engine")
    parser.add_argument("--folder", type=Path, default=Path(".scene_pipeline/stack"))
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args()
    if given.folder.exists():
        shutil.rmtree(given.folder)

    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # both end it in order
    with Stack(given.folder, port=given.port) as stack:
        print(f"{stack.url}  user operator, password WEB_PASSWORD in {stack.secrets}/passwords.env")
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("stopping")


if __name__ == "__main__":
    main()
