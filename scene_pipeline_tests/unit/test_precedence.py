"""Which version of an Item wins, and which Items are one scene."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from scene_pipeline.scenes.item import Scene
from scene_pipeline.scenes.precedence import choose_winner, twin_key, version_rank
from scene_pipeline_tests.services.items import make_scene

OLD, NEW = "2024-01-01T00:00:00Z", "2024-06-01T00:00:00Z"


@pytest.mark.parametrize(
    ("loser", "winner"),
    [
        ({"updated": OLD}, {"updated": NEW}),
        ({}, {"updated": OLD}),
        ({}, {"created": OLD}),
        ({"created": OLD}, {"created": NEW}),
        ({"created": OLD, "updated": NEW}, {"created": "2024-07-01T00:00:00Z"}),
        ({"processing:version": "02.14"}, {"processing:version": "05.00"}),
        ({"processing:version": "9.00"}, {"processing:version": "10.00"}),
        ({"updated": OLD, "processing:version": "05.00"}, {"updated": NEW}),
        ({}, {"processing:version": "00.01"}),
    ],
)
def test_rank_of_two_versions(loser: dict[str, str], winner: dict[str, str]) -> None:
    """A48: `updated`, else `created`, else the order of arrival; whichever arrives first."""
    for arrivals in ((1, 2), (2, 1)):
        low = version_rank(make_scene(**loser), arrivals[0])
        high = version_rank(make_scene(**winner), arrivals[1])
        assert low < high


def test_equal_versions_keep_the_later_arrival() -> None:
    scene = make_scene(updated=NEW)
    assert version_rank(scene, 1) < version_rank(scene, 2)


def test_ranks_are_a_total_order() -> None:
    choices: list[dict[str, Any]] = [
        {"updated": u, "created": c, "processing:version": b}
        for u, c, b in itertools.product((None, OLD, NEW), (None, OLD), (None, "02.14", "05.00"))
    ]
    ranks = [version_rank(make_scene(**choice), n) for n, choice in enumerate(choices)]
    for a, b, c in itertools.permutations(ranks, 3):
        assert (a < b) != (b < a)
        assert not (a < b < c) or a < c


def _sentinel(item_id: str, **changes: Any) -> Scene:
    fields = {"s2:mgrs_tile": "31UFT", "s2:processing_baseline": "02.14", **changes}
    return make_scene(item_id, **fields)


def test_reprocessed_twins_share_a_key() -> None:
    """A46: one acquisition under two ids, baselines 02.14 and 05.00."""
    old, new = _sentinel("a"), _sentinel("b", **{"s2:processing_baseline": "05.00"})
    assert twin_key(old) == twin_key(new) is not None
    assert choose_winner([(old, 2), (new, 1)]) == 1
    assert choose_winner([(new, 1), (old, 2)]) == 0


def test_a_newer_baseline_beats_a_later_processing() -> None:
    old = _sentinel("a", updated=NEW)
    new = _sentinel("b", updated=OLD, **{"s2:processing_baseline": "05.00"})
    assert choose_winner([(old, 2), (new, 1)]) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"s2:mgrs_tile": "31UFS"},
        {"platform": "sentinel-2b"},
        {"datetime": "2024-06-01T10:20:31Z"},
    ],
)
def test_neighbours_are_no_twins(changes: dict[str, Any]) -> None:
    assert twin_key(_sentinel("a")) != twin_key(_sentinel("b", **changes))


def test_without_a_grid_code_there_is_no_twin_rule() -> None:
    """Most NAIP Items share platform and datetime, and are different places."""
    assert twin_key(make_scene("a")) is None
    assert twin_key(_sentinel("a", platform=None)) is None
