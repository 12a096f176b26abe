"""Planted secrets are found nowhere, and a read-only web server starts nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from scene_pipeline.defs.home import open_instance
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.settings import read_settings
from scene_pipeline_tests.services.command import Command, Outcome
from scene_pipeline_tests.services.dagster import run_services
from scene_pipeline_tests.services.http_region import make_item
from scene_pipeline_tests.services.http_server import Answer, Incoming, answer_json, serve
from scene_pipeline_tests.services.memory_stac import MemoryStac
from scene_pipeline_tests.services.postgres import PostgresCluster, find_free_port
from scene_pipeline_tests.services.s3 import S3Server
from scene_pipeline_tests.services.small_region import SmallRegion

PLANTED = {
    name: f"planted-{name}-4b1d" for name in ("state", "writer", "reader", "s3", "header", "hook")
}
CONFIG = """\
region = "vault"
start_date = 2024-06-01
end_date = 2024-06-02
area = [10.0, 1.0, 11.0, 2.0]
zoom = 5
lake = "s3://lake/vault"
[[streams]]
url = "{url}"
collection = "radar"
finality = {{ rule = "lag", hours = 24 }}
requests_per_s = 500
headers = {{ "x-api-key" = "${{PROVIDER_KEY}}" }}
"""


def find_planted(text: str) -> set[str]:
    return {name for name, secret in PLANTED.items() if secret in text}


@pytest.mark.postgres
@pytest.mark.s3
# A command's connections end with its process, which here goes on.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
def test_planted_secrets_are_found_nowhere(
    command: Command,
    tmp_path: Path,
    postgres: PostgresCluster,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = MemoryStac([{**make_item("radar-1", "2024-06-01T10:00:00Z"), "collection": "radar"}])
    refuse = False

    def respond(incoming: Incoming) -> Answer:
        if refuse or incoming.headers.get("x-api-key") != PLANTED["header"]:
            return answer_json({"description": "who are you"}, 403)
        return api.respond(incoming)

    state, warehouse = postgres.new_database(), postgres.new_database()
    s3 = s3_server.settings()
    monkeypatch.setenv("PROVIDER_KEY", PLANTED["header"])
    variables = {
        "STATE_URL": postgres.url(state, password=PLANTED["state"]),
        "WAREHOUSE_URL": postgres.url(warehouse, password=PLANTED["writer"]),
        "WAREHOUSE_READER_URL": postgres.url(warehouse, password=PLANTED["reader"]),
        "S3__ENDPOINT": s3.endpoint,
        "S3__REGION": s3.region,
        "S3__ACCESS_KEY": "test",
        "S3__SECRET_KEY": PLANTED["s3"],
        "ALERT_WEBHOOK": f"http://127.0.0.1:{find_free_port()}/{PLANTED['hook']}",
        "LOG_FORMAT": "json",
    }
    said: list[str] = []

    def run(*arguments: str, code: int = 0, **changes: str) -> Outcome:
        done = command(*arguments, **{**variables, **changes})
        assert done.code == code, (arguments, done.out, done.err)
        said.extend((done.out, done.err))
        return done

    with serve(respond) as server:
        api.url = server.url
        (tmp_path / "scene_pipeline.toml").write_text(CONFIG.format(url=server.url))
        run("migrate", "--check", code=2)
        run("migrate")
        run("init", "--json")
        run("ingest", "run", "--json")
        window = ("--from", "2024-06-01", "--to", "2024-06-01")
        run("backfill", "launch", *window, "--local")
        for arguments in (("doctor",), ("metrics",), ("streams", "list")):
            run(*arguments)
        refuse = True
        run("ingest", "rescan", code=3)  # the provider refuses the key
        nowhere = f"postgresql://u:{PLANTED['writer']}@127.0.0.1:{find_free_port()}/none"
        run("doctor", code=3, WAREHOUSE_URL=nowhere, WAREHOUSE_READER_URL="",
            CAPS__DB_DEADLINE_S="0.3")  # fmt: skip
        run("doctor", code=2, STATE_URL=f"no url {PLANTED['state']}")
        run("doctor", code=1, S3__ENDPOINT="", LAKE=f"{tmp_path}/lake", STATE_URL="sqlite:///s.db",
            WAREHOUSE_URL="", WAREHOUSE_READER_URL="", CAPS__POSTGIS_WRITERS="9")  # fmt: skip

        for name, value in variables.items():
            monkeypatch.setenv(f"SCENE_PIPELINE_{name}", value)
        settings = read_settings()
        pipeline = Pipeline(settings)
        parts = (settings, settings.model_dump(), settings.model_dump_json(), pipeline.state,
                 pipeline.warehouse, pipeline.store, settings.streams)  # fmt: skip
        said += [repr(part) + str(part) for part in parts]
        with open_instance(settings) as instance:
            for run_ in instance.get_runs():
                said.append(repr(run_.tags) + repr(run_.run_config))
                said += [repr(entry) for entry in instance.all_logs(run_.run_id)]
    assert sum(map(len, said)) > 20_000
    assert find_planted("\n".join(said)) == set()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert [path for path in written if find_planted(path.read_bytes().decode("latin-1"))] == []
    assert find_planted(dump_rows(postgres.url(state))) == set()
    pipeline.state.dispose()
    gc.collect()


def dump_rows(url: str) -> str:
    """Every row of every table of a database, as text."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        rows = [
            str(row)
            for name in names
            for row in connection.execute(sa.text(f'SELECT * FROM "{name}"'))
        ]
    engine.dispose()
    assert len(rows) > 5
    return "\n".join(rows)


@pytest.fixture
def region(tmp_path: Path) -> Iterator[SmallRegion]:
    region = SmallRegion(tmp_path)
    yield region
    region.engine.dispose()


@pytest.mark.daemon
def test_a_read_only_web_server_starts_nothing(tmp_path: Path, region: SmallRegion) -> None:
    with run_services(tmp_path, region.write_module()) as services:
        services.start_webserver("--read-only")
        names = services.graphql("{ repositoriesOrError { ... on RepositoryConnection"
                                 " { nodes { jobs { name } } } } }")  # fmt: skip
        assert "scenes_batched_job" in str(names), "it shows what there is"
        mutation = """mutation($selector: JobOrPipelineSelector!) {
            launchRun(executionParams: {selector: $selector}) { __typename } }"""
        selector = {
            "repositoryLocationName": "scene_pipeline",
            "repositoryName": "__repository__",
            "jobName": "scenes_per_partition_job",
        }
        answer = services.graphql(mutation, selector=selector)
        assert answer["launchRun"]["__typename"] == "UnauthorizedError"
        assert services.instance.get_runs_count() == 0
