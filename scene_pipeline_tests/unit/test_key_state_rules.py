"""The nine states and their precedence, from evidence alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scene_pipeline.backfill.states import STATES, Evidence, StateName, decide_state
from scene_pipeline.backfill.versions import DataVersion, parse_data_version

DONE = Evidence(
    planned=10, materialized=11, version=DataVersion(3, 40, "1"), code_version="1", upstream_seq=3
)

ONE_EACH: dict[StateName, Evidence] = {
    "invalid": replace(DONE, fault="unknown tile"),
    "not covered": replace(DONE, covered=False),
    "in progress": replace(DONE, planned=12, run_live=True),
    "failed": replace(DONE, planned=12),
    "changed": replace(DONE, upstream_seq=4),
    "outdated": replace(DONE, code_version="2"),
    "empty": replace(DONE, version=DataVersion(3, 0, "1")),
    "materialized": DONE,
    "missing": Evidence(),
}


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_its_evidence(state: StateName) -> None:
    assert decide_state(ONE_EACH[state]) == state


def test_a_state_wins_over_every_later_one() -> None:
    """Evidence for all of them at once, taken away from the front."""
    everything = Evidence(
        fault="removed tile",
        covered=False,
        claimed_by="run",
        planned=12,
        materialized=11,
        version=DataVersion(3, 0, "1"),
        code_version="2",
        upstream_seq=4,
    )
    steps = [
        {"fault": None},
        {"covered": True},
        {"claimed_by": None},
        {"planned": 10},
        {"upstream_seq": 3},
        {"code_version": "1"},
    ]
    met = [decide_state(everything)]
    for step in steps:
        everything = replace(everything, **step)  # type: ignore[arg-type]
        met.append(decide_state(everything))
    assert met == list(STATES[:7])


def test_a_claim_alone_is_work_in_progress() -> None:
    assert decide_state(Evidence(claimed_by="run")) == "in progress"


def test_a_planned_key_of_an_ended_run_that_was_never_made_is_failed() -> None:
    assert decide_state(Evidence(planned=5)) == "failed"


def test_a_key_made_twice_at_one_version_is_not_changed() -> None:
    assert decide_state(replace(DONE, planned=20, materialized=21)) == "materialized"


def test_an_empty_key_becomes_changed_when_a_scene_arrives() -> None:
    assert decide_state(replace(ONE_EACH["empty"], upstream_seq=4)) == "changed"


def test_an_upstream_file_rewritten_since_makes_the_table_key_changed() -> None:
    assert decide_state(replace(DONE, upstream_moved=True)) == "changed"


def test_a_materialization_without_our_version_is_outdated() -> None:
    assert decide_state(replace(DONE, version=None)) == "outdated"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("12.340", DataVersion(12, 340)),
        ("12.340.2", DataVersion(12, 340, "2")),
        ("0.0.2024.1", DataVersion(0, 0, "2024.1")),
        ("b2d1a5", None),
        ("12", None),
        ("12.3x", None),
        ("-1.3", None),
        ("", None),
    ],
)
def test_data_versions_round_trip_and_foreign_ones_are_none(
    text: str, version: DataVersion | None
) -> None:
    assert parse_data_version(text) == version
    assert version is None or str(version) == text
