"""Bounds: laws of the merge, and what an endpoint means."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from scene_pipeline.ingest.bounds import Bound, Endpoint, merge_bounds

ZERO = datetime(2024, 6, 1, tzinfo=UTC)
ENDPOINTS: tuple[Endpoint, ...] = ("excluded", "included", "unknown")


def at(number: int, endpoint: Endpoint = "excluded") -> Bound:
    return Bound(ZERO + timedelta(seconds=number), endpoint)


# Few values, so that ties are common.
BOUNDS = st.builds(at, st.integers(0, 3), st.sampled_from(ENDPOINTS))


@given(st.lists(BOUNDS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_merge_is_commutative_and_idempotent(bounds: list[Bound], random: object) -> None:
    shuffled = bounds[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert merge_bounds(shuffled) == merge_bounds(bounds) == merge_bounds(bounds + bounds)


@given(st.lists(BOUNDS, min_size=1, max_size=4), st.lists(BOUNDS, min_size=1, max_size=4))
def test_merge_is_associative(left: list[Bound], right: list[Bound]) -> None:
    parts = [merge_bounds(left), merge_bounds(right)]
    known = [part for part in parts if part is not None]
    assert merge_bounds(left + right) == (merge_bounds(known) if len(known) == 2 else None)


@given(st.lists(BOUNDS, min_size=1, max_size=6))
def test_merge_promises_nothing_that_a_part_does_not(bounds: list[Bound]) -> None:
    merged = merge_bounds(bounds)
    if any(bound.endpoint == "unknown" for bound in bounds):
        assert merged is None
    else:
        assert merged in bounds
        assert all(merged.order <= bound.order for bound in bounds)  # type: ignore[union-attr]


def test_at_equal_values_the_excluded_endpoint_is_smaller() -> None:
    assert merge_bounds([at(100), at(100, "included")]) == at(100)
    assert merge_bounds([at(100, "included"), at(100)]) == at(100)


def test_the_least_stream_holds_until_it_proves_more() -> None:
    assert merge_bounds([at(120), at(90)]) == at(90)
    assert merge_bounds([at(120), at(110)]) == at(110)


def test_nothing_merges_to_nothing() -> None:
    assert merge_bounds([]) is None


def test_a_day_is_covered_by_the_next_midnight_alone() -> None:
    day, midnight = date(2024, 6, 1), datetime(2024, 6, 2, tzinfo=UTC)
    last_moment = midnight - timedelta(microseconds=1)
    assert Bound(midnight, "excluded").covers_day(day)
    assert not Bound(last_moment, "included").covers_day(day)  # time is dense
    assert not Bound(midnight + timedelta(days=9), "unknown").covers_day(day)
