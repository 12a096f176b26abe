"""Backfills through a real daemon: rows, cancel, crashes, and what others start in the UI."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, choose_policy
from scene_pipeline.backfill.dagster_internals import is_daemon_beating, open_workspace
from scene_pipeline.backfill.diagnose import Account, diagnose_backfill
from scene_pipeline.backfill.launch import new_launch_id, reserve_keys, submit_plan
from scene_pipeline.backfill.plan_store import StoredPlan, launcher_here
from scene_pipeline.backfill.selection import Selection
from scene_pipeline.backfill.tags import BACKFILL_TAG
from scene_pipeline.backfill.waves import DaemonExecutor, retry_undone
from scene_pipeline.errors import SceneRejectedError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline_tests.services.dagster import DagsterServices, run_services, wait_until
from scene_pipeline_tests.services.small_region import REGION, START, SmallRegion, window

pytestmark = pytest.mark.daemon

# Each scenario has days of its own, so that one daemon serves them all.
ASSET_GRAPH, JOB_PAGE, COMMAND, LIVE, CANCEL = range(0, 20, 4)


class Stage:
    """A region, its daemon and web server, and the code location as the daemon sees it."""

    def __init__(self, region: SmallRegion, services: DagsterServices, workspace: Any) -> None:
        self.region = region
        self.services = services
        self.instance = services.instance
        self.site = region.site(services.instance)
        self.workspace = workspace

    def reserve(self, keys: list[PartitionKey]) -> StoredPlan:
        stored, _ = reserve_keys(
            self.site, FOOTPRINTS, choose_policy(FOOTPRINTS, self.region.policies), keys=keys,
            selection=Selection(), launcher=launcher_here("cli"),
            launch_id=new_launch_id(), now=datetime.now(UTC),
        )  # fmt: skip
        assert stored is not None
        return stored

    def runs_of(self, backfill_id: str) -> list[dg.DagsterRun]:
        return list(self.instance.get_runs(dg.RunsFilter(tags={BACKFILL_TAG: backfill_id})))

    def account(self, backfill_id: str) -> Account:
        (account,) = diagnose_backfill(self.site, backfill_id, now=datetime.now(UTC))
        return account

    def status(self, backfill_id: str) -> str:
        row = self.instance.get_backfill(backfill_id)
        return row.status.name if row else "no row"

    def wait_for_status(self, backfill_id: str, *wanted: str) -> None:
        wait_until(lambda: self.status(backfill_id) in wanted, f"{backfill_id} to be {wanted}")

    def page(self, backfill_id: str) -> dict[str, Any]:
        """What Dagster's Backfills page shows of it."""
        answer = self.services.graphql(_PAGE, id=backfill_id)
        found: dict[str, Any] = answer["partitionBackfillOrError"]
        return found

    def start_in_ui(self, parameters: dict[str, Any]) -> str:
        answer = self.services.graphql(_START, parameters=parameters)["launchPartitionBackfill"]
        backfill_id: str = answer["backfillId"]
        return backfill_id


