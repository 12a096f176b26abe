"""Which keys an operator asks for, and which of them a plan takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Literal

from scene_pipeline.backfill.states import STATES, KeyState, StateName, decide_state
from scene_pipeline.errors import InvalidKeyError, NotCoveredError, UsageError
from scene_pipeline.scenes.keys import PartitionKey, SceneDefinition, parse_key

__all__ = [
    "DEFAULT_STATES",
    "LAUNCHABLE",
    "Choice",
    "Order",
    "Selection",
    "choose_keys",
    "list_keys",
    "parse_key_lines",
    "parse_states",
]

Order = Literal["oldest", "newest"]

# What may be asked for: everything but what the definition or another run forbids.
LAUNCHABLE: tuple[StateName, ...] = tuple(
    state for state in STATES if state not in {"invalid", "not covered", "in progress"}
)
DEFAULT_STATES: frozenset[StateName] = frozenset({"missing", "changed"})


@dataclass(frozen=True, slots=True)
class Selection:
    """A window (days ``first`` to ``last``, both included) of ``tiles``, or listed ``keys``.

    None means: from the definition's start; to the last covered day; every tile. ``limit`` takes
    so many keys in ``order``; the others are trimmed by design. ``ahead`` lets days through that
    the frontier does not cover. ``follow``: keys whose upstream an earlier wave has just made,
    taken where they are missing or changed, whatever ``states`` says.
    """

    first: date | None = None
    last: date | None = None
    tiles: tuple[str, ...] | None = None
    keys: tuple[PartitionKey, ...] | None = None
    states: frozenset[StateName] = DEFAULT_STATES
    order: Order = "oldest"
    limit: int | None = None
    ahead: bool = False
    follow: frozenset[PartitionKey] = frozenset()

    def takes(self, state: KeyState) -> bool:
        """Whether the key is in a state that was asked for; with ``ahead``, were it covered."""
        name = decide_state(replace(state.evidence, covered=True)) if self.ahead else state.state
        return name in self.states or (state.key in self.follow and name in DEFAULT_STATES)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a plan takes, in order, and why each other key stays out.

    ``waiting``: in a chosen state, but the upstream key does not exist yet.
    """

    chosen: tuple[KeyState, ...]
    trimmed: tuple[PartitionKey, ...] = ()
    waiting: tuple[PartitionKey, ...] = ()
    by_state: Mapping[StateName, int] = field(default_factory=dict)


def parse_states(texts: Iterable[str]) -> frozenset[StateName]:
    """Names of states, or ``all``; raises `UsageError` that lists what may be asked for."""
    states: set[StateName] = set()
    for text in texts:
        match = next((state for state in LAUNCHABLE if state == text.replace("_", " ")), None)
        if text == "all":
            states.update(LAUNCHABLE)
        elif match is not None:
            states.add(match)
        else:
            raise UsageError(
                f"{text!r} is no state that can be launched",
                next_step=f"choose among {', '.join(LAUNCHABLE)}, or all",
            )
    return frozenset(states)


def parse_key_lines(lines: Iterable[str], *, where: str = "") -> tuple[PartitionKey, ...]:
    """Keys of a file, one a line; blank lines and lines after ``#`` are skipped.

    Raises `InvalidKeyError` that names the line.
    """
    keys: dict[PartitionKey, None] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            keys[parse_key(text)] = None
        except InvalidKeyError as error:
            error.where = f"{where}, line {number}" if where else f"line {number}"
            raise
    return tuple(keys)


def list_keys(
    selection: Selection, definition: SceneDefinition, *, today: date, covered: date | None
) -> list[PartitionKey]:
    """The keys asked for; ``covered`` is the last day that the frontier covers, None if none.

    Raises `InvalidKeyError` naming the first key that the definition rejects, `UsageError` for a
    reversed range. Nothing is clipped in silence: an end that was written out must exist.
    """
    if selection.keys is not None:
        return [definition.require(key, today=today) for key in dict.fromkeys(selection.keys)]
    first = definition.start if selection.first is None else selection.first
    last = selection.last
    if last is None:
        newest = definition.last_day(today)
        last = newest if selection.ahead else min(newest, covered or date.min)
        if last < first:
            return []
    if last < first:
        raise UsageError(
            f"the range {first} to {last} is reversed",
            next_step="give the earlier day first; both ends are included",
        )
    tiles = definition.tiles if selection.tiles is None else _in_order(selection.tiles, definition)
    if not tiles:
        raise UsageError("no tile is selected", next_step="name at least one, or leave it out")
    # A fault of the first day, the last day or a tile is a fault of a corner.
    for key in (PartitionKey(first, tiles[0]), *(PartitionKey(last, tile) for tile in tiles)):
        definition.require(key, today=today)
    return list(definition.iter_window(first, last, tiles))


def _in_order(tiles: Sequence[str], definition: SceneDefinition) -> tuple[str, ...]:
    chosen = set(tiles)
    known = tuple(tile for tile in definition.tiles if tile in chosen)
    return known + tuple(sorted(chosen.difference(known)))


def choose_keys(states: Mapping[PartitionKey, KeyState], selection: Selection) -> Choice:
    """Those in the chosen states, in order, up to the limit.

    Raises `NotCoveredError` naming the keys that the frontier does not cover, unless ``ahead``.
    """
    step = 1 if selection.order == "oldest" else -1
    # A stable sort: within a day the keys stay in the order asked for.
    ordered = sorted(states.values(), key=lambda state: step * state.key.day.toordinal())
    by_state = Counter(state.state for state in ordered)
    ahead = [state.key for state in ordered if state.state == "not covered"]
    if ahead and not selection.ahead:
        named = ", ".join(map(str, sorted(ahead)[:5])) + (" …" if len(ahead) > 5 else "")
        raise NotCoveredError(
            f"the frontier does not cover {len(ahead)} of the keys: {named}",
            next_step="end the range earlier, run ingest, or add --ahead to build them anyway",
        )
    able = [state for state in ordered if selection.takes(state)]
    ready = [state for state in able if state.ready]
    limit = len(ready) if selection.limit is None else selection.limit
    return Choice(
        chosen=tuple(ready[:limit]),
        trimmed=tuple(state.key for state in ready[limit:]),
        waiting=tuple(state.key for state in able if not state.ready),
        by_state=by_state,
    )
