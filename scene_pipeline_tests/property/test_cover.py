"""Laws of the rectangle cover: exact, disjoint, as few as can be, in declared tile order."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scene_pipeline.backfill.cover import Rectangle, Split, cover, expand
from scene_pipeline.scenes.keys import PartitionKey

START = date(2024, 2, 27)  # the windows below cross a leap day and a month's end
# Declared order is neither alphabetical nor numerical.
TILES = ("7-9-1", "7-10-1", "z", "a", "7-2-2")


def key_sets(days: int, tiles: int) -> st.SearchStrategy[set[PartitionKey]]:
    cells = st.tuples(st.integers(0, days - 1), st.integers(0, tiles - 1))
    return st.sets(cells).map(
        lambda chosen: {PartitionKey(START + timedelta(days=d), TILES[t]) for d, t in chosen}
    )


@given(
    keys=key_sets(12, 5),
    max_keys=st.integers(1, 30),
    split=st.sampled_from(["whole days", "fewest"]),
)
def test_a_cover_expands_to_the_same_keys_once_each(
    keys: set[PartitionKey], max_keys: int, split: Split
) -> None:
    """A02, A04: no key is lost, none comes twice, none was not asked for."""
    rectangles = cover(keys, TILES, max_keys=max_keys, split=split)
    assert Counter(expand(rectangles)) == Counter(keys)
    assert all(1 <= rectangle.size <= max_keys for rectangle in rectangles)


@given(keys=key_sets(12, 5))
def test_a_rectangle_is_neighbouring_days_and_tiles_in_declared_order(
    keys: set[PartitionKey],
) -> None:
    declared = "|".join(TILES)
    for rectangle in cover(keys, TILES, max_keys=1000):
        assert "|".join(rectangle.tiles) in declared
        assert rectangle.start == next(iter(rectangle))
        assert rectangle.end == list(rectangle)[-1]


@given(keys=key_sets(5, 4))
def test_without_a_size_limit_no_cover_has_fewer_rectangles(keys: set[PartitionKey]) -> None:
    cells = frozenset(((key.day - START).days, TILES.index(key.tile)) for key in keys)
    assert len(cover(keys, TILES, max_keys=1000)) == fewest_by_search(cells)


@cache
def fewest_by_search(cells: frozenset[tuple[int, int]]) -> int:
    """Every way to cut the first cell's rectangle off, then the rest: slow and plainly right."""
    if not cells:
        return 0
    day, tile = min(cells)
    best, width, days = len(cells), 99, 0
    while (day + days, tile) in cells:
        row = 0
        while row < width and (day + days, tile + row) in cells:
            row += 1
        width, days = row, days + 1
        for columns in range(1, width + 1):
            box = {(day + d, tile + t) for d in range(days) for t in range(columns)}
            best = min(best, 1 + fewest_by_search(cells - box))
    return best


@given(days=st.integers(1, 40), tiles=st.integers(1, 5), batch=st.integers(1, 25))
def test_a_full_window_takes_the_promised_number_of_runs(days: int, tiles: int, batch: int) -> None:
    full = Rectangle(START, START + timedelta(days=days - 1), TILES[:tiles])
    promised = -(-days // (batch // tiles)) if tiles <= batch else days * -(-tiles // batch)
    assert len(cover(full, TILES, max_keys=batch)) == promised


@given(days=st.integers(1, 40), tiles=st.integers(1, 5), limit=st.integers(1, 60))
def test_fewest_never_takes_more_runs_than_whole_days(days: int, tiles: int, limit: int) -> None:
    full = list(Rectangle(START, START + timedelta(days=days - 1), TILES[:tiles]))
    fewest = cover(full, TILES, max_keys=limit, split="fewest")
    assert len(fewest) <= len(cover(full, TILES, max_keys=limit, split="whole days"))
    if days * tiles <= limit:
        assert len(fewest) == 1


def test_an_l_shape_is_two_rectangles() -> None:
    """A02: tiles 1 and 2 on one of three days, all tiles on the others."""
    days = [START + timedelta(days=d) for d in range(3)]
    keys = [PartitionKey(d, t) for d in days for t in TILES[: 2 if d == days[0] else 3]]
    assert [(r.days, r.tiles) for r in cover(keys, TILES, max_keys=1000)] == [
        (1, TILES[:2]),
        (2, TILES[:3]),
    ]


def test_a_one_key_gap_between_done_ranges_is_one_rectangle() -> None:
    """A11."""
    gap = PartitionKey(START + timedelta(days=3), TILES[0])
    assert cover([gap], TILES, max_keys=20) == [Rectangle(gap.day, gap.day, (gap.tile,))]


def test_batches_of_the_window_are_pinned() -> None:
    """A07: the grouping is ours; a Dagster upgrade cannot change it."""
    window = Rectangle(START, START + timedelta(days=9), TILES[:2])
    assert [(str(r.start), str(r.end)) for r in cover(window, TILES, max_keys=5)] == [
        ("2024-02-27|7-9-1", "2024-02-28|7-10-1"),
        ("2024-02-29|7-9-1", "2024-03-01|7-10-1"),
        ("2024-03-02|7-9-1", "2024-03-03|7-10-1"),
        ("2024-03-04|7-9-1", "2024-03-05|7-10-1"),
        ("2024-03-06|7-9-1", "2024-03-07|7-10-1"),
    ]


def test_an_unknown_tile_and_an_empty_run_are_refused() -> None:
    with pytest.raises(KeyError):
        cover([PartitionKey(START, "nowhere")], TILES, max_keys=5)
    with pytest.raises(ValueError, match="at least one key"):
        cover([], TILES, max_keys=0)
