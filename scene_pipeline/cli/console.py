"""What every command shares: one result as text or JSON, progress, and errors in three lines.

Results go to standard output, progress and errors to standard error, so that a pipe holds the
result alone. Colour and moving bars are for terminals; a log file gets plain lines.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import wraps
from typing import Any

import click
from rich.console import Console as RichConsole
from rich.table import Table

from scene_pipeline.errors import ScenePipelineError

__all__ = ["Advance", "Console", "pass_console", "print_error"]

# Called with the units done so far and a few words on what is being done.
Advance = Callable[[int, str], None]
_LOG_EVERY_S = 5.0
_LOG_WIDTH = 80


class Console:
    """Prints one command's outcome."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._out = _rich(sys.stdout)
        self._err = _rich(sys.stderr)

    def result(self, document: Mapping[str, Any], show: Callable[[], None]) -> None:
        """Print ``document`` as JSON, or let ``show`` print it for people."""
        if self.as_json:
            print(json.dumps(document, default=_plain, indent=2))
        else:
            show()

    def line(self, text: str = "") -> None:
        """One line of the result; `[bold]`-style markup is allowed."""
        self._out.print(text)

    def note(self, text: str) -> None:
        """One line about what is going on."""
        if not self.as_json:
            self._err.print(text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A plain table; numbers to the right."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place, column in enumerate(columns):
            numeric = bool(rows) and all(isinstance(row[place], int | float) for row in rows)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*("" if value is None else _cell(value) for value in row))
        self._out.print(table)

    @contextmanager
    def progress(self, title: str, *, total: int | None = None) -> Iterator[Advance]:
        """Show how far a wait is: a bar on a terminal, now and then a line elsewhere."""
        if self.as_json:
            yield _stay_silent
        elif self._err.is_terminal:
            yield from self._show_bar(title, total)
        else:
            yield from self._show_lines(title, total)

    def _show_bar(self, title: str, total: int | None) -> Iterator[Advance]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        with Progress(
            "{task.description}",
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            "[dim]{task.fields[text]}",
            console=self._err,
        ) as bar:
            task = bar.add_task(title, total=total, text="")
            yield lambda done, text: bar.update(task, completed=done, text=text)

    def _show_lines(self, title: str, total: int | None) -> Iterator[Advance]:
        said = started = time.monotonic()

        def advance(done: int, text: str) -> None:
            nonlocal said
            now = time.monotonic()
            if now - said >= _LOG_EVERY_S:
                said = now
                of = f"/{total}" if total else ""
                self.note(f"{title}: {done}{of} {text} ({now - started:.0f} s)")

        yield advance


def _stay_silent(done: int, text: str) -> None:
    del done, text


def _rich(stream: Any) -> RichConsole:
    terminal = stream.isatty()
    # Outside a terminal lines stay whole: a log or a grep wants one fact a line.
    return RichConsole(
        file=stream,
        highlight=False,
        soft_wrap=not terminal,
        width=None if terminal else _LOG_WIDTH,
    )


def _plain(value: object) -> str:
    """Dates and instants as ISO 8601; keys and paths as people write them."""
    return value.isoformat() if isinstance(value, date) else str(value)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def pass_console(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its `Console` as first argument, and the option ``--json``."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    @wraps(command)
    def run(*, as_json: bool, **arguments: Any) -> Any:
        everywhere = bool(click.get_current_context().find_root().params.get("as_json"))
        return command(Console(as_json=as_json or everywhere), **arguments)

    return run


def print_error(error: ScenePipelineError, *, as_json: bool) -> None:
    """What happened, where, and what to do: three lines, or a JSON document on stdout."""
    if as_json:
        parts = {"what": error.what, "where": error.where, "next_step": error.next_step}
        document = {"error": {"kind": type(error).__name__, **parts, "exit_code": error.exit_code}}
        print(json.dumps(document, indent=2))
        return
    console = _rich(sys.stderr)
    console.print("error: ", end="", style="bold red")
    console.print(error.what, markup=False)
    if error.where:
        console.print(f"where: {error.where}", markup=False)
    if error.next_step:
        console.print(f"to do: {error.next_step}", markup=False)