_PAGE = """
query page($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill {
  id status title numPartitions partitionNames hasCancelPermission isAssetBackfill
  partitionStatusCounts { runStatus count } tags { key value }
} } }
"""
_START = """
mutation start($parameters: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $parameters) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
} }
"""
_CANCEL = """
mutation cancel($id: String!) { cancelPartitionBackfill(backfillId: $id) { __typename } }
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    base = tmp_path_factory.mktemp("daemon")
    region = SmallRegion(base, batched=6)
    region.publish(START + timedelta(days=60))
    region.land(window(60)[::2])
    with run_services(base, region.write_module(), look_every_s=2) as services:
        services.start_daemon()
        services.start_webserver()
        with open_workspace(
            services.instance, workspace_file=str(services.workspace), module=""
        ) as workspace:
            yield Stage(region, services, workspace)
    region.engine.dispose()


@pytest.fixture(scope="module")
def started(stage: Stage) -> dict[str, str]:
    """Backfills that others start, all at the beginning: they go on beside the other tests."""
    asset_keys = [{"path": [REGION, asset.name]} for asset in (FOOTPRINTS, TABLE)]
    graph = stage.start_in_ui(
        {
            "assetSelection": asset_keys,
            "partitionNames": [str(key) for key in window(2, first=ASSET_GRAPH)],
        }
    )
    page = stage.start_in_ui(
        {
            "selector": {
                "partitionSetName": "scenes_batched_job_partition_set",
                "repositorySelector": {
                    "repositoryName": "__repository__",
                    "repositoryLocationName": "scene_pipeline",
                },
            },
            "partitionNames": [str(key) for key in window(3, "fed", first=JOB_PAGE)],
        }
    )
    names = ",".join(str(key) for key in window(1, "fe", first=COMMAND))
    answer = stage.services.run_command(
        "dagster", "job", "backfill", "-w", str(stage.services.workspace), "-j",
        "scenes_per_partition_job", "--partitions", names, "--noprompt",
    )  # fmt: skip
    assert "Launched backfill job" in answer.stdout
    command = answer.stdout.split("Launched backfill job `")[1].split("`")[0]
    return {"graph": graph, "page": page, "command": command}


def test_a_launched_plan_is_a_live_row_and_its_account_closes(
    stage: Stage, started: dict[str, str]
) -> None:
    """Live status, partition counts, title, tags; then one failed key, and its retry."""
    del started
    keys = window(2, first=LIVE)
    bad = keys[7]
    stage.region.break_keys({bad: SceneRejectedError})
    stage.region.hold_runs(START + timedelta(days=LIVE))
    stored = stage.reserve(keys)
    submit_plan(stage.site, stage.workspace, stored)
    plan_id = stored.plan.plan_id
    page = stage.page(plan_id)
    assert (page["status"], page["numPartitions"]) == ("REQUESTED", 12)
    assert page["title"].startswith("scene_footprints of small: 12 keys of 2024-06-13 to")
    assert page["partitionNames"] == [str(key) for key in keys]
    assert page["hasCancelPermission"]
    assert {"key": "scene_pipeline/launch", "value": stored.launch_id} in page["tags"]
    assert set(stage.region.states(stage.instance, FOOTPRINTS, keys).values()) == {"in progress"}
    # The same plan again, and a second launcher: nothing is created twice.
    submit_plan(stage.site, stage.workspace, stored)
    assert len(stage.runs_of(plan_id)) == len(stored.plan.rectangles) == 2

    stage.region.hold_runs()
    stage.wait_for_status(plan_id, "COMPLETED_FAILED")
    counts = {c["runStatus"]: c["count"] for c in stage.page(plan_id)["partitionStatusCounts"]}
    assert sum(counts.values()) == 12
    account = stage.account(plan_id)
    assert account.by_outcome["failed"] == (bad,)
    assert len(account.by_outcome["done"]) == 11
    assert account.by_cause == {"data": 1}

    stage.region.break_keys({})
    waves = retry_undone(
        stage.site,
        DaemonExecutor(stage.workspace),
        backfill_id=plan_id,
        policies={FOOTPRINTS: choose_policy(FOOTPRINTS, stage.region.policies)},
        advance=lambda *_: None,
    )
    assert [len(wave.stored.plan.keys) for wave in waves if wave.stored] == [1]
    after = stage.account(plan_id)
    assert after.clean
    assert account.count_rebuilt(after) == 0


def test_cancelling_the_row_ends_queued_and_running_runs(
    stage: Stage, started: dict[str, str]
) -> None:
    del started
    keys = window(2, first=CANCEL)
    stage.region.hold_runs(*(START + timedelta(days=CANCEL + day) for day in range(2)))
    stored = stage.reserve(keys)
    submit_plan(stage.site, stage.workspace, stored)
    wait_until(
        lambda: any(
            run.status == dg.DagsterRunStatus.STARTED for run in stage.runs_of(stored.plan.plan_id)
        ),
        "a run to start",
    )
    assert (
        stage.services.graphql(_CANCEL, id=stored.plan.plan_id)["cancelPartitionBackfill"][
            "__typename"
        ]
        == "CancelBackfillSuccess"
    )
    stage.wait_for_status(stored.plan.plan_id, "CANCELED")
    stage.region.hold_runs()
    assert {run.status.name for run in stage.runs_of(stored.plan.plan_id)} == {"CANCELED"}
    states = stage.region.states(stage.instance, FOOTPRINTS, keys)
    assert set(states.values()) <= {"failed", "missing"}
    assert stage.account(stored.plan.plan_id).by_cause.keys() <= {"killed", "never submitted"}


def test_a_backfill_of_both_assets_from_the_graph_ends_with_every_key_done(
    stage: Stage, started: dict[str, str]
) -> None:
    keys = window(2, first=ASSET_GRAPH)
    stage.wait_for_status(started["graph"], "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED")
    assert stage.status(started["graph"]) == "COMPLETED_SUCCESS"
    accounts = diagnose_backfill(stage.site, started["graph"], now=datetime.now(UTC))
    assert [account.asset for account in accounts] == [FOOTPRINTS, TABLE]
    for account in accounts:
        assert sorted(account.by_outcome["done"]) == sorted(keys)
        assert account.clean


def test_a_backfill_from_a_policy_jobs_own_page_loses_no_key(
    stage: Stage, started: dict[str, str]
) -> None:
    """On a plain definition 1 of the 9 is done, with success."""
    keys = window(3, "fed", first=JOB_PAGE)
    stage.wait_for_status(started["page"], "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED")
    account = stage.account(started["page"])
    assert sorted(account.by_outcome["done"]) == sorted(keys)
    assert account.clean


def test_dagster_job_backfill_works_on_our_jobs(stage: Stage, started: dict[str, str]) -> None:
    keys = window(1, "fe", first=COMMAND)
    runs = stage.services.wait_for_runs(
        dg.RunsFilter(tags={BACKFILL_TAG: started["command"]}), len(keys)
    )
    assert {run.status.name for run in runs} == {"SUCCESS"}
    account = stage.account(started["command"])
    assert sorted(account.by_outcome["done"]) == sorted(keys)


def test_the_daemon_is_known_to_be_alive(stage: Stage) -> None:
    assert is_daemon_beating(stage.instance)
    with dg.DagsterInstance.ephemeral() as alone:
        assert not is_daemon_beating(alone)
