"""What an operator asks for, what a plan takes of it, and when a plan is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, timedelta

import pytest

from scene_pipeline.backfill.assets import FOOTPRINTS, TABLE, choose_policy, parse_asset
from scene_pipeline.backfill.plan import Plan, parse_plan, plan_runs, require_fresh
from scene_pipeline.backfill.recommend import History, estimate_seconds, recommend_policy
from scene_pipeline.backfill.selection import (
    LAUNCHABLE,
    Selection,
    choose_keys,
    list_keys,
    parse_key_lines,
    parse_states,
)
from scene_pipeline.backfill.states import Evidence, KeyState, StateName, decide_state
from scene_pipeline.backfill.tags import digest_keys, require_planned_keys
from scene_pipeline.backfill.versions import DataVersion
from scene_pipeline.errors import (
    InvalidKeyError,
    KeySetError,
    NotCoveredError,
    StalePlanError,
    UsageError,
)
from scene_pipeline.scenes.keys import PartitionKey, SceneDefinition, parse_key
from scene_pipeline.settings import PolicyName, PolicySettings

TODAY = date(2024, 7, 1)
DAY = date(2024, 6, 1)
DEFINITION = SceneDefinition("alps", DAY, None, "z7", ("c", "a", "b"), frozenset({"gone"}))
EVIDENCE: dict[StateName, Evidence] = {
    "missing": Evidence(),
    "failed": Evidence(planned=5, run_attempt=1),
    "in progress": Evidence(planned=5, run_live=True),
    "not covered": Evidence(covered=False),
    "materialized": Evidence(
        planned=5, materialized=6, version=DataVersion(1, 2, "1"), code_version="1", upstream_seq=1
    ),
}


def keys_of(*texts: str) -> list[PartitionKey]:
    return [parse_key(f"2024-06-{text}") for text in texts]


def states_of(pairs: Mapping[str, StateName]) -> dict[PartitionKey, KeyState]:
    found = {}
    for text, state in pairs.items():
        (key,) = keys_of(text)
        found[key] = KeyState(key, decide_state(EVIDENCE[state]), EVIDENCE[state])
    return found


def plan_of(
    states: Mapping[PartitionKey, KeyState],
    name: PolicyName = "batched",
    selection: Selection | None = None,
) -> Plan:
    selection = selection or Selection()
    return plan_runs(
        choose_keys(states, selection),
        DEFINITION,
        asset=FOOTPRINTS,
        policy=choose_policy(FOOTPRINTS, PolicySettings(), name),
        order=selection.order,
    )


def listed(selection: Selection, covered: date | None = date(2024, 6, 20)) -> list[PartitionKey]:
    return list_keys(selection, DEFINITION, today=TODAY, covered=covered)


# ------------------------------------------------------------------------------ windows


def test_both_ends_of_a_range_are_included_and_tiles_keep_the_declared_order() -> None:
    selection = Selection(first=DAY, last=DAY + timedelta(days=1), tiles=("b", "c"))
    assert listed(selection) == keys_of("01|c", "01|b", "02|c", "02|b")


def test_an_open_range_goes_from_the_start_to_the_last_covered_day() -> None:
    window = listed(Selection(), covered=date(2024, 6, 2))
    assert window == keys_of("01|c", "01|a", "01|b", "02|c", "02|a", "02|b")
    assert listed(Selection(), covered=None) == []
    assert listed(Selection(ahead=True), covered=None)[-1] == keys_of("30|b")[0]


@pytest.mark.parametrize(
    ("selection", "reason"),
    [
        (Selection(first=date(2024, 5, 31), last=DAY), "before start"),
        (Selection(first=DAY, last=TODAY), "after end"),
        (Selection(first=DAY, last=DAY, tiles=("a", "nowhere")), "unknown tile"),
        (Selection(first=DAY, last=DAY, tiles=("gone",)), "removed tile"),
        (Selection(keys=tuple(keys_of("01|a", "01|gone"))), "removed tile"),
    ],
)
def test_a_key_that_the_definition_rejects_is_refused_with_its_reason(
    selection: Selection, reason: str
) -> None:
    """The range's end one day too far is refused too, never cut off in silence."""
    with pytest.raises(InvalidKeyError) as refused:
        listed(selection)
    assert refused.value.reason == reason
    assert refused.value.next_step


def test_a_reversed_range_and_no_tile_are_refused() -> None:
    with pytest.raises(UsageError, match="reversed"):
        listed(Selection(first=date(2024, 6, 2), last=DAY))
    with pytest.raises(UsageError, match="no tile"):
        listed(Selection(first=DAY, last=DAY, tiles=()))


def test_a_file_of_keys_skips_comments_and_names_a_bad_line() -> None:
    lines = ["# from the audit", "", "2024-06-01|a", "2024-06-02|b", "2024-06-01|a"]
    assert parse_key_lines(lines) == tuple(keys_of("01|a", "02|b"))
    with pytest.raises(InvalidKeyError) as refused:
        parse_key_lines([*lines, "2024-6-1|a"], where="keys.txt")
    assert refused.value.where == "keys.txt, line 6"


