"""``scene-pipeline dev`` over a built region, and the ways through Dagster's pages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline_tests.services.browser import LAPTOP, Browser
from scene_pipeline_tests.services.built_region import BuiltRegion
from scene_pipeline_tests.services.dagster import wait_until
from scene_pipeline_tests.services.postgres import find_free_port

_LAUNCH_RUN = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_LAUNCH_BACKFILL = """mutation($p: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $p) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_RUN_STATUS = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
_BACKFILL_STATUS = """query($id: String!) { partitionBackfillOrError(backfillId: $id) {
  ... on PartitionBackfill { status } } }"""


class DagsterPages:
    """A running ``dagster dev``: act through GraphQL, look through a browser."""

    def __init__(self, region: BuiltRegion, port: int) -> None:
        self.region = region
        self.url = f"http://127.0.0.1:{port}"
        self._location = ""

    def ask(self, query: str, **variables: Any) -> Any:
        """The data of a GraphQL answer; fails on errors."""
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def find_location(self) -> str:
        """The name of the one code location; empty while it loads."""
        entries = self.ask(
            "{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus "
            "locationOrLoadError { __typename ... on PythonError { message } } } } } }"
        )["workspaceOrError"]["locationEntries"]
        for entry in entries:
            kind = entry["locationOrLoadError"]
            if kind and kind["__typename"] == "RepositoryLocation":
                self._location = entry["name"]
        return self._location

    def launch_run(self, job: str, *, key: PartitionKey | None = None) -> str:
        """Launch a job, for one partition where ``key`` is given, as its page would."""
        tags = [{"key": "dagster/partition", "value": str(key)}] if key else []
        parameters = {
            "selector": {
                "repositoryName": "__repository__",
                "repositoryLocationName": self._location,
                "jobName": job,
            },
            "mode": "default",
            "executionMetadata": {"tags": tags},
        }
        launched = self.ask(_LAUNCH_RUN, p=parameters)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run_id: str = launched["run"]["runId"]
        return run_id

    def wait_for_run(self, run_id: str) -> str:
        """The status that a run ends in."""

        def ended() -> str:
            status = str(self.ask(_RUN_STATUS, id=run_id)["runOrError"]["status"])
            return status if status in {"SUCCESS", "FAILURE", "CANCELED"} else ""

        return wait_until(ended, f"the end of run {run_id}")

    def launch_backfill(self, asset: str, partitions: list[str]) -> str:
        """Start the asset page's own backfill."""
        path = [self.region.settings.region, asset]
        parameters = {"assetSelection": [{"path": path}], "partitionNames": partitions}
        launched = self.ask(_LAUNCH_BACKFILL, p=parameters)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        backfill_id: str = launched["backfillId"]
        return backfill_id

    def wait_for_backfill(self, backfill_id: str) -> str:
        """The status that a backfill ends in."""

        def ended() -> str:
            found = self.ask(_BACKFILL_STATUS, id=backfill_id)["partitionBackfillOrError"]
            return "" if found["status"] in {"REQUESTED", "FAILING"} else str(found["status"])

        return wait_until(ended, f"the end of backfill {backfill_id}")

    def open_graph(self, browser: Browser, *, size: tuple[int, int] = LAPTOP) -> None:
        """The asset graph, drawn."""
        browser.open(f"{self.url}/asset-groups", size=size)
        browser.wait_for("document.querySelectorAll('svg foreignObject').length >= 5")

    def open_partition(self, browser: Browser, asset: str, partition: str) -> None:
        """The page of one partition of an asset."""
        path = f"{self.region.settings.region}/{asset}"
        browser.open(f"{self.url}/assets/{path}?view=partitions&partition={quote(partition)}")
        browser.wait_for_words("Metadata", partition)

    def open_picture(self, browser: Browser) -> dict[str, Any]:
        """Show the first picture of the open page: its alt text, width, and colours as drawn."""
        browser.click("Show Markdown")
        browser.wait_for("document.images.length && document.images[0].naturalWidth > 0")
        found: dict[str, Any] = json.loads(browser.ask(_DESCRIBE_PICTURE))
        return found


# Drawn onto a canvas and counted: a picture that fails to load or is blank has one colour.
_DESCRIBE_PICTURE = """(() => {
  const image = document.images[0], canvas = document.createElement('canvas');
  canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
  const pen = canvas.getContext('2d');
  pen.drawImage(image, 0, 0);
  const dots = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  const counts = new Map();
  for (const dot of dots) {
    const rgb = '#' + [dot & 255, dot >> 8 & 255, dot >> 16 & 255]
      .map(v => v.toString(16).padStart(2, '0')).join('');
    counts.set(rgb, (counts.get(rgb) || 0) + 1);
  }
  const shares = Object.fromEntries([...counts].map(([rgb, n]) => [rgb, n / dots.length]));
  return JSON.stringify({alt: image.alt, width: image.width, shares});
})()"""


@contextmanager
def run_dev(region: BuiltRegion) -> Iterator[DagsterPages]:
    """``scene-pipeline dev`` for the length of the block, its whole process group killed after."""
    pages = DagsterPages(region, find_free_port())
    environment = {
        **{
            k: v for k, v in os.environ.items() if not k.startswith(("SCENE_PIPELINE_", "DAGSTER_"))
        },
        "SCENE_PIPELINE_CONFIG": str(region.config),
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }
    command = "from scene_pipeline.cli.main import main; main()"
    log_path = region.base / "dev.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", command, "dev", "--port", pages.url.rpartition(":")[2]],
            cwd=region.base, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def answers() -> bool:
        said = log_path.read_text(errors="replace")
        assert process.poll() is None, f"dagster dev ended:\n{said[-3000:]}"
        try:
            return bool(pages.find_location()) and "configured with the following daemons" in said
        except OSError:
            return False

    try:
        wait_until(answers, "dagster dev")
        yield pages
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
