"""A launch that does not wait: what can start is queued, what waits for it is named."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, choose_policy
from scene_pipeline.backfill.selection import Selection
from scene_pipeline.backfill.waves import DaemonExecutor, Wave, launch_waves
from scene_pipeline.cli.backfill_text import wave_document
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline_tests.services.in_process import execute_queued, load_workspace
from scene_pipeline_tests.services.small_region import (
    START,
    SmallRegion,
    launch_here,
    make_instance,
    window,
)


def test_what_does_not_depend_on_the_queued_runs_starts_and_the_rest_has_its_command(
    tmp_path: Path,
) -> None:
    """A12 without waiting: the footprints of one key changed, the table lacks another."""
    region = SmallRegion(tmp_path)
    region.publish(START + timedelta(days=20))
    changed, lacking, done = window(1, "abc")
    policies = {asset: choose_policy(asset, region.policies) for asset in (FOOTPRINTS, TABLE)}
    find_job = region.build_definitions().resolve_job_def
    with (
        make_instance(tmp_path) as instance,
        load_workspace(instance, region.write_module()) as workspace,
    ):

        def queue(*assets: object, keys: list[PartitionKey]) -> list[Wave]:
            return launch_waves(
                region.site(instance),
                DaemonExecutor(workspace, wait=False),
                policies={asset: policies[asset] for asset in policies if asset in assets},
                keys=dict.fromkeys(policies, keys),
                selection=Selection(),
                advance=lambda *_: None,
            )

        launch_here(region, instance, [changed, done])
        launch_here(region, instance, [lacking], assets=[FOOTPRINTS])
        region.land([changed], raw_seq=2)
        before = Counter(region.executed())
        first, second = queue(FOOTPRINTS, TABLE, keys=[changed, lacking, done])
        assert first.stored is not None
        assert [planned.key for planned in first.stored.plan.keys] == [changed]
        assert second.stored is not None
        assert [planned.key for planned in second.stored.plan.keys] == [lacking]
        assert second.held == (changed,)
        assert wave_document(second)["then"] == (
            "scene-pipeline backfill launch --asset footprint_table --keys-of "
            f"{first.stored.plan.plan_id}"
        )
        assert {run.status.name for run in execute_queued(instance, find_job)} == {"SUCCESS"}
        (followed,) = queue(TABLE, keys=[changed])
        assert followed.stored is not None
        assert [planned.key for planned in followed.stored.plan.keys] == [changed]
        execute_queued(instance, find_job)
        assert Counter(region.executed()) - before == Counter(
            [
                (FOOTPRINTS.name, str(changed)),
                (TABLE.name, str(lacking)),
                (TABLE.name, str(changed)),
            ]
        )
        states = region.states(instance, TABLE, [changed, lacking, done])
        assert states == {changed: "materialized", lacking: "empty", done: "empty"}
    region.engine.dispose()
