"""Options that say which keys a command is about, and the site that it works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scene_pipeline.backfill.assets import WAVES, TrackedAsset, parse_asset
from scene_pipeline.backfill.selection import (
    DEFAULT_STATES,
    LAUNCHABLE,
    Selection,
    list_keys,
    parse_key_lines,
    parse_states,
)
from scene_pipeline.errors import InvalidKeyError
from scene_pipeline.scenes.keys import PartitionKey, SceneDefinition, parse_day, parse_key
from scene_pipeline.settings import load_settings

if TYPE_CHECKING:
    import dagster as dg

    from scene_pipeline.backfill.key_states import Site
    from scene_pipeline.defs.pipeline import Pipeline

__all__ = [
    "Desk",
    "asset_option",
    "choose_assets",
    "find_workspace",
    "open_desk",
    "read_selection",
    "selection_options",
    "window_options",
]

Command = TypeVar("Command", bound=Callable[..., Any])

asset_option = click.option(
    "--asset",
    "assets",
    multiple=True,
    metavar="NAME",
    help=f"{' or '.join(asset.name for asset in WAVES)}; repeatable; both by default.",
)


def window_options(command: Command) -> Command:
    """``--from``, ``--to``, ``--tiles``, ``--keys``, ``--keys-file``."""
    for option in (
        click.option(
            "--keys-file", type=click.File(), help="One key a line, # for comments; - is stdin."
        ),
        click.option("--keys", multiple=True, help="Keys such as '2024-06-01|7-66-45', by comma."),
        click.option("--tiles", multiple=True, help="Only these tiles, by comma."),
        click.option("--to", "last", metavar="DATE", help="Last UTC day, included."),
        click.option("--from", "first", metavar="DATE", help="First UTC day, included."),
    ):
        command = option(command)
    return command


def selection_options(command: Command) -> Command:
    """`window_options`, and which of those keys to take."""
    for option in (
        click.option("--ahead", is_flag=True, help="Take days that the frontier does not cover."),
        click.option("--limit", type=click.IntRange(min=1), help="Take so many keys at the most."),
        click.option(
            "--order",
            type=click.Choice(["oldest", "newest"]),
            default="oldest",
            show_default=True,
            help="Which days go first.",
        ),
        click.option(
            "--states",
            multiple=True,
            help=f"{', '.join(LAUNCHABLE)}, or all; by comma.  [default: missing, changed]",
        ),
    ):
        command = option(command)
    return window_options(command)


def _split(texts: Iterable[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def read_selection(
    *,
    first: str | None = None,
    last: str | None = None,
    tiles: Sequence[str] = (),
    keys: Sequence[str] = (),
    keys_file: Any = None,
    states: Sequence[str] = (),
    **how: Any,
) -> Selection:
    """The options as a `Selection`; raises `UsageError` (or its kind) naming the wrong one."""
    listed = [parse_key(text) for text in _split(keys)]
    if keys_file is not None:
        listed += parse_key_lines(keys_file, where=keys_file.name)
    if listed and (first or last or tiles):
        raise click.UsageError("give --keys or a range with --from, --to and --tiles, not both")
    return Selection(
        first=parse_day(first) if first else None,
        last=parse_day(last) if last else None,
        tiles=tuple(_split(tiles)) if tiles else None,
        keys=tuple(listed) if listed or keys_file is not None else None,
        states=parse_states(_split(states)) if states else DEFAULT_STATES,
        **how,
    )


@dataclass(frozen=True, slots=True)
class Desk:
    """What a backfill command works on: the pipeline and Dagster's instance."""

    pipeline: Pipeline
    instance: dg.DagsterInstance

    @property
    def now(self) -> datetime:
        """The instant, aware UTC."""
        return datetime.now(UTC)

    @property
    def definition(self) -> SceneDefinition:
        """The pipeline's, which here knows the tiles of earlier grids too."""
        from scene_pipeline.ingest.routing import read_removed_tiles

        current = self.pipeline.definition
        return replace(current, removed_tiles=read_removed_tiles(self.pipeline.state, current))

    @property
    def site(self) -> Site:
        """Instance, state database and definition."""
        from scene_pipeline.backfill.key_states import Site

        return Site(self.instance, self.pipeline.state, self.definition)

    def list_keys(self, selection: Selection) -> list[PartitionKey]:
        """The keys asked for; raises `InvalidKeyError` for the first wrong one."""
        return list_keys(
            selection,
            self.definition,
            today=self.now.date(),
            covered=self.pipeline.last_covered_day(),
        )

    def keys_of(self, backfill_id: str) -> list[PartitionKey]:
        """The keys that a backfill asked for, of whichever assets."""
        from scene_pipeline.backfill.requests import read_request

        requests = read_request(self.site, backfill_id, today=self.now.date())
        return list(dict.fromkeys(key for request in requests for key in request.keys))

    def sort_keys(self, selection: Selection) -> tuple[list[PartitionKey], dict[str, str]]:
        """The keys asked for, those that the definition rejects apart with their reason."""
        definition = self.definition
        asked: Iterable[PartitionKey]
        if selection.keys is not None:
            asked = selection.keys
        elif selection.first is None or selection.last is None:
            asked = self.list_keys(selection)
        else:
            asked = definition.iter_window(selection.first, selection.last, selection.tiles)
        accepted: list[PartitionKey] = []
        rejected: dict[str, str] = {}
        for key in asked:
            try:
                accepted.append(definition.require(key, today=self.now.date()))
            except InvalidKeyError as error:
                rejected[str(key)] = error.reason
        return accepted, rejected


@contextmanager
def open_desk() -> Iterator[Desk]:
    """The settings' region and instance, opened for one command."""
    from scene_pipeline.defs.home import open_instance
    from scene_pipeline.defs.pipeline import Pipeline

    pipeline = Pipeline(load_settings())
    with open_instance(pipeline.settings) as instance:
        yield Desk(pipeline, instance)


def choose_assets(names: Sequence[str]) -> list[TrackedAsset]:
    """The named assets in wave order; all of them for none."""
    chosen = {parse_asset(name) for name in names}
    return [asset for asset in WAVES if not chosen or asset in chosen]


def find_workspace(named: Path | None) -> str | None:
    """The workspace file to launch through: the named one, else the one in this folder."""
    if named is not None:
        return str(named)
    return "workspace.yaml" if Path("workspace.yaml").is_file() else None
