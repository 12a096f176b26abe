"""What people see: on a terminal of 80 columns, and in a file."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from scene_pipeline.cli.console import Console, print_error
from scene_pipeline.cli.main import main
from scene_pipeline.errors import SourceRefusedError
from scene_pipeline.settings import load_settings
from scene_pipeline_tests.services.built_region import BuiltRegion

# Brackets that a markup language would swallow, or stumble over.
HOSTILE = "[/red] [bold]x[/] [link=y]"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# One line, however long, so that it can be copied.
_COMMAND = re.compile(r"scene-pipeline ")
COMMANDS = (
    "partitions status",
    "frontier show",
    "streams list",
    "quarantine list",
    "doctor",
    "init",
    "backfill plan --states all",
    "backfill status",
    "backfill diagnose",
    "backfill launch",
    "backfill diagnose nothing",
    "ingest run --stream nobody",
    "report",
)


class _Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


class Screen:
    """Both streams of this process while it is entered: a terminal, or a file."""

    def __init__(self, *, terminal: bool) -> None:
        self.terminal = terminal
        self.out, self.err = _Stream(terminal=terminal), _Stream(terminal=terminal)

    @contextmanager
    def shown(self) -> Iterator[None]:
        with redirect_stdout(self.out), redirect_stderr(self.err):
            yield
        if not self.terminal:
            assert not set("\x1b\r") & set(self.text)

    @property
    def text(self) -> str:
        """All that was printed, as it was sent."""
        return self.out.getvalue() + self.err.getvalue()

    @property
    def lines(self) -> list[str]:
        """What is read: without colour, and of a moving bar its last state."""
        plain = _ESCAPES.sub("", self.text)
        return [line.rpartition("\r")[2] for line in plain.splitlines()]


@pytest.fixture(params=["terminal", "file"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Screen:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    return Screen(terminal=request.param == "terminal")


def test_text_is_never_read_as_markup(screen: Screen) -> None:
    with screen.shown():
        console = Console()
        console.line(HOSTILE, lead=HOSTILE)
        console.command(HOSTILE)
        console.note(HOSTILE)
        console.table(["reason"], [[HOSTILE]])
        with console.progress("ingest", total=2) as advance:
            advance(1, HOSTILE)
        print_error(SourceRefusedError(HOSTILE, where=HOSTILE, next_step=HOSTILE), as_json=False)
    # The line has two; the progress of a moment is seen on a terminal alone.
    assert "\n".join(screen.lines).count(HOSTILE) >= (9 if screen.terminal else 8)


def test_an_error_is_three_lines_in_a_file(screen: Screen) -> None:
    error = SourceRefusedError("what\n  more", where="where " * 30, next_step="do\nthis")
    with screen.shown():
        print_error(error, as_json=False)
    assert len(screen.lines) == (3 if not screen.terminal else 5)
    assert screen.lines[0] == "error: what more"
    assert screen.lines[-1] == "to do: do this"
    assert screen.terminal == ("\x1b" in screen.err.getvalue())


def test_lines_wrap_between_words_and_commands_do_not(screen: Screen) -> None:
    with screen.shown():
        console = Console()
        console.line("  " + "word " * 40)
        console.command("scene-pipeline " + "--keys x " * 20)
    *wrapped, command = screen.lines
    assert len(command) > 80
    if screen.terminal:
        assert len(wrapped) == 3
        assert all(len(line) <= 80 and line.endswith("word") for line in wrapped)
        assert all(line.startswith("      word") for line in wrapped[1:])
    else:
        assert len(wrapped) == 1


@pytest.fixture
def region(built_region: BuiltRegion, monkeypatch: pytest.MonkeyPatch) -> Iterator[BuiltRegion]:
    monkeypatch.setenv("SCENE_PIPELINE_CONFIG", str(built_region.config))
    load_settings.cache_clear()
    yield built_region
    load_settings.cache_clear()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_fits_80_columns(
    screen: Screen, region: BuiltRegion, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(region.base)
    with screen.shown(), pytest.raises(SystemExit) as left:
        main(command.split())
    assert left.value.code in {0, 1, 2, 3}
    assert screen.lines
    if screen.terminal:
        wide = [line for line in screen.lines if len(line) > 80 and not _COMMAND.search(line)]
        # An address is one word: a break in it could not be copied.
        assert [line for line in wide if not line.strip().startswith(("/", "sqlite:"))] == []
