"""Write ``docs/reference.md`` from the code: ``make docs``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import click
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from scene_pipeline.backfill.states import STATES
from scene_pipeline.cli.main import cli
from scene_pipeline.errors import ScenePipelineError
from scene_pipeline.ingest.sources.options import ArchiveOptions, SimulatorOptions, StacOptions
from scene_pipeline.ingest.sources.presets import PRESETS
from scene_pipeline.scenes.schema import SCENE_COLUMNS, SCHEMA_VERSION
from scene_pipeline.settings import FinalitySettings, Settings, StreamSettings

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
ENV = "SCENE_PIPELINE_"

_HEAD = """\
# Reference

Written from the code by `make docs`; a test compares. Text here is changed there.

- [Settings](#settings): [streams](#streams), [their options](#options-of-streams),
  [presets](#presets)
- [Commands](#commands): [exit codes](#exit-codes)
- [Columns](#columns) of files and table
"""

_SETTINGS = """\
## Settings

Read once, strongest first: variables of the environment, then `scene_pipeline.toml` in the current
folder (or the file that `SCENE_PIPELINE_CONFIG` names), then the defaults, which are the demo. A
name that is not here is refused. Passwords belong in the environment.
"""

_STREAMS = """\
### Streams

One `[[streams]]` table each. Give exactly one of `source`, `url` and `path`. In the environment
all of them are one JSON list, `SCENE_PIPELINE_STREAMS`.
"""


def write_reference() -> str:
    """The whole page."""
    parts = [_HEAD, _SETTINGS, *_describe_settings(), *_describe_options(), *_describe_presets()]
    parts += ["## Commands\n", *_describe_exit_codes(), *_describe_commands(), _describe_columns()]
    return "\n".join(parts)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"

    return line(head) + "|" + "---|" * len(head) + "\n" + "".join(map(line, rows))


# --- settings ------------------------------------------------------------------------------------


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The class of a field that is a table of its own."""
    kind = field.annotation
    return kind if inspect.isclass(kind) and issubclass(kind, BaseModel) else None


def _describe_settings() -> Iterator[str]:
    fields = Settings.model_fields
    yield _fields_table(
        {name: field for name, field in fields.items() if section_of(field) is None}, variable=ENV
    )
    for name, field in fields.items():
        section = section_of(field)
        if section is not None:
            yield f"### [{name}]\n\n{_first_lines(section)}\n"
            yield _fields_table(section.model_fields, variable=f"{ENV}{name.upper()}__")
    yield _STREAMS
    yield _fields_table(StreamSettings.model_fields)
    yield f"`finality`: {_first_lines(FinalitySettings)}\n"
    yield _fields_table(FinalitySettings.model_fields)


def _fields_table(fields: dict[str, FieldInfo], *, variable: str = "") -> str:
    head = ("setting", "type", "default", *(("variable",) if variable else ()), "what it is")
    return _table(
        head,
        [
            (
                f"`{name}`",
                name_type(field.annotation, field.metadata),
                _name_default(field),
                *((f"`{variable}{name.upper()}`",) if variable else ()),
                field.description or "",
            )
            for name, field in fields.items()
        ],
    )


def name_type(kind: Any, metadata: list[Any]) -> str:
    """A type as people write it: ``number ≥ 1``, ``"a" or "b"``."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return name_type(inner[0], metadata)
    if origin in {Union, UnionType}:
        return " or ".join(name_type(each, metadata) for each in inner if each is not NoneType)
    if origin is Literal:
        return ", ".join(f'"{each}"' for each in inner)
    if origin is tuple:
        one = set(inner) - {Ellipsis}
        count = "list" if Ellipsis in inner else f"list of {len(inner)}"
        (item,) = one
        return "tables" if item is StreamSettings else f"{count}: {name_type(item, [])}"
    if origin is dict or (inspect.isclass(kind) and issubclass(kind, BaseModel)):
        return "table"
    names = {
        str: "text", int: "whole number", float: "number", bool: "true, false", date: "date",
        Path: "path", SecretStr: "secret text",
    }  # fmt: skip
    return " ".join([names[kind], *_bounds(metadata)])


def _bounds(metadata: list[Any]) -> Iterator[str]:
    least = [limit.ge for limit in metadata if isinstance(limit, annotated_types.Ge)]
    most = [limit.le for limit in metadata if isinstance(limit, annotated_types.Le)]
    above = [limit.gt for limit in metadata if isinstance(limit, annotated_types.Gt)]
    if least and most:
        yield f"from {least[0]} to {most[0]:,}"
    elif least:
        yield f"of at least {least[0]}"
    elif above:
        yield f"above {above[0]}"


def _name_default(field: FieldInfo) -> str:
    default: Any = field.default
    if field.default_factory is not None:
        known = {"dagster_home": "`.scene_pipeline/dagster_home`", "_demo_streams": "the demo's"}
        factory = getattr(field.default_factory, "__name__", "")
        if factory in {"dict", "list"}:
            return "none"
        return known.get(factory, known["dagster_home"])
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    if default is PydanticUndefined or default is None or default in ("", ()):
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`[{', '.join(_quote(each) for each in default)}]`"
    return f"`{_quote(default)}`"


def _quote(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


def _first_lines(thing: Any) -> str:
    """A docstring, for Markdown: one backtick a name."""
    return (inspect.getdoc(thing) or "").replace("``", "`")


def _describe_options() -> Iterator[str]:
    yield "### Options of streams\n\nThe table `options` of a stream, by kind of source.\n"
    for kind in (StacOptions, ArchiveOptions, SimulatorOptions):
        yield f"{_first_lines(kind)}\n"
        yield _fields_table(kind.model_fields)


def _describe_presets() -> Iterator[str]:
    yield "### Presets\n\nWhat we declare of providers, and why; a stream's `finality` overrides.\n"
    rows = []
    for name, preset in PRESETS.items():
        lags = {"": preset.declaration.lag_hours, **preset.lag_hours}
        hours = ", ".join(f"{kind} {value:g} h".strip() for kind, value in lags.items() if value)
        rows.append((f"`{name}`", preset.url, hours, preset.reason))
    yield _table(("source", "root", "lag", "reason"), rows)


# --- commands ------------------------------------------------------------------------------------


def _describe_exit_codes() -> Iterator[str]:
    yield "### Exit codes\n"
    meanings = {
        0: "fine",
        1: "findings: failed or missing keys, faults in data",
        2: "the request is wrong; nothing was started",
        3: "a service or provider did not answer, or broke its contract; a later try may help",
        130: "interrupted at the keyboard",
    }
    errors: dict[int, list[str]] = {}
    for kind in _kinds(ScenePipelineError):
        errors.setdefault(kind.exit_code, []).append(kind.__name__)
    yield _table(
        ("code", "meaning", "errors that end with it"),
        [
            (str(code), text, ", ".join(f"`{name}`" for name in sorted(errors.pop(code, []))))
            for code, text in meanings.items()
        ],
    )
    assert not errors, f"a code that is not described: {errors}"


def _kinds(kind: type[ScenePipelineError]) -> Iterator[type[ScenePipelineError]]:
    for below in kind.__subclasses__():
        if below.__module__ == ScenePipelineError.__module__:
            yield below
            yield from _kinds(below)


def walk_commands(
    group: click.Group = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from walk_commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def _describe_commands() -> Iterator[str]:
    for words, command in walk_commands():
        arguments = [p.make_metavar(click.Context(command)) for p in command.params
                     if isinstance(p, click.Argument)]  # fmt: skip
        options = [p for p in command.params if isinstance(p, click.Option) and p.name != "as_json"]
        shown = " ".join(["scene-pipeline", words, *arguments])
        yield f"### {words}\n\n`{shown}`\n\n{_plain_help(command)}\n"
        if options:
            yield _table(("option", "default", "what it does"), [*map(_option_row, options)])


def _plain_help(command: click.Command) -> str:
    """The help text; a block that click keeps as it is becomes a list."""
    text = inspect.cleandoc(command.help or "")
    return re.sub(
        r"\x08\n((?:.+\n?)+)",
        lambda found: re.sub(r"^(\S+)  ", r"\1. ", found[1], flags=re.M),
        text,
    )


def _option_row(option: click.Option) -> tuple[str, ...]:
    context = click.Context(click.Command("any"))
    value = "" if option.is_flag else f" {option.metavar or option.make_metavar(context)}"
    default = "" if option.is_flag or option.multiple or option.default is None else option.default
    shown = str(default) if not str(default).startswith("Sentinel") else ""
    words = re.sub(r"  \[default: (.+)\]", r" Default: \1.", option.help or "")
    names = ", ".join(f"`{name}{value}`" for name in option.opts)
    return names, f"`{shown}`" if shown else "", words + (" Required." if option.required else "")


def _describe_columns() -> str:
    states = ", ".join(f"`{state}`" for state in STATES)
    return (
        f"## Columns\n\nOf every GeoParquet file (schema version {SCHEMA_VERSION}) and of the table"
        " (where the geometry is `geom`, and `bbox` is left out).\n\n"
        + _table(
            ("column", "type", "null", "from"),
            [
                (f"`{c.name}`", f"`{_shorten(str(c.type))}`", "yes" if c.nullable else "", c.doc)
                for c in SCENE_COLUMNS
            ],
        )
        + f"\nStates of a key, the first that applies: {states}.\n"
    )


def _shorten(kind: str) -> str:
    return re.sub(r" not null|item: ", "", kind)


if __name__ == "__main__":
    TARGET.write_text(write_reference(), encoding="utf-8")
