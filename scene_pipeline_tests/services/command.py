"""Our own commands, run in this process as a person runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scene_pipeline.cli.main import main
from scene_pipeline.settings import load_settings

# Two days of the simulated satellite over Fiji.
FIJI = """\
region = "fiji"
start_date = 2024-06-01
end_date = 2024-06-03
area = [175.5, -21.0, -178.0, -17.0]
zoom = 7
[[streams]]
source = "simulator"
collection = "sim-optical"
"""
CONFIG = FIJI + 'name = "sim"\n'


@dataclass(frozen=True)
class Outcome:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The output of a command with ``--json``."""
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed


# Arguments, and settings by name: ``command("init", ZOOM="7")``.
Command = Callable[..., Outcome]


def make_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Command:
    """Runs a command line in ``folder``, which gets `CONFIG` as its settings, and reads it."""
    (folder / "scene_pipeline.toml").write_text(CONFIG)

    def run(*arguments: str, **environment: str) -> Outcome:
        load_settings.cache_clear()
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(f"SCENE_PIPELINE_{name}", value)
            with pytest.raises(SystemExit) as stop:
                main(list(arguments))
        load_settings.cache_clear()
        captured = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), captured.out, captured.err)

    return run