def test_states_are_chosen_by_name() -> None:
    assert parse_states(["missing", "failed"]) == {"missing", "failed"}
    assert parse_states(["all"]) == set(LAUNCHABLE)
    for refused in ("invalid", "in_progress", "not covered", "done"):
        with pytest.raises(UsageError, match="no state that can be launched"):
            parse_states([refused])


# ------------------------------------------------------------------------------ choices


def test_missing_and_changed_are_taken_by_default_and_nothing_else() -> None:
    """A11: days 1 to 3 and 5 to 7 done, 4 missing."""
    states = states_of(
        {f"0{d}|a": "missing" if d == 4 else "materialized" for d in range(1, 8)}
        | {"08|a": "failed", "09|a": "in progress"}
    )
    choice = choose_keys(states, Selection())
    assert [state.key for state in choice.chosen] == keys_of("04|a")
    assert choice.by_state == {"materialized": 6, "missing": 1, "failed": 1, "in progress": 1}


def test_a_limit_trims_by_order_and_lists_what_it_trimmed() -> None:
    states = states_of({f"0{d}|a": "missing" for d in (3, 1, 2)})
    oldest = choose_keys(states, Selection(limit=2))
    assert [s.key for s in oldest.chosen] == keys_of("01|a", "02|a")
    assert list(oldest.trimmed) == keys_of("03|a")
    newest = choose_keys(states, Selection(limit=2, order="newest"))
    assert [s.key for s in newest.chosen] == keys_of("03|a", "02|a")
    assert plan_of(states, selection=Selection(limit=2)).trimmed == oldest.trimmed


def test_runs_are_started_in_the_order_asked_for() -> None:
    states = states_of({f"0{d}|a": "missing" for d in (1, 3, 5)})
    for order, days in (("oldest", [1, 3, 5]), ("newest", [5, 3, 1])):
        plan = plan_of(states, "per_partition", Selection(order=order))  # type: ignore[arg-type]
        assert [run.rectangle.first_day.day for run in plan.runs] == days


def test_an_uncovered_key_is_refused_by_name_unless_ahead() -> None:
    states = states_of({"01|a": "missing", "02|a": "not covered"})
    with pytest.raises(NotCoveredError, match=r"1 of the keys: 2024-06-02\|a"):
        choose_keys(states, Selection())
    assert len(choose_keys(states, Selection(ahead=True)).chosen) == 2


def test_ahead_does_not_build_a_key_again_that_is_done() -> None:
    done_ahead = replace(EVIDENCE["materialized"], covered=False)
    (key,) = keys_of("02|a")
    states = {key: KeyState(key, "not covered", done_ahead)}
    assert choose_keys(states, Selection(ahead=True)).chosen == ()


def test_a_key_without_its_upstream_waits() -> None:
    (key,) = keys_of("01|a")
    states = {key: KeyState(key, "missing", Evidence(upstream_seq=None))}
    choice = choose_keys(states, Selection())
    assert (choice.chosen, choice.waiting) == ((), (key,))


# ------------------------------------------------------------------------------ plans


@pytest.mark.parametrize(
    ("name", "runs"), [("per_partition", 12), ("batched", 4), ("single_run", 1)]
)
def test_the_policies_differ_in_runs_alone(name: PolicyName, runs: int) -> None:
    """A06: the same 12 keys."""
    states = states_of({f"0{d}|{t}": "missing" for d in range(1, 5) for t in "cab"})
    policy = choose_policy(FOOTPRINTS, PolicySettings(batched=4), name)
    plan = plan_runs(choose_keys(states, Selection()), DEFINITION, asset=FOOTPRINTS, policy=policy)
    assert len(plan.runs) == runs
    assert sorted(key for run in plan.runs for key in run.keys) == sorted(states)


def test_one_key_a_run_has_its_key_and_every_other_policy_its_range() -> None:
    states = states_of({"01|a": "missing"})
    assert plan_of(states, "per_partition").runs[0].tags["dagster/partition"] == "2024-06-01|a"
    for name in ("batched", "single_run"):
        tags = plan_of(states, name).runs[0].tags  # type: ignore[arg-type]
        assert "dagster/partition" not in tags
        assert tags["dagster/asset_partition_range_start"] == "2024-06-01|a"
        assert tags["dagster/asset_partition_range_end"] == "2024-06-01|a"


def test_the_table_has_its_own_job_and_batches_under_every_policy() -> None:
    settings = PolicySettings(batched=20)
    for name in ("per_partition", "batched", "single_run"):
        policy = choose_policy(TABLE, settings, name)  # type: ignore[arg-type]
        assert (policy.job_name, policy.max_keys) == ("footprint_table_job", 40)
    with pytest.raises(UsageError, match="raw_scenes"):
        parse_asset("raw_scenes")


