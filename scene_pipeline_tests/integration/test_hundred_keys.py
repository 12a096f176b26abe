"""A batch of exactly a hundred keys, one of them with a scene that nothing can be made of."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE
from scene_pipeline.backfill.selection import Selection
from scene_pipeline_tests.services.archive_region import ArchiveRegion

# One zoom 7 tile of the Alps: a hundred days are a hundred keys.
ONE_TILE = (8.5, 45.2, 11.2, 46.9)


def test_one_corrupt_scene_of_a_hundred_keys_costs_its_key_alone(tmp_path: Path) -> None:
    region = ArchiveRegion(tmp_path, days=100, area=ONE_TILE, policies={"batched": 100}, maps=False)
    keys = region.window(100)
    assert len(keys) == 100
    region.ingest(region.one_scene_a_key(keys))
    bad = keys[41]
    region.corrupt_scene(bad)
    good = [key for key in keys if key != bad]
    footprints, table = region.launch(keys, FOOTPRINTS, TABLE)

    # One run, red, with 99 events of their own and the reason of the hundredth.
    assert footprints.stored is not None
    (record,) = region.instance.get_run_records(
        dg.RunsFilter(tags={"dagster/backfill": footprints.stored.plan.plan_id})
    )
    assert record.dagster_run.status == dg.DagsterRunStatus.FAILURE
    made = region.instance.fetch_materializations(
        dg.AssetKey(["alps", FOOTPRINTS.name]), limit=200
    ).records
    assert sorted(str(each.partition_key) for each in made) == sorted(map(str, good))
    for each in made:
        assert each.asset_materialization is not None
        metadata = each.asset_materialization.metadata
        assert metadata["rows"].value == 1
        assert str(each.partition_key).split("|")[0] in str(metadata["path"].value)
    tried = [
        entry
        for entry in region.instance.all_logs(record.dagster_run.run_id)
        if entry.user_message.startswith(f"{bad}: ")
    ]
    assert len(tried) == 1, "an error that no retry helps is met once"
    account = footprints.account
    assert account is not None
    assert account.by_outcome["failed"] == (bad,)
    assert account.by_cause == {"data": 1}
    assert f"scene-{bad.day:%m%d}" in account.findings[0].failure.text

    # The table has the 99 without anyone asking to leave one out.
    assert table.account is not None
    assert sorted(table.account.by_outcome["done"]) == sorted(good)
    assert table.choice.waiting == (bad,)
    assert region.pipeline.warehouse.count_rows(keys) == {key: int(key != bad) for key in keys}

    # What is left to launch is one key; by default not even that, until someone has looked.
    assert [wave.stored for wave in region.launch(keys, FOOTPRINTS, TABLE)] == [None, None]
    undone = Selection(states=frozenset({"missing", "changed", "failed"}))
    again, _ = region.launch(keys, FOOTPRINTS, TABLE, selection=undone)
    assert again.stored is not None
    assert [planned.key for planned in again.stored.plan.keys] == [bad]
    region.close()
