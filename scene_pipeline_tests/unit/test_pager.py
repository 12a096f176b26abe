"""The rules of one traversal: windows, pages, what ends it, what it proves."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scene_pipeline.errors import SourceFaultError
from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.checkpoints import Checkpoint, Window
from scene_pipeline.ingest.pager import certify, close_window, plan_window, turn_page
from scene_pipeline.ingest.sources.base import Declaration, Page

FIRST = datetime(2024, 6, 1, tzinfo=UTC)
NOW = datetime(2024, 6, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)
LAG = Declaration(finality="lag", lag_hours=48, matched="exact")
IDLE = Checkpoint(region="r", stream="s", lane="forward", scope="x", since=FIRST)


def plan(checkpoint: Checkpoint, **changes: Any) -> Checkpoint | None:
    arguments: dict[str, Any] = {
        "first": FIRST, "end": NOW, "window": 7 * DAY, "request": "limit=2",
        "declaration": LAG, "now": NOW,
    }  # fmt: skip
    return plan_window(checkpoint, **(arguments | changes))


def running(**changes: Any) -> Checkpoint:
    values: dict[str, Any] = {
        "traversal": 7, "began_at": NOW, "token": "t1", "token_at": NOW, "pages": 1,
        "window": Window(FIRST, FIRST + 7 * DAY), "sweep_end": NOW, "request": "limit=2",
    }  # fmt: skip
    return replace(IDLE, **(values | changes))


def turn(current: Checkpoint, *names: str, new: int | None = None, **page: Any) -> Checkpoint:
    ids = [("c", name) for name in names]
    repeated = page.pop("repeated", False)
    fetched = Page(**{"items": [{}] * len(names), "next_token": "t2", **page})
    new_ids = ids if new is None else ids[:new]
    return turn_page(current, fetched, ids=ids, new_ids=new_ids, repeated=repeated, now=NOW)


def close(ended: Checkpoint, declaration: Declaration = LAG, held: int = 0) -> Checkpoint:
    return close_window(ended, declaration, held=held, first=FIRST, now=NOW).checkpoint


# Windows.


def test_history_is_enumerated_in_bounded_windows_up_to_now() -> None:
    window = plan(IDLE)
    assert window is not None
    assert window.window == Window(FIRST, FIRST + 7 * DAY)
    following = plan(replace(window, window=None, reached=FIRST + 14 * DAY))
    assert following is not None
    assert following.window == Window(FIRST + 14 * DAY, NOW)


def test_a_new_sweep_starts_at_the_bound_not_where_the_last_one_ended() -> None:
    swept = replace(IDLE, reached=NOW, sweep_end=NOW, bound=Bound(NOW - 2 * DAY))
    again = plan(swept, end=NOW + DAY)
    assert again is not None
    assert again.window == Window(NOW - 2 * DAY, NOW + DAY)


def test_without_a_finality_the_next_sweep_starts_where_the_last_one_ended() -> None:
    swept = replace(IDLE, reached=NOW, sweep_end=NOW)
    assert plan(swept, declaration=Declaration()) is None
    later = plan(swept, declaration=Declaration(), end=NOW + DAY)
    assert later is not None
    assert later.window == Window(NOW, NOW + DAY)


def test_a_running_traversal_goes_on_from_its_token() -> None:
    assert plan(running()) == running()


@pytest.mark.parametrize(
    ("changed", "declaration"),
    [
        ({"request": "limit=9"}, LAG),
        ({"state": "faulted"}, LAG),
        ({"token_at": NOW - DAY}, replace(LAG, token_lifetime_s=3600.0)),
    ],
    ids=["asked for in another way", "after a broken contract", "an old token"],
)
def test_a_window_starts_afresh(changed: dict[str, Any], declaration: Declaration) -> None:
    fresh = plan(running(**changed), declaration=declaration)
    assert fresh is not None
    assert (fresh.window, fresh.token, fresh.traversal) == (running().window, None, None)


# Pages.


def test_only_the_absence_of_next_ends_a_traversal() -> None:
    assert turn(running(), next_token="t2").token == "t2"
    assert turn(running(), "a", next_token=None).token is None


def test_a_request_that_was_answered_already_is_a_loop() -> None:  # A42
    with pytest.raises(SourceFaultError, match=r"stream s.*repeats a request"):
        turn(running(), "a", repeated=True)
    with pytest.raises(SourceFaultError, match="repeats a request"):
        turn(running(), "a", next_token="t1")


def test_a_page_of_seen_items_is_a_loop() -> None:  # A42
    with pytest.raises(SourceFaultError, match="already seen"):
        turn(running(), "a", "b", new=0)
    assert turn(running(), "a", "b", new=1).ids == 1


def test_twenty_empty_pages_in_a_row_are_an_error() -> None:
    current = running()
    for number in range(19):
        current = turn(current, next_token=f"e{number}")
    assert turn(current, "a", next_token="x").empty_pages == 0
    assert turn(current, next_token=None).token is None
    with pytest.raises(SourceFaultError, match="20 empty pages"):
        turn(current, next_token="e20")


def test_the_highest_count_is_the_one_to_meet() -> None:
    current = turn(turn(running(), matched=3), next_token="t3", matched=2)
    assert current.matched == 3


# The end.


def test_a_certificate_is_for_the_time_at_which_the_traversal_began() -> None:
    ended = running(window=Window(FIRST, NOW), began_at=NOW - 3 * DAY, ids=2, matched=2)
    assert certify(ended, LAG) == Bound(NOW - 5 * DAY)
    assert close(ended).bound == Bound(NOW - 5 * DAY)


def test_a_certificate_never_passes_the_window() -> None:
    ended = running(ids=2, matched=2)
    assert close(ended).bound == Bound(FIRST + 7 * DAY)


def test_an_explicit_claim_never_passes_window_or_present() -> None:
    explicit = Declaration(finality="explicit")
    ended = running(claimed=Bound(NOW + 9 * DAY, "included"), window=Window(FIRST, NOW + DAY))
    assert certify(ended, explicit) == Bound(NOW)
    told = running(claimed=Bound(FIRST + DAY, "included"))
    assert certify(told, explicit) == Bound(FIRST + DAY, "included")
    assert certify(running(), explicit) is None


def test_without_a_finality_nothing_is_certified() -> None:
    done = close(running(ids=2, matched=2), Declaration())
    assert done.bound is None
    assert done.reached == FIRST + 7 * DAY


def test_a_window_after_an_unproven_one_proves_nothing() -> None:
    beyond = running(window=Window(FIRST + DAY, NOW), ids=2, matched=2)
    assert close(beyond).bound is None
    assert close(replace(beyond, bound=Bound(FIRST + DAY))).bound == Bound(NOW - 2 * DAY)


def test_a_bound_below_the_start_of_history_does_not_stop_the_next() -> None:
    early = running(ids=2, matched=2, bound=Bound(FIRST - DAY))
    assert close(early).bound == Bound(FIRST + 7 * DAY)


def test_the_rescan_lane_never_moves_a_bound() -> None:
    assert close(running(lane="rescan", ids=2, matched=2)).bound is None


def test_a_shortfall_is_enumerated_once_more_then_held() -> None:
    short = running(ids=1, matched=2)
    again = close(short)
    assert (again.state, again.window, again.bound) == ("active", short.window, None)
    held = close(replace(again, traversal=8, ids=1, matched=2, pages=1, began_at=NOW))
    assert held.state == "blocked"
    assert "1 of 2" in held.reason
    assert (held.window, held.bound) == (short.window, None)


def test_a_declared_exact_count_that_is_never_given_holds() -> None:
    assert close(close(running(ids=2))).bound is None
    assert "no page gave one" in close(running(ids=2, passes=1)).reason


def test_a_held_item_holds_the_bound_and_says_so() -> None:
    held = close(running(ids=2, matched=2), held=3)
    assert (held.state, held.reason, held.bound) == ("blocked", "3 unusable Items are held", None)


def test_offset_paging_needs_two_equal_traversals() -> None:
    offset = replace(LAG, paging="offset", matched="none")
    first = running(pages=2, ids=4, ids_sum=99)
    once = close(first, offset)
    assert (once.bound, once.window, once.last_ids) == (None, first.window, 4)
    other = replace(first, passes=1, last_ids=4, last_ids_sum=98)
    assert close(other, offset).bound is None
    same = replace(first, passes=1, last_ids=4, last_ids_sum=99)
    assert close(same, offset).bound == Bound(FIRST + 7 * DAY)
    assert close(running(pages=1, ids=4), offset).bound is not None  # nothing to skip
