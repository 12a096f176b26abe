"""What `make dev` shows: the graph, a partition materialized from the UI, ticks.

Everything is asked of the GraphQL of a running ``scene-pipeline dev``, as the UI asks it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from scene_pipeline_tests.services.command import FIJI
from scene_pipeline_tests.services.dagster import wait_until
from scene_pipeline_tests.services.postgres import find_free_port

pytestmark = pytest.mark.daemon

PROJECT = Path(__file__).resolve().parents[2]
LOCATION = {"repositoryLocationName": "scene_pipeline", "repositoryName": "__repository__"}


class Dev:
    """One ``scene-pipeline dev`` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = find_free_port()
        (folder / "scene_pipeline.toml").write_text(FIJI)
        shutil.copy(PROJECT / "workspace.yaml", folder)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "DAGSTER_DISABLE_TELEMETRY": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, *arguments: str) -> dict[str, Any]:
        """Run one of our commands with ``--json`` and return its document."""
        done = subprocess.run(
            [sys.executable, "-m", "scene_pipeline", *arguments, "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def start(self) -> None:
        """Start and wait until the code location is loaded."""
        with (self.folder / "dev.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scene_pipeline", "dev", "--port", str(self.port)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        def is_loaded() -> bool:
            assert self._process is not None
            log = (self.folder / "dev.log").read_text(errors="replace")
            assert self._process.poll() is None, log[-3000:]
            try:
                found = self.ask("{ repositoriesOrError { __typename } }")
            except OSError:
                return False
            return bool(found["repositoriesOrError"]["__typename"] == "RepositoryConnection")

        wait_until(is_loaded, "a loaded code location")

    def stop(self) -> None:
        """End it, its code server and its runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """One GraphQL request; fails on errors."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        found: dict[str, Any] = answer["data"]
        return found


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    dev = Dev(tmp_path_factory.mktemp("dev"))
    try:
        report = dev.command("ingest", "run")
        assert report["frontier"]["last_covered_day"] == "2024-06-02"
        dev.start()
        yield dev
    finally:
        dev.stop()


def repository(dev: Dev, fields: str) -> dict[str, Any]:
    found = dev.ask(
        f"{{ repositoriesOrError {{ ... on RepositoryConnection {{ nodes {{ {fields} }}}}}}}}"
    )
    (node,) = found["repositoriesOrError"]["nodes"]
    return dict(node)


def test_assets_jobs_sensor_and_schedules_are_there_and_described(dev: Dev) -> None:
    described = "name description"
    node = repository(
        dev,
        f"name location {{ name }} jobs {{ {described} }} sensors {{ {described} }}"
        f" schedules {{ {described} cronSchedule }}"
        " assetNodes { assetKey { path } groupName description kinds owners"
        " { ... on TeamAssetOwner { team } } isPartitioned jobNames pools }",
    )
    assert node["location"]["name"] == "scene_pipeline"
    jobs = {job["name"] for job in node["jobs"] if not job["name"].startswith("__")}
    assert jobs == {
        "scenes_per_partition_job", "scenes_batched_job", "scenes_single_run_job",
        "footprint_table_job", "daily_scenes_job", "coverage_job", "checks_job", "ingest_job",
    }  # fmt: skip
    assert [sensor["name"] for sensor in node["sensors"]] == ["scenes_sensor"]
    schedules = {schedule["name"] for schedule in node["schedules"]}
    assert schedules == {
        "hourly_ingest",
        "nightly_rescan",
        "daily_scenes",
        "daily_checks",
        "hourly_coverage",
    }
    for each in [*node["jobs"], *node["sensors"], *node["schedules"]]:
        assert each["name"].startswith("__") or len(each["description"]) > 20, each["name"]
    assets = {asset["assetKey"]["path"][-1]: asset for asset in node["assetNodes"]}
    assert set(assets) == {
        "ingest_frontier", "raw_scenes", "scene_footprints", "footprint_table", "daily_coverage",
    }  # fmt: skip
    for asset in assets.values():
        assert asset["assetKey"]["path"][0] == "fiji"
        assert asset["groupName"] == "scenes"
        assert len(asset["description"]) > 60
        assert asset["kinds"]
        assert asset["owners"] == [{"team": "earth-observation"}]
    assert assets["footprint_table"]["pools"] == ["postgis"]
    assert assets["ingest_frontier"]["pools"] == ["stac_api"]
    assert set(assets["scene_footprints"]["jobNames"]) > {"scenes_batched_job", "daily_scenes_job"}


def test_pools_have_the_limits_of_the_settings(dev: Dev) -> None:
    found = dev.ask(
        "{ instance { concurrencyLimits { concurrencyKey slotCount usingDefaultLimit } } }"
    )
    limits = {
        limit["concurrencyKey"]: limit["slotCount"]
        for limit in found["instance"]["concurrencyLimits"]
        if not limit["usingDefaultLimit"]
    }
    assert limits == {"postgis": 4, "stac_api": 2}


def wait_for_run(dev: Dev, run_id: str) -> str:
    query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"

    def ended() -> str:
        status = str(dev.ask(query, id=run_id)["runOrError"]["status"])
        return status if status in {"SUCCESS", "FAILURE", "CANCELED"} else ""

    return wait_until(ended, f"the end of run {run_id}")


def test_a_partition_is_materialized_from_the_ui(dev: Dev) -> None:
    """The request that the button "Materialize" of the asset page sends."""
    key = "2024-06-02|7-0-70"
    launched = dev.ask(
        """
        mutation($params: ExecutionParams!) {
          launchPipelineExecution(executionParams: $params) {
            __typename
            ... on LaunchRunSuccess { run { runId } }
            ... on PythonError { message }
          }
        }
        """,
        params={
            "mode": "default",
            "runConfigData": "{}",
            "executionMetadata": {"tags": [{"key": "dagster/partition", "value": key}]},
            "selector": {
                **LOCATION,
                "pipelineName": "__ASSET_JOB",
                "assetSelection": [{"path": ["fiji", "scene_footprints"]}],
                "assetCheckSelection": [],
            },
        },
    )["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    assert wait_for_run(dev, launched["run"]["runId"]) == "SUCCESS"
    found = dev.ask(
        """
        query($key: AssetKeyInput!, $partitions: [String!]) {
          assetOrError(assetKey: $key) { ... on Asset {
            assetMaterializations(partitions: $partitions, limit: 1) {
              metadataEntries { label ... on IntMetadataEntry { intValue }
                ... on PathMetadataEntry { path } ... on MarkdownMetadataEntry { mdStr } }
            } } }
        }
        """,
        key={"path": ["fiji", "scene_footprints"]},
        partitions=[key],
    )["assetOrError"]["assetMaterializations"]
    (made,) = found
    entries = {entry["label"]: entry for entry in made["metadataEntries"]}
    assert entries["rows"]["intValue"] > 0
    assert Path(entries["path"]["path"]).is_file()
    assert entries["map"]["mdStr"].startswith("![Map of 2024-06-02")


def test_the_sensor_ticks_and_builds_what_is_covered(dev: Dev) -> None:
    selector = {**LOCATION, "sensorName": "scenes_sensor"}
    started = dev.ask(
        """
        mutation($selector: SensorSelector!) {
          startSensor(sensorSelector: $selector) {
            ... on Sensor { sensorState { status } } ... on PythonError { message }
          }
        }
        """,
        selector=selector,
    )["startSensor"]
    assert started["sensorState"]["status"] == "RUNNING"

    def all_built() -> bool:
        found = dev.ask(
            """
            query($key: AssetKeyInput!) {
              assetNodeOrError(assetKey: $key) { ... on AssetNode {
                partitionStats { numMaterialized numFailed numPartitions } } }
            }
            """,
            key={"path": ["fiji", "footprint_table"]},
        )["assetNodeOrError"]["partitionStats"]
        assert found["numPartitions"] == 12
        assert found["numFailed"] == 0
        return bool(found["numMaterialized"] == 12)

    wait_until(all_built, "every covered key of the table", deadline_s=300, every_s=1)
    ticks = dev.ask(
        """
        query($selector: SensorSelector!) {
          sensorOrError(sensorSelector: $selector) { ... on Sensor {
            sensorState { ticks(limit: 50) { status error { message } } } } }
        }
        """,
        selector=selector,
    )["sensorOrError"]["sensorState"]["ticks"]
    assert ticks
    assert not [tick for tick in ticks if tick["status"] == "FAILURE"], ticks


def test_the_daily_schedule_says_the_days_that_it_compared(dev: Dev) -> None:
    """All is built by now, so the tick skips, with the newest full and the newest covered day."""
    found = dev.ask(
        """
        mutation($selector: ScheduleSelector!, $at: Float) {
          scheduleDryRun(selectorData: $selector, timestamp: $at) {
            __typename
            ... on DryRunInstigationTick {
              evaluationResult { skipReason runRequests { runKey } error { message } } }
            ... on PythonError { message }
          }
        }
        """,
        selector={**LOCATION, "scheduleName": "daily_scenes"},
        at=time.time(),
    )["scheduleDryRun"]
    assert found["__typename"] == "DryRunInstigationTick", found
    result = found["evaluationResult"]
    assert result["error"] is None
    assert not result["runRequests"]
    assert "the newest full day is " in result["skipReason"]
    assert "the newest covered day 2024-06-02" in result["skipReason"]
