"""Exact covers of key sets by rectangles, which is all that a run's range tags can carry.

A run with range tags executes a rectangle: neighbouring days times tiles that are neighbours in
the declared order. A cover is exact: its rectangles are disjoint and their union is the key set.

`cover` finds the least number of rectangles (Ohtsuki 1982; Ferrari, Sankar and Sklansky 1984):
among the chords that join two concave corners, a largest set without crossings is cut first
(König's theorem on a maximum matching of the crossing chords); each concave corner that is left
needs one cut of its own. Rectangles above the size limit are then split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

from scene_pipeline.scenes.keys import PartitionKey

__all__ = ["Rectangle", "Split", "cover", "expand"]

Split = Literal["whole days", "fewest"]

_Cell = tuple[int, int]  # (day ordinal, tile index)
_Box = tuple[int, int, int, int]  # day, tile, days, tiles


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Days ``first_day`` to ``last_day`` (both included) times ``tiles`` (neighbours, in order)."""

    first_day: date
    last_day: date
    tiles: tuple[str, ...]

    @property
    def days(self) -> int:
        """Number of days."""
        return (self.last_day - self.first_day).days + 1

    @property
    def size(self) -> int:
        """Number of keys."""
        return self.days * len(self.tiles)

    @property
    def start(self) -> PartitionKey:
        """First key of the range."""
        return PartitionKey(self.first_day, self.tiles[0])

    @property
    def end(self) -> PartitionKey:
        """Last key of the range, included."""
        return PartitionKey(self.last_day, self.tiles[-1])

    def __iter__(self) -> Iterator[PartitionKey]:
        """Every key, days outermost."""
        for offset in range(self.days):
            day = self.first_day + timedelta(days=offset)
            for tile in self.tiles:
                yield PartitionKey(day, tile)


def expand(rectangles: Iterable[Rectangle]) -> list[PartitionKey]:
    """Every key of every rectangle; a key that two of them held would come twice."""
    return [key for rectangle in rectangles for key in rectangle]


def cover(
    keys: Iterable[PartitionKey],
    tiles: Sequence[str],
    *,
    max_keys: int,
    split: Split = "whole days",
) -> list[Rectangle]:
    """Cut ``keys`` into disjoint rectangles of at most ``max_keys``, sorted by day then tile.

    ``tiles`` is the declared order. ``whole days`` splits a rectangle that is too large between
    days first, so that a run reads few days: D days of T tiles give ``ceil(D / (max_keys // T))``
    rectangles where T fits, else ``D * ceil(T / max_keys)``. ``fewest`` takes the even grid with
    the least number of pieces. Raises `KeyError` for a tile that is not in ``tiles``.
    """
    if max_keys < 1:
        raise ValueError(f"a run takes at least one key, not {max_keys}")
    index = {tile: position for position, tile in enumerate(tiles)}
    cells = {(key.day.toordinal(), index[key.tile]) for key in keys}
    pieces = [piece for box in _fewest_boxes(cells) for piece in _split_box(box, max_keys, split)]
    return [
        Rectangle(
            date.fromordinal(day),
            date.fromordinal(day + days - 1),
            tuple(tiles[tile : tile + width]),
        )
        for day, tile, days, width in sorted(pieces)
    ]


