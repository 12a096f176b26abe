"""``partitions``: the state of every key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from scene_pipeline.cli.console import Console, pass_console
from scene_pipeline.cli.selecting import (
    asset_option,
    choose_assets,
    open_desk,
    read_selection,
    window_options,
)

if TYPE_CHECKING:
    from datetime import date

    from scene_pipeline.backfill.states import StateName

__all__ = ["partitions"]

# One character and colour a state.
_MARKS: Mapping[StateName, tuple[str, str]] = {
    "materialized": ("#", "green"),
    "empty": ("o", "green"),
    "changed": ("~", "yellow"),
    "outdated": ("u", "yellow"),
    "in progress": (">", "cyan"),
    "failed": ("x", "bold red"),
    "missing": (".", "white"),
    "not covered": ("-", "dim"),
    "invalid": ("!", "magenta"),
}
_COLUMNS = 60
_DEFAULT_DAYS = 31


@click.group()
def partitions() -> None:
    """See which partitions are done, missing, failed or changed.

    \b
    Examples:
      scene-pipeline partitions status
      scene-pipeline partitions status --asset footprint_table --from 2024-06-01 --to 2024-06-30
    """


@partitions.command()
@window_options
@asset_option
@click.option("--no-strip", is_flag=True, help="Print the counts alone.")
@pass_console
def status(console: Console, *, assets: tuple[str, ...], no_strip: bool, **asked: Any) -> int:
    """Count the keys of a window by state, and draw them: a cell a key, a line a tile.

    Without --from, the newest month of covered days. Exits with 1 where a key has failed.
    """
    from scene_pipeline.backfill.key_states import read_key_states

    selection = read_selection(**asked)
    shown: list[dict[str, Any]] = []
    with open_desk() as desk:
        keys, rejected = desk.sort_keys(selection)
        if selection.first is None and selection.keys is None and keys:
            since = keys[-1].day - timedelta(days=_DEFAULT_DAYS - 1)
            keys = [key for key in keys if key.day >= since]
        for asset in choose_assets(assets):
            states = read_key_states(desk.site, asset, keys=keys, now=desk.now)
            counts = Counter(state.state for state in states.values())
            if rejected:
                counts["invalid"] += len(rejected)
            by_tile: dict[str, dict[date, StateName]] = {}
            for key, state in states.items():
                by_tile.setdefault(key.tile, {})[key.day] = state.state
            shown.append(
                {
                    "asset": asset.name,
                    "counts": dict(counts),
                    "rejected": rejected,
                    "keys": {str(key): state.state for key, state in states.items()},
                    "by_tile": by_tile,
                }
            )

    def show() -> None:
        for each in shown:
            counted = ", ".join(f"{count} {state}" for state, count in each["counts"].items())
            console.line(f"  {counted or 'no covered day'}", lead=each["asset"])
            for line in () if no_strip else draw_strip(each["by_tile"]):
                console.line(line)
        for key, reason in rejected.items():
            console.line(f"{key}  {reason}")
        present = {state for each in shown for state in each["counts"]}
        if present and not no_strip:
            marks = [(_paint(state), state) for state in _MARKS if state in present]
            console.line(Text("  ").join(Text.assemble(mark, f" {name}") for mark, name in marks))

    document = [{name: each[name] for name in each if name != "by_tile"} for each in shown]
    console.result({"assets": document}, show)
    return 1 if any(each["counts"].get("failed") for each in shown) else 0


def draw_strip(
    by_tile: Mapping[str, Mapping[date, StateName]], *, columns: int = _COLUMNS
) -> Iterator[Text]:
    """Lines: a heading with the first day of each block, then a line a tile."""
    days = sorted({day for states in by_tile.values() for day in states})
    width = max(map(len, by_tile), default=0)
    for start in range(0, len(days), columns):
        block: Sequence[date] = days[start : start + columns]
        yield Text(f"{'':<{width}}  {block[0]} … {block[-1]}")
        for tile, states in by_tile.items():
            cells = [_paint(states[day]) if day in states else Text(" ") for day in block]
            yield Text.assemble(f"{tile:<{width}}  ", *cells)


def _paint(state: StateName) -> Text:
    return Text(*_MARKS[state])
