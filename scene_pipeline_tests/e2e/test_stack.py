"""One server, as `make stack` starts it: ingest, a backfill through the daemon, the one door."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

import psycopg
import pytest

from scene_pipeline_tests.conftest import require_service
from scene_pipeline_tests.services import postgres as pg
from scene_pipeline_tests.unit.test_infra import load_stack

pytestmark = [pytest.mark.daemon, pytest.mark.postgres, pytest.mark.s3]


def ask(stack: Any, query: str, *, password: str | None) -> Any:
    request = urllib.request.Request(
        f"{stack.url}/graphql",
        data=json.dumps({"query": query}).encode(),
        headers={"content-type": "application/json"},
    )
    if password is not None:
        token = b64encode(f"operator:{password}".encode()).decode()
        request.add_header("authorization", f"Basic {token}")
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["data"]


def test_the_stack_ingests_backfills_and_stops(tmp_path: Path) -> None:
    require_service(pg.find_binaries() is not None, "PostgreSQL with PostGIS")
    with load_stack().Stack(tmp_path / "stack") as stack:
        secrets = (stack.secrets / "passwords.env").read_text().splitlines()
        passwords = dict(line.split("=") for line in secrets)
        for wrong in (None, "guessed"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(stack, "{ version }", password=wrong)
            assert refused.value.code == 401
            refused.value.close()
        jobs = "{ repositoriesOrError { ... on RepositoryConnection { nodes { jobs { name } } } } }"
        assert "ingest_job" in str(ask(stack, jobs, password=passwords["WEB_PASSWORD"]))

        round_ = json.loads(stack.run("code", "scene-pipeline", "ingest", "run", "--json"))
        assert round_["frontier"]["last_covered_day"] == "2024-06-02"
        launched = stack.run(
            "code", "scene-pipeline", "backfill", "launch", "--from", "2024-06-01", "--to",
            "2024-06-02", "--workspace", "/opt/scene-pipeline/workspace.yaml",
        )  # fmt: skip
        assert "12 done" in launched
        status = json.loads(stack.run("code", "scene-pipeline", "partitions", "status", "--json"))
        counts = {each["asset"]: each["counts"] for each in status["assets"]}
        assert sum(counts["footprint_table"].values()) == 12
        assert set(counts["footprint_table"]) <= {"materialized", "empty"}

        superuser = stack.translate("postgresql://postgres@postgres:5432/")
        with psycopg.connect(f"{superuser}warehouse") as connection:
            (rows,) = connection.execute("SELECT count(*) FROM scenes.scene_footprints").fetchone()
        assert rows > 0
        writer = (stack.secrets / "warehouse_url").read_text()
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(writer.replace(passwords["WRITER_PASSWORD"], "guessed"))
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(writer.replace("/warehouse", "/state"))
        processes = dict(stack._processes)
    assert set(processes) == {"code", "webserver", "daemon", "proxy"}
    assert all(process.poll() is not None for process in processes.values())
    logged = (tmp_path / "stack/daemon.log").read_text() + (tmp_path / "stack/code.log").read_text()
    assert not [name for name, secret in passwords.items() if secret in logged]
    assert '"partition": "2024-06-01|' in logged, "the servers' logs are structured"
