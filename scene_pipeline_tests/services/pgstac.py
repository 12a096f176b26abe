"""A real STAC API: stac-fastapi-pgstac over a database of the private cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
from pypgstac.db import PgstacDB
from pypgstac.load import Loader, Methods
from pypgstac.migrate import Migrate

from scene_pipeline_tests.services.postgres import PostgresCluster, find_free_port

_START_S = 60


@dataclass(frozen=True, slots=True)
class PgstacServer:
    """``url`` is the API's root; Items are changed through its database, at any time."""

    url: str
    dsn: str

    def load(self, collection: str, items: Iterable[Mapping[str, Any]]) -> None:
        """Make the Collection, and put the Items into it (a known id is replaced)."""
        with PgstacDB(dsn=self.dsn) as database:
            loader = Loader(db=database)
            loader.load_collections(iter([_describe(collection)]), Methods.upsert)
            loader.load_items(
                ({**item, "collection": collection} for item in items), Methods.upsert
            )

    def delete(self, collection: str, item_id: str) -> None:
        """Remove one Item."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SET search_path TO pgstac, public")
            connection.execute("SELECT delete_item(%s::text, %s::text)", (item_id, collection))

    def count(self, collection: str) -> int:
        """Items of a Collection, counted by the database."""
        statement = "SELECT count(*) FROM pgstac.items WHERE collection = %s"
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(statement, (collection,)).fetchone()
        assert row is not None
        return int(row[0])


def _describe(collection: str) -> dict[str, Any]:
    return {
        "type": "Collection",
        "stac_version": "1.0.0",
        "id": collection,
        "description": collection,
        "license": "other",
        "links": [],
        "extent": {
            "spatial": {"bbox": [[-180, -90, 180, 90]]},
            "temporal": {"interval": [[None, None]]},
        },
    }


@contextmanager
def run_pgstac(cluster: PostgresCluster) -> Iterator[PgstacServer]:
    """The API in a process of its own, for the length of the block."""
    database = cluster.new_database("pgstac")
    dsn = cluster.url(database)
    with PgstacDB(dsn=dsn) as connection:
        Migrate(connection).run_migration()
    port = find_free_port()
    environment = {
        **os.environ,
        "PGHOST": "127.0.0.1",
        "PGPORT": str(cluster.port),
        "PGUSER": "postgres",
        "PGPASSWORD": "unused",
        "PGDATABASE": database,
        "DB_MIN_CONN_SIZE": "1",
        "DB_MAX_CONN_SIZE": "4",
    }
    command = [sys.executable, "-m", "uvicorn", "stac_fastapi.pgstac.app:create_app", "--factory",
               "--host", "127.0.0.1", "--port", str(port), "--log-level", "critical"]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            server = PgstacServer(f"http://127.0.0.1:{port}", dsn)
            _wait_until_up(server.url, process, log)
            yield server
        finally:
            process.kill()
            process.wait()


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Any) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            if httpx.get(url).is_success:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            raise RuntimeError(f"the STAC API did not start:\n{log.read()[-3000:].decode()}")
        time.sleep(0.1)