def test_a_plan_is_a_value_that_survives_storage() -> None:
    plan = plan_of(states_of({"01|a": "missing", "03|c": "missing", "03|a": "missing"}))
    assert parse_plan(plan.document) == plan
    assert parse_plan(plan.document).plan_id == plan.plan_id


def test_the_same_wish_has_one_id_and_new_data_or_a_new_attempt_another() -> None:
    states = states_of({"01|a": "missing", "02|a": "missing"})
    first = plan_of(states)
    assert plan_of(dict(reversed(states.items()))).plan_id == first.plan_id
    assert plan_of(states, "single_run").plan_id != first.plan_id
    key = min(states)
    newer = states | {key: KeyState(key, "missing", Evidence(upstream_seq=1))}
    again = states | {key: KeyState(key, "missing", Evidence(planned=7, materialized=9))}
    assert len({first.plan_id, plan_of(newer).plan_id, plan_of(again).plan_id}) == 3


def test_attempts_never_share_a_run() -> None:
    states = states_of({"01|a": "missing", "02|a": "failed", "03|a": "missing"})
    plan = plan_of(states, "single_run", Selection(states=frozenset({"missing", "failed"})))
    assert [(str(r.rectangle.start), r.tags["scene_pipeline/attempt"]) for r in plan.runs] == [
        ("2024-06-01|a", "1"),
        ("2024-06-02|a", "2"),
        ("2024-06-03|a", "1"),
    ]
    assert plan.attempt == 2


def test_a_stale_plan_is_refused_with_both_values() -> None:
    states = states_of({"01|a": "missing"})
    plan = plan_of(states)
    (key,) = states
    require_fresh(plan, DEFINITION, states)
    edited = replace(DEFINITION, tiles=("c", "a"))
    with pytest.raises(StalePlanError) as refused:
        require_fresh(plan, edited, states)
    assert DEFINITION.fingerprint in str(refused.value)
    assert edited.fingerprint in str(refused.value)
    newer = {key: KeyState(key, "missing", Evidence(upstream_seq=3))}
    with pytest.raises(StalePlanError, match=r"at version 3, plan \w+ was made for 0"):
        require_fresh(plan, DEFINITION, newer)
    started = {key: KeyState(key, "in progress", Evidence(planned=4, planned_run="r1"))}
    with pytest.raises(StalePlanError, match="its last event was 0, now it is 4"):
        require_fresh(plan, DEFINITION, started)


# ------------------------------------------------------------------------------ inside a run


def test_a_run_proves_that_it_has_its_planned_keys() -> None:
    """A05: whatever Dagster makes of the tags, other keys than the planned ones stop the run."""
    keys = keys_of("01|a", "02|a")
    tags = {"scene_pipeline/keys": digest_keys(keys)}
    require_planned_keys(tags, keys)
    require_planned_keys(tags, list(reversed(keys)))
    require_planned_keys({}, keys[:1], assets=2)
    refusals: Iterable[tuple[dict[str, str], list[PartitionKey], int, str]] = [
        (tags, keys[:1], 1, "the run has 1 keys, its plan 2"),
        (tags, keys_of("01|a", "03|a"), 1, "or others"),
        (tags, [], 1, "no partition keys"),
        ({}, [], 1, "no partition keys"),
        ({}, keys, 2, "holds 2 assets"),
    ]
    for given_tags, given_keys, assets, text in refusals:
        with pytest.raises(KeySetError, match=text):
            require_planned_keys(given_tags, given_keys, assets=assets)


# ------------------------------------------------------------------------------ advice


@pytest.mark.parametrize(
    ("history", "rate_limited", "policy", "batch"),
    [
        (History(done=100, seconds_per_key=0.1), False, "batched", (20, 50)),
        (History(done=100, seconds_per_key=90), False, "batched", (10, 20)),
        (History(done=100, seconds_per_key=600), False, "batched", (5, 10)),
        (History(done=100, seconds_per_key=1200), False, "single_run", (1, 5)),
        (History(done=90, failed=10, seconds_per_key=0.1), False, "per_partition", (1, 1)),
        (History(done=100, seconds_per_key=0.1), True, "per_partition", (1, 1)),
        (History(), False, "batched", (20, 50)),
    ],
)
def test_the_recommended_policy_follows_the_trade(
    history: History, rate_limited: bool, policy: str, batch: tuple[int, int]
) -> None:
    advice = recommend_policy(history, rate_limited=rate_limited)
    assert (advice.policy, (advice.fewest, advice.most)) == (policy, batch)
    assert advice.reason


def test_the_estimate_shares_work_among_concurrent_runs() -> None:
    history = History(done=10, seconds_per_key=2.0)
    alone = estimate_seconds(4, 40, history, concurrent_runs=1, run_overhead_s=1.0)
    shared = estimate_seconds(4, 40, history, concurrent_runs=4, run_overhead_s=1.0)
    assert (alone, shared) == (84.0, 21.0)
    assert estimate_seconds(4, 40, History(), concurrent_runs=4) is None