def _split_box(box: _Box, max_keys: int, split: Split) -> Iterator[_Box]:
    day, tile, days, width = box
    if days * width <= max_keys:
        yield box
        return
    if split == "whole days":
        rows, columns = (max_keys // width, width) if width <= max_keys else (1, max_keys)
    else:
        # The widest of equal choices keeps days whole.
        columns = min(
            range(1, min(width, max_keys) + 1),
            key=lambda c: (-(-width // c) * -(-days // (max_keys // c)), -c),
        )
        rows = max_keys // columns
    for top in range(0, days, rows):
        for left in range(0, width, columns):
            yield day + top, tile + left, min(rows, days - top), min(columns, width - left)


def _fewest_boxes(cells: set[_Cell]) -> list[_Box]:
    """The least number of disjoint boxes whose union is ``cells``."""
    concave = _concave_corners(cells)
    across = _chords(cells, concave, along_day=True)
    down = _chords(cells, concave, along_day=False)
    keep_across, keep_down = _without_crossings(across, down)
    cut_above: set[_Cell] = set()  # cells cut off from the one a day earlier
    cut_left: set[_Cell] = set()  # cells cut off from the one a tile before
    settled: set[_Cell] = set()
    for day, tile, end in keep_across:
        cut_above.update((day, position) for position in range(tile, end))
        settled.update(((day, tile), (day, end)))
    for tile, day, end in keep_down:
        cut_left.update((position, tile) for position in range(day, end))
        settled.update(((day, tile), (end, tile)))
    for day, tile in sorted(concave - settled):
        # Cut along the day's border, away from the missing cell, to the next border or cut.
        step, position = (1, tile) if _inner(cells, day, tile) else (-1, tile - 1)
        while _inner(cells, day, position):
            cut_above.add((day, position))
            crossing = (day, position + 1 if step > 0 else position)
            if crossing in cut_left or (crossing[0] - 1, crossing[1]) in cut_left:
                break
            position += step
    return list(_collect_boxes(cells, cut_above, cut_left))


def _inner(cells: set[_Cell], day: int, tile: int) -> bool:
    """Whether the border between ``day - 1`` and ``day`` at ``tile`` lies inside the set."""
    return (day, tile) in cells and (day - 1, tile) in cells


def _concave_corners(cells: set[_Cell]) -> set[_Cell]:
    """Corners (day border, tile border) at which exactly three of the four cells are in the set."""
    corners: set[_Cell] = set()
    for day, tile in cells:
        for corner in ((day, tile), (day, tile + 1), (day + 1, tile), (day + 1, tile + 1)):
            if corner not in corners:
                around = sum(
                    (corner[0] - up, corner[1] - left) in cells for up in (0, 1) for left in (0, 1)
                )
                if around == 3:
                    corners.add(corner)
    return corners


def _chords(
    cells: set[_Cell], concave: set[_Cell], *, along_day: bool
) -> list[tuple[int, int, int]]:
    """Chords ``(line, from, to)`` between two concave corners, through the inside of the set."""
    chords: list[tuple[int, int, int]] = []
    for day, tile in sorted(concave):
        line, start = (day, tile) if along_day else (tile, day)
        end = start
        while True:
            near = (line, end) if along_day else (end, line)
            far = (line - 1, end) if along_day else (end, line - 1)
            if near not in cells or far not in cells:
                break
            end += 1
        corner = (line, end) if along_day else (end, line)
        if end > start and corner in concave:
            chords.append((line, start, end))
    return chords


def _without_crossings(
    across: list[tuple[int, int, int]], down: list[tuple[int, int, int]]
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """A largest choice of chords of which none meets another, not even at its end."""
    by_tile: dict[int, list[int]] = {}
    for position, (tile, _, _) in enumerate(down):
        by_tile.setdefault(tile, []).append(position)
    meets: list[list[int]] = [
        [
            position
            for tile in range(start, end + 1)
            for position in by_tile.get(tile, ())
            if down[position][1] <= day <= down[position][2]
        ]
        for day, start, end in across
    ]
    partner_of_down = _match(meets, len(down))
    matched_across = set(partner_of_down.values())
    # König: what alternating paths from the unmatched side reach.
    reached_across = [chord for chord in range(len(across)) if chord not in matched_across]
    seen_across, seen_down = set(reached_across), set[int]()
    while reached_across:
        for other in meets[reached_across.pop()]:
            if other not in seen_down:
                seen_down.add(other)
                back = partner_of_down[other]
                if back not in seen_across:
                    seen_across.add(back)
                    reached_across.append(back)
    return (
        [chord for position, chord in enumerate(across) if position in seen_across],
        [chord for position, chord in enumerate(down) if position not in seen_down],
    )


def _match(meets: list[list[int]], others: int) -> dict[int, int]:
    """A maximum bipartite matching (augmenting paths, breadth first): other side -> this side."""
    partner: dict[int, int] = {}
    chosen: dict[int, int] = {}  # the same pairs, this side -> other side
    free = set(range(others))
    for root in range(len(meets)):
        came_from: dict[int, int] = {}
        queue, found = [root], None
        while queue and found is None:
            following: list[int] = []
            for node in queue:
                for other in meets[node]:
                    if other in came_from:
                        continue
                    came_from[other] = node
                    if other in free:
                        found = other
                        break
                    following.append(partner[other])
                if found is not None:
                    break
            queue = following
        if found is None:
            continue
        free.discard(found)
        at: int | None = found
        while at is not None:
            node = came_from[at]
            partner[at], chosen[node], at = node, at, chosen.get(node)
    return partner


def _collect_boxes(
    cells: set[_Cell], cut_above: set[_Cell], cut_left: set[_Cell]
) -> Iterator[_Box]:
    """The boxes into which the cuts have parted the set."""
    left = set(cells)
    for day, tile in sorted(cells):
        if (day, tile) not in left:
            continue
        width = 1
        while (day, tile + width) in left and (day, tile + width) not in cut_left:
            width += 1
        days = 1
        while (day + days, tile) in left and (day + days, tile) not in cut_above:
            days += 1
        left.difference_update(
            (day + down, tile + right) for down in range(days) for right in range(width)
        )
        yield day, tile, days, width
