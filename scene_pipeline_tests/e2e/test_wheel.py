"""The wheel, built and installed outside the checkout, runs the demo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.full


def run(*command: str | Path, cwd: Path) -> str:
    # Nothing of the checkout is seen: neither its folder nor its environment.
    kept = {k: v for k, v in os.environ.items() if k in {"PATH", "HOME", "UV_CACHE_DIR", "TMPDIR"}}
    kept |= {k: v for k, v in os.environ.items() if k.startswith(("UV_", "PIP_"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=kept, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_runs_the_demo_outside_the_checkout(tmp_path: Path) -> None:
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed: the wheel is installed with it")
    source = tmp_path / "source"
    tracked = run("git", "ls-files", cwd=PROJECT).splitlines()
    for name in tracked:  # a clean tree, as a release is built from
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, source / name)
    run(uv, "build", "--wheel", "--quiet", "--out-dir", tmp_path / "dist", cwd=source)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    shutil.rmtree(source)

    run(uv, "venv", "--quiet", "--python", sys.executable, "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    install = (uv, "pip", "install", "--quiet", "--python", python)
    run(*install, "--require-hashes", "-r", PROJECT / "requirements.lock", cwd=tmp_path)
    run(*install, "--no-deps", wheel, cwd=tmp_path)
    where = run(python, "-c", "import scene_pipeline; print(scene_pipeline.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)

    away = tmp_path / "away"
    away.mkdir()
    said = run(tmp_path / "venv/bin/scene-pipeline", "demo", cwd=away)
    assert "partitions of fiji: 42 empty, 42 materialized" in said
    assert list(away.glob(".scene_pipeline/lake/fiji/scene_footprints/*/*.parquet"))
    doctor = run(tmp_path / "venv/bin/scene-pipeline", "doctor", cwd=away)
    assert "fault" not in doctor
