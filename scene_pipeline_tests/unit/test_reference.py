"""docs/reference.md says what the code says, and the code says enough."""

from __future__ import annotations

import inspect
import re

import click
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from scene_pipeline.cli.main import cli
from scene_pipeline.ingest.sources.options import ArchiveOptions, SimulatorOptions, StacOptions
from scene_pipeline.settings import FinalitySettings, Settings, StreamSettings
from scene_pipeline_tests.reference import TARGET, section_of, walk_commands, write_reference

COMMANDS = dict(walk_commands())
SECTIONS: list[type[BaseModel]] = [
    Settings, StreamSettings, FinalitySettings, StacOptions, ArchiveOptions, SimulatorOptions,
    *filter(None, map(section_of, Settings.model_fields.values())),
]  # fmt: skip


def test_the_page_is_a_fresh_one() -> None:
    assert TARGET.read_text(encoding="utf-8") == write_reference(), "run `make docs`"


def test_every_setting_is_described() -> None:
    bare = [
        f"{section.__name__}.{name}"
        for section in SECTIONS
        for name, field in section.model_fields.items()
        if not field.description and section_of(field) is None
    ]
    assert bare == []
    assert len(SECTIONS) == 12


def test_every_option_is_described_and_every_command_is_here() -> None:
    assert len(COMMANDS) >= 19
    bare = [
        f"{words} {option.name}"
        for words, command in COMMANDS.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert bare == []


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_with_findings_says_when_it_exits_with_them(words: str) -> None:
    callback = COMMANDS[words].callback
    assert callback is not None
    source = inspect.getsource(inspect.unwrap(callback))
    says = "Exits with" in (COMMANDS[words].help or "")
    returns_a_code = re.search(r"return (?!0$)", source, re.MULTILINE) is not None
    assert says == returns_a_code


@pytest.mark.parametrize("words", ["", *COMMANDS])
def test_help_fits_80_columns(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(cli, [*words.split(), "--help"])
    assert result.exit_code == 0
    assert [line for line in result.output.splitlines() if len(line) > 80] == []
