"""Charts of the frontier and of key states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from scene_pipeline.pictures import svg
from scene_pipeline.pictures.svg import Mark
from scene_pipeline.scenes.keys import PartitionKey

__all__ = ["STATE_MARKS", "StreamBar", "draw_frontier", "draw_strip"]

# In the order of the legend. Neighbours differ in lightness, and the states that ask for a person
# carry a sign as well, so that none is told by hue alone.
STATE_MARKS: dict[str, Mark] = {
    "materialized": Mark("materialized", fill="#3f83b8"),
    "empty": Mark("empty", fill="#c3d9e9"),
    "in progress": Mark("in progress", fill="#f0c419"),
    "missing": Mark("missing", fill="#ffffff", stroke="#77838e"),
    "changed": Mark("changed", fill="#6a4c9c"),
    "outdated": Mark("outdated", fill="#b7a5d2"),
    "failed": Mark("failed", fill="#a63a00"),
    "not covered": Mark("not covered", fill="url(#none)", stroke="#b9c4cd"),
    "invalid": Mark("invalid", fill="#1c2733"),
}
_SIGNS = {"failed": "x", "changed": "~"}
_STEPS = (*(timedelta(hours=h) for h in (1, 3, 6, 12)),
          *(timedelta(days=d) for d in (1, 2, 7, 14, 28, 91, 182, 365, 1826)))  # fmt: skip
_EPOCH = datetime(2001, 1, 1, tzinfo=UTC)  # a Monday: steps of a week begin there


@dataclass(frozen=True, slots=True)
class StreamBar:
    """One stream: complete through ``bound_at`` (None: nothing yet), its state and why."""

    name: str
    bound_at: datetime | None
    state: str = "active"
    reason: str = ""


def draw_frontier(
    bars: Sequence[StreamBar],
    *,
    frontier_at: datetime | None,
    now: datetime,
    holder: str | None = None,
    holder_since: datetime | None = None,
    title: str = "Safe frontier",
) -> str:
    """A bar a stream up to its bound, the frontier as a line, its holder marked.

    The axis ends at ``now`` and begins so far before the least bound that differences show.
    """
    left, right, top, row = 196.0, 620.0, 62.0, 28.0
    bottom = top + row * max(len(bars), 1)
    bounds = [bar.bound_at for bar in bars if bar.bound_at is not None]
    newest = max([now, *bounds])
    oldest = min([newest - timedelta(days=1), *bounds])
    first = oldest - (newest - oldest) * 0.25

    def place(at: datetime) -> float:
        return left + (right - left) * ((at - first) / (newest - first))

    note = "no frontier yet: not every stream has a bound"
    if frontier_at is not None:
        note = f"everything before {frontier_at:%Y-%m-%d %H:%M} UTC is complete"
    parts = [*_draw_heading(title, note), _draw_axis(first, newest, place, top=top, bottom=bottom)]
    ends = [None if bar.bound_at is None else place(bar.bound_at) for bar in bars]
    rows = [top + row * index for index in range(len(bars))]
    for bar, end, y in zip(bars, ends, rows, strict=True):
        if end is not None:
            parts.append(_draw_bar(left, end, y=y, held=bar.name == holder))
    if frontier_at is not None:
        line = f"M{place(frontier_at):.1f} {top - 6:.1f}V{bottom + 4:.1f}"
        for color, width in ((svg.PAPER, 4), (svg.INK, 2)):
            parts.append(svg.draw_element("path", d=line, stroke=color, stroke_width=width))
    for bar, end, y in zip(bars, ends, rows, strict=True):
        parts += _label_bar(bar, end, left=left, y=y, held=bar.name == holder)
    y = bottom + 24
    if holder is not None:
        since = f" since {holder_since:%Y-%m-%d %H:%M} UTC" if holder_since else ""
        y += 20
        parts.append(_draw_pointer(18, y - 4))
        parts.append(svg.draw_text(f"{holder} holds the frontier{since}", x=30, y=y))
    return svg.wrap_svg(parts, width=760, height=y + 12, title=title)


def draw_strip(
    states: Mapping[PartitionKey, str],
    *,
    tiles: Sequence[str] | None = None,
    title: str = "Key states",
    width: float = 900,
) -> str:
    """A row a tile, a column a day, a colour a state (a key of `STATE_MARKS`).

    ``tiles`` gives the rows' order, else they are sorted. Keys that are absent stay blank; the
    legend counts the others.
    """
    rows = sorted({key.tile for key in states}) if tiles is None else list(tiles)
    days = sorted({key.day for key in states})
    first, last = (days[0], days[-1]) if days else (date.min, date.min)
    left, top = 92.0, 66.0
    columns = (last - first).days + 1
    cell = min(22.0, (width - left - 12) / columns)
    height = 20.0 if len(rows) <= 30 else max(5.0, 600 / len(rows))
    cells: dict[str, list[str]] = {}
    signs = []
    for index, tile in enumerate(rows):
        y = top + index * height
        for start, length, state in _find_runs(first, columns, tile, states):
            x, span = left + start * cell, length * cell - min(1.0, cell / 4)
            cells.setdefault(state, []).append(
                f"M{x:.1f} {y:.1f}h{span:.1f}v{height - 1:.1f}h{-span:.1f}z"
            )
            if state in _SIGNS and cell >= 8 and height >= 12:
                signs += [
                    svg.draw_text(_SIGNS[state], x=x + (n + 0.5) * cell, y=y + height / 2 + 4)
                    for n in range(length)
                ]
    bottom = top + len(rows) * height
    width = max(480.0, left + columns * cell + 12)
    note = f"{first} to {last}, {len(rows)} tiles, {len(states)} keys" if days else "no key"
    counts = Counter(states.values())
    legend = [
        Mark(f"{mark.label} {counts[state]}", fill=mark.fill, stroke=mark.stroke)
        for state, mark in STATE_MARKS.items()
        if counts[state]
    ]
    parts = [*_draw_heading(title, note), svg.HATCH]
    parts += [
        _draw_cells(cells[state], STATE_MARKS[state]) for state in STATE_MARKS if state in cells
    ]
    parts.append(svg.draw_element("g", "".join(signs), fill=svg.PAPER, text_anchor="middle"))
    if days:
        parts.append(_label_days(first, columns, left=left, cell=cell, y=top - 6))
    parts.append(_label_rows(rows, top=top, height=height, x=left - 6))
    shown, height = svg.draw_legend(legend, x=12, y=bottom + 12, width=width - 24)
    return svg.wrap_svg([*parts, shown], width=width, height=height + 4, title=title)


def _draw_heading(title: str, note: str) -> list[str]:
    return [
        svg.draw_text(title, x=12, y=20, font_size=14, font_weight="bold"),
        svg.draw_text(note, x=12, y=38, fill=svg.MUTED),
    ]


def _draw_axis(
    first: datetime,
    last: datetime,
    place: Callable[[datetime], float],
    *,
    top: float,
    bottom: float,
) -> str:
    """Vertical lines at round times, their labels below."""
    step = next((s for s in _STEPS if (last - first) / s <= 6), _STEPS[-1])
    form = "%m-%d %H:%M" if step < timedelta(days=1) else "%Y-%m-%d"
    lines, labels = [], []
    at = first + (_EPOCH - first) % step
    while at <= last:
        x = place(at)
        lines.append(f"M{x:.1f} {top:.1f}V{bottom:.1f}")
        labels.append(svg.draw_text(f"{at:{form}}", x=x, y=bottom + 16))
        at += step
    now = svg.draw_text("now", x=place(last), y=top - 8, text_anchor="middle", fill=svg.MUTED)
    lines.append(f"M{place(last):.1f} {top - 4:.1f}V{bottom:.1f}")
    words = {"font_size": 10.5, "fill": svg.MUTED, "text_anchor": "middle"}
    return (
        svg.draw_element("path", d="".join(lines), stroke=svg.GRID, stroke_width=1)
        + svg.draw_element("g", "".join(labels), **words)
        + now
    )


def _draw_bar(left: float, end: float, *, y: float, held: bool) -> str:
    color = svg.VERMILION if held else svg.BLUE
    return svg.draw_element("rect", x=left, y=y + 5, width=end - left, height=18.0, fill=color)


def _label_bar(
    bar: StreamBar, end: float | None, *, left: float, y: float, held: bool
) -> Iterable[str]:
    weight = "bold" if held else None
    name = bar.name if len(bar.name) <= 26 else f"{bar.name[:25]}…"
    yield svg.draw_text(name, x=left - 8, y=y + 18, text_anchor="end", font_weight=weight)
    if end is None:
        halo = svg.HALO | {"text_anchor": "start"}
        yield svg.draw_text("no bound yet", x=left + 8, y=y + 18, fill=svg.MUTED, **halo)
    elif held:
        yield _draw_pointer(end + 9, y + 14)
    if bar.state != "active":
        yield svg.draw_text(bar.state, x=632, y=y + (13 if bar.reason else 18), font_weight="bold")
        yield svg.draw_text(bar.reason[:24], x=632, y=y + 25, font_size=10, fill=svg.MUTED)


def _draw_pointer(x: float, y: float) -> str:
    """A triangle that points left, to the end of the holder's bar."""
    return svg.draw_element("path", d=f"M{x - 6:.1f} {y:.1f}l10-6v12z", fill=svg.INK)


