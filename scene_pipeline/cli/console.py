"""What every command shares: one result as text or JSON, progress, and errors in three lines.

Results go to standard output, progress and errors to standard error, so that a pipe holds the
result alone. Colour and moving bars are for terminals; a log file gets plain lines.
"""

from __future__ import annotations

import json
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

import click
from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from scene_pipeline.errors import ScenePipelineError

__all__ = ["Advance", "Console", "pass_console", "print_error", "shorten_path"]

_PATIENCE_S = 2.0
_LOG_EVERY_S = 5.0
# Outside a terminal lines stay whole: a log or a grep wants one fact a line.
_LOG_WIDTH = 10_000


class Advance(Protocol):
    """Called with the units done so far, a few words, and how many there are where that is new."""

    def __call__(self, done: int, text: str, of: int | None = None) -> None: ...


class Console:
    """Prints one command's outcome."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._out = _rich(sys.stdout)
        self._err = _rich(sys.stderr)
        self._stop_waiting: Callable[[], None] = lambda: None

    def result(self, document: Mapping[str, Any], show: Callable[[], None]) -> None:
        """Print ``document`` as JSON, or let ``show`` print it for people."""
        self._stop_waiting()
        if self.as_json:
            print(json.dumps(document, default=_plain, indent=2))
        else:
            show()

    def line(self, text: str | Text = "", *, lead: str = "", style: str = "bold") -> None:
        """One line of the result, ``lead`` in ``style`` before it; never read as markup.

        On a terminal it is wrapped between words, and what follows is indented; a command is
        printed with `command`.
        """
        self._stop_waiting()
        if isinstance(text, str):
            text = Text(self._wrap(lead + text))
            text.stylize(style, 0, len(lead))
        self._out.print(text, soft_wrap=True)

    def _wrap(self, text: str) -> str:
        if not self._out.is_terminal:
            return text
        indent = " " * (len(text) - len(text.lstrip()) + 4)
        return "\n".join(
            textwrap.wrap(
                text,
                self._out.width,
                subsequent_indent=indent,
                drop_whitespace=True,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )

    def command(self, text: str, *, lead: str = "") -> None:
        """A command to copy: one line however long, so that the copy has no break in it."""
        self._stop_waiting()
        self._out.print(Text(lead + text), soft_wrap=True)

    def note(self, text: str) -> None:
        """One line about what is going on."""
        self._stop_waiting()
        if not self.as_json:
            self._err.print(text, markup=False)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A plain table; numbers to the right. Where it is too wide, words wrap in text alone."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place, column in enumerate(columns):
            numeric = bool(rows) and all(isinstance(row[place], int | float) for row in rows)
            table.add_column(
                column,
                justify="right" if numeric else "left",
                overflow="fold",
                no_wrap=numeric or column in {"complete through", "state", "role"},
            )
        for row in rows:
            table.add_row(*(Text("" if value is None else _cell(value)) for value in row))
        self._out.print(table)

    @contextmanager
    def waiting(self, title: str) -> Iterator[None]:
        """On a terminal, after two seconds without a word: ``title``, and that it goes on."""
        if self.as_json or not self._err.is_terminal:
            yield
            return
        spinner = self._err.status(title)
        lock, over = threading.Lock(), threading.Event()

        def start() -> None:
            with lock:
                if not over.is_set():
                    spinner.start()

        def stop() -> None:
            with lock:
                if not over.is_set():
                    over.set()
                    spinner.stop()

        timer = threading.Timer(_PATIENCE_S, start)
        timer.daemon = True
        timer.start()
        self._stop_waiting = stop
        try:
            yield
        finally:
            stop()
            timer.cancel()

    @contextmanager
    def progress(self, title: str, *, total: int | None = None) -> Iterator[Advance]:
        """Show how far a wait is: a bar on a terminal, now and then a line elsewhere."""
        self._stop_waiting()
        if self.as_json:
            yield _stay_silent
        elif self._err.is_terminal:
            yield from self._show_bar(title, total)
        else:
            yield from self._show_lines(title, total)

    def _show_bar(self, title: str, total: int | None) -> Iterator[Advance]:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(20),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", style="dim", markup=False),
        )
        with Progress(*columns, console=self._err) as bar:
            task = bar.add_task(title, total=total, text="", count="")

            def advance(done: int, text: str, of: int | None = None) -> None:
                whole = of or total
                count = f"{done}/{whole}" if whole else f"{done}"
                bar.update(task, completed=done, total=whole, text=text, count=count)

            yield advance

    def _show_lines(self, title: str, total: int | None) -> Iterator[Advance]:
        said = started = time.monotonic()

        def advance(done: int, text: str, of: int | None = None) -> None:
            nonlocal said
            now = time.monotonic()
            if now - said >= _LOG_EVERY_S:
                said = now
                whole = of or total
                count = f"{done}/{whole}" if whole else f"{done}"
                self.note(f"{title}: {count} {text} ({now - started:.0f} s)")

        yield advance


def _stay_silent(done: int, text: str, of: int | None = None) -> None:
    del done, text, of


def _rich(stream: Any) -> RichConsole:
    terminal = stream.isatty()
    return RichConsole(file=stream, highlight=False, width=None if terminal else _LOG_WIDTH)


def shorten_path(address: str) -> str:
    """A path below this folder as it is typed here; anything else as it is."""
    here = f"{Path.cwd()}/"
    return address.removeprefix(here)


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
        console = Console(as_json=as_json or everywhere)
        with console.waiting(f"{click.get_current_context().command_path} …"):
            return command(console, **arguments)

    return run


def print_error(error: ScenePipelineError, *, as_json: bool) -> None:
    """What happened, where, and what to do: three lines, or a JSON document on stdout."""
    if as_json:
        parts = {"what": error.what, "where": error.where, "next_step": error.next_step}
        document = {"error": {"kind": type(error).__name__, **parts, "exit_code": error.exit_code}}
        print(json.dumps(document, indent=2))
        return
    console = _rich(sys.stderr)
    lines = (("error: ", "bold red", error.what), ("where: ", "", error.where),
             ("to do: ", "", error.next_step))  # fmt: skip
    for label, style, text in lines:
        if text:
            console.print(Text.assemble((label, style), " ".join(text.split())))
