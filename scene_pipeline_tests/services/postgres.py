"""A private PostgreSQL cluster with PostGIS, from the system's binaries, on a unix socket and TCP.

Root cannot run a server, so as root the processes run as another user through ``setpriv``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

_BIN_DIRS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
TEMPLATE = "template_postgis"


def find_binaries() -> Path | None:
    """The folder of the newest installed server that has PostGIS beside it, or None."""
    for folder in _BIN_DIRS:
        version = folder.parent.name
        if Path(f"/usr/share/postgresql/{version}/extension/postgis.control").exists():
            return folder
    return None


def find_free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class PostgresCluster:
    """One running server; `restart` and `kill` are for fault tests."""

    def __init__(self, base: Path, binaries: Path) -> None:
        self.data = base / "data"
        self.port = find_free_port()
        self.binaries = binaries
        self._base = base
        self._user = self._pick_user()
        self._serial = 0

    def _pick_user(self) -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        for name in ("postgres", "nobody"):
            try:
                return pwd.getpwnam(name)
            except KeyError:
                continue
        raise RuntimeError("running as root needs a user postgres or nobody for the server")

    def run(self, program: str, *arguments: str) -> None:
        """Run one of the server's programs as its user."""
        command = [str(self.binaries / program), *arguments]
        if self._user:
            ids = [f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}"]
            command = ["setpriv", *ids, "--clear-groups", *command]
        log = self._base / f"{program}.log"
        with log.open("ab") as output:
            # pg_ctl's server inherits the descriptors: a pipe here would never close.
            code = subprocess.run(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, check=False
            ).returncode
        if code:
            raise RuntimeError(f"{program} failed ({code}):\n{log.read_text()[-2000:]}")

    def create(self, **options: str) -> None:
        """Make the data folder and start; ``options`` go to postgresql.conf."""
        if self._user:
            os.chown(self._base, self._user.pw_uid, self._user.pw_gid)
            self._base.chmod(0o755)
        self.run("initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--username=postgres",
                 "--locale=C.UTF-8", "-D", str(self.data))  # fmt: skip
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._base),
            "fsync": "off",
            "max_connections": "60",
            "shared_buffers": "128MB",
            "jit": "off",
            **options,
        }
        lines = "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        (self.data / "conf.d").mkdir()
        with (self.data / "postgresql.conf").open("a") as config:
            config.write(lines)
        self.start()
        self.execute(f"CREATE DATABASE {TEMPLATE}")
        self.execute("CREATE EXTENSION postgis", database=TEMPLATE)

    def start(self) -> None:
        """Start and wait until it answers."""
        self.run(
            "pg_ctl", "start", "-w", "-D", str(self.data), "-l", str(self._base / "server.log")
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop in ``mode`` smart, fast or immediate."""
        self.run("pg_ctl", "stop", "-w", "-m", mode, "-D", str(self.data))

    def url(self, database: str, *, user: str = "postgres", password: str = "") -> str:
        """A URL without a driver, as an operator would write it."""
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, *, database: str = "postgres") -> None:
        """Run one statement as the superuser."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)

    def new_database(self, prefix: str = "test") -> str:
        """A fresh database with PostGIS; returns its name."""
        self._serial += 1
        name = f"{prefix}_{os.getpid()}_{self._serial}"
        for attempt in range(50):
            try:
                self.execute(f'CREATE DATABASE "{name}" TEMPLATE {TEMPLATE}')
            except psycopg.errors.ObjectInUse:
                if attempt == 49:
                    raise
                time.sleep(0.1)  # another worker is copying the template
            else:
                break
        return name


@contextmanager
def run_cluster(**options: str) -> Iterator[PostgresCluster]:
    """A cluster for the length of the block, gone afterwards."""
    binaries = find_binaries()
    if binaries is None:
        raise RuntimeError("no PostgreSQL with PostGIS; install postgresql-15-postgis-3")
    base = Path(tempfile.mkdtemp(prefix="scenepg-"))
    cluster = PostgresCluster(base, binaries)
    try:
        cluster.create(**options)
        yield cluster
    finally:
        if (cluster.data / "postmaster.pid").exists():
            cluster.stop("immediate")
        shutil.rmtree(base, ignore_errors=True)