def _draw_cells(paths: Sequence[str], mark: Mark) -> str:
    return svg.draw_element("path", d="".join(paths), **svg.style_of(mark, width=0.6))


def _find_runs(
    first: date, columns: int, tile: str, states: Mapping[PartitionKey, str]
) -> Iterator[tuple[int, int, str]]:
    """(first column, columns, state) of neighbours in one state: a year takes few shapes."""
    start, held = 0, None
    for column in range(columns + 1):
        day = first + timedelta(days=column)
        state = states.get(PartitionKey(day, tile)) if column < columns else None
        if state != held:
            if held is not None:
                yield start, column - start, held
            start, held = column, state


def _label_days(first: date, columns: int, *, left: float, cell: float, y: float) -> str:
    step = next((s for s in (1, 2, 7, 14, 28, 91, 182, 365) if s * cell >= 46), 365)
    labels = [
        svg.draw_text(f"{first + timedelta(days=column):%m-%d}", x=left + column * cell, y=y)
        for column in range(0, columns, step)
        if column == 0 or (columns - column) * cell >= 30
    ]
    return svg.draw_element("g", "".join(labels), font_size=10.5, fill=svg.MUTED)


def _label_rows(rows: Sequence[str], *, top: float, height: float, x: float) -> str:
    step = max(1, round(12 / height + 0.49))
    labels = [
        svg.draw_text(tile, x=x, y=top + (index + 0.5) * height + 4)
        for index, tile in enumerate(rows)
        if index % step == 0
    ]
    return svg.draw_element("g", "".join(labels), font_size=10.5, text_anchor="end")
