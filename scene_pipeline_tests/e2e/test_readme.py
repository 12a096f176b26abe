"""The README's commands and output, run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()

# What may differ between two runs: seconds, and the folder it ran in.
_SECONDS = re.compile(r"\d+\.\d s")


def find_block(language: str, containing: str) -> str:
    """The fenced block of ``language`` that contains a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
    (block,) = [block for block in blocks if containing in block]
    return block


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scene_pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def normalise(text: str) -> str:
    text = _SECONDS.sub("… s", text.replace(f"{Path.cwd()}{os.sep}", ""))
    return re.sub(r"[ \t]+", " ", text)


def test_the_demo_prints_what_the_readme_shows_and_then_plans_nothing() -> None:
    shown = [normalise(line) for line in find_block("text", "planned now").splitlines() if line]
    first = run_here("demo")
    assert first.returncode == 0, first.stderr
    printed = [normalise(line) for line in first.stdout.splitlines()]
    assert len(shown) >= 8
    assert [line for line in shown if line not in printed] == []

    second = run_here("demo")
    assert second.returncode == 0, second.stderr
    assert "planned now: scene_footprints 0, footprint_table 0, daily_coverage 0" in second.stdout


def test_the_commands_for_ones_own_archive_run_in_their_order() -> None:
    """With the README's own settings file; its provider alone is swapped for the simulator."""
    settings = find_block("toml", "[[streams]]").split("[[streams]]")[0]
    stream = '[[streams]]\nsource = "simulator"\ncollection = "sim-optical"\noptions = {days = 8}\n'
    Path("scene_pipeline.toml").write_text(settings + stream)
    commands = [
        line.removeprefix("$ ").split("#")[0].strip()
        for line in find_block("console", "scene-pipeline init").splitlines()
    ]
    assert len(commands) >= 5
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "scene-pipeline"
        done = run_here(*arguments)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([a-z-]+)", README))))
def test_every_make_target_of_the_readme_exists(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_every_folder_of_the_map_exists() -> None:
    folders = re.findall(r"^\| `([a-z_/]+/)` \|", README, flags=re.MULTILINE)
    assert len(folders) >= 10
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
