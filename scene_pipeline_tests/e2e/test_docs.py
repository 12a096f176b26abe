"""Every command of the README and the docs: run in its order, or listed here with the reason."""

from __future__ import annotations

import contextlib
import gc
import io
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from scene_pipeline.backfill.claims import LEASE_S
from scene_pipeline.backfill.recommend import History, recommend_policy
from scene_pipeline.cli.main import cli, main
from scene_pipeline.ingest.sources.simulator import simulate_items
from scene_pipeline.settings import load_settings, read_settings
from scene_pipeline_tests.conftest import require_service
from scene_pipeline_tests.services.built_region import build_region
from scene_pipeline_tests.services.http_server import serve
from scene_pipeline_tests.services.memory_stac import MemoryStac
from scene_pipeline_tests.services.pages_of_docs import (
    PAGES,
    ROOT,
    Line,
    read_blocks,
    read_inline,
    read_lines,
    read_page,
)
from scene_pipeline_tests.services.postgres import PostgresCluster, find_binaries, run_cluster
from scene_pipeline_tests.services.s3 import S3Server

BENCHMARKS = ROOT / "scene_pipeline_tests" / "benchmarks"
ALPS = (6.0, 45.0, 12.0, 48.0)

# Command, as the page has it → why it is not run here.
NOT_RUN = {
    ". .venv/bin/activate": "the test has an interpreter of its own",
    "mkdir alps && cd alps": "the test has a folder of its own",
    "scene-pipeline dev": "ends when someone ends it; test_dagster_dev.py starts it",
    "scene-pipeline backfill retry BACKFILL": "needs a daemon; test_daemon_backfill.py has one",
}
# Page and language → the test that runs those blocks.
ELSEWHERE = {
    ("README.md", "console"): "test_readme.py",
    ("README.md", "toml"): "test_readme.py",
    ("README.md", "text"): "test_readme.py",
    ("docs/opening.md", "python"): "test_opening.py",
    ("docs/opening.md", "sql"): "test_opening.py",
    ("docs/opening.md", "sh"): "test_opening.py",
    ("docs/frontier.md", ""): "a drawing",
}
RUN_HERE = {
    ("docs/operating.md", "console"), ("docs/operating.md", "sql"),
    ("docs/policies.md", "console"),
    ("docs/own-archive.md", "toml"), ("docs/own-archive.md", "console"),
    ("docs/missions.md", "toml"), ("docs/missions.md", "console"),
    ("docs/production.md", "console"),
    ("docs/kubernetes.md", "toml"),
}  # fmt: skip


@dataclass
class Shell:
    """Runs a page's commands in one folder, ours in this process.

    ``words`` are what the page's addresses stand for. ``BACKFILL`` is the newest backfill that a
    command named, or that one which exited with findings.
    """

    folder: Path
    words: Mapping[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    backfill: str = ""

    def run(self, line: Line, *, codes: tuple[int, ...] | None = None) -> str:
        """What a line printed; its exit code must be the promised one, or one of ``codes``."""
        if line.command in NOT_RUN:
            return ""
        command = self._replace(line.command)
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.environment[name] = value.strip('"').replace("$PWD", str(self.folder))
            return ""
        code, printed = self._execute(command)
        assert code in (codes or (line.exit_code,)), f"{command}\nexit code {code}\n{printed}"
        found = re.findall(r"(?:backfill |^)([0-9a-f]{10})\b", printed, flags=re.MULTILINE)
        if found and (code == 1 or not self.backfill):
            self.backfill = found[-1]
        return printed

    def run_page(self, page: str) -> None:
        """Write a page's settings and run its console blocks, in order."""
        for block in read_blocks(page, "toml", "console"):
            if block.language == "toml":
                (self.folder / "scene_pipeline.toml").write_text(self._replace(block.text))
                continue
            for line in read_lines(block):
                self.run(line)

    def _replace(self, text: str) -> str:
        for theirs, ours in self.words.items():
            text = text.replace(theirs, ours)
        return text.replace("BACKFILL", self.backfill or "BACKFILL")

    def _execute(self, command: str) -> tuple[int, str]:
        words = shlex.split(command)
        own = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name, value in (self.environment | own).items():
                patch.setenv(name, value)
            words = words[len(own) :]
            if words[0] == "scene-pipeline":
                return _call(words[1:])
            done = subprocess.run(
                ["sh", "-ec", command], capture_output=True, text=True, check=False
            )
            return done.returncode, done.stdout + done.stderr


def _call(arguments: list[str]) -> tuple[int, str]:
    printed = io.StringIO()
    load_settings.cache_clear()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main(arguments)
        except SystemExit as left:
            return int(left.code or 0), printed.getvalue()
        finally:
            load_settings.cache_clear()
    raise AssertionError("main always exits")


# --- what there is -------------------------------------------------------------------------------


def test_every_block_is_run_somewhere() -> None:
    here = {(page, block.language) for page in PAGES for block in read_blocks(page)}
    assert here == RUN_HERE | set(ELSEWHERE)
    files = {path.name for path in (ROOT / "scene_pipeline_tests" / "e2e").iterdir()}
    assert {test for test in ELSEWHERE.values() if test.endswith(".py")} <= files


def test_every_reason_for_not_running_is_of_a_command_that_stands_there() -> None:
    told = {line.command for page in PAGES for block in read_blocks(page, "console")
            for line in read_lines(block)}  # fmt: skip
    told |= {command for page in PAGES for command in read_inline(page)}
    assert set(NOT_RUN) <= told


@pytest.mark.parametrize("page", PAGES)
def test_settings_on_the_pages_are_settings(page: str) -> None:
    for block in read_blocks(page, "toml"):
        read_settings(**tomllib.loads(block.text))


# The reference is written from the commands themselves.
@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/reference.md"])
def test_commands_in_the_text_are_commands(page: str) -> None:
    """Words and options, parsed by the real command; nothing is run."""
    for command in read_inline(page):
        words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)][1:]
        found: click.Command = cli
        while isinstance(found, click.Group) and words:
            below = found.get_command(click.Context(found), words[0])
            assert below is not None, command
            found, words = below, words[1:]
        if "…" in words or isinstance(found, click.Group):
            continue
        found.make_context("docs", words)


def test_numbers_and_benchmarks_of_the_pages_are_those_of_the_code() -> None:
    assert LEASE_S == 120
    assert "two minutes" in read_page("docs/operating.md")
    sources = "".join(path.read_text() for path in BENCHMARKS.glob("bench_*.py"))
    names = re.findall(r'@benchmark\("(\w+)"', sources)
    asked = {
        name for page in PAGES for name in re.findall(r"make bench ONLY=(\w+)", read_page(page))
    }
    assert "backfill" in asked
    for part in asked - {"name"}:
        assert any(part in name for name in names), part


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", read_page(page)):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_readme_links_every_page() -> None:
    linked = set(re.findall(r"\]\((docs/[a-z-]+\.md)\)", read_page("README.md")))
    assert {page for page in PAGES if page.startswith("docs/")} == linked


# --- what it does --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Three days of the demo's region, as `make demo` leaves them."""
    region = build_region(tmp_path_factory.mktemp("docs"))
    shell = Shell(region.base)
    shell.run(Line("scene-pipeline init"))
    return shell


def test_operating(shell: Shell) -> None:
    shell.run_page("docs/operating.md")
    commands = [each for each in read_inline("docs/operating.md") if "STREAM" not in each]
    assert len(commands) >= 20
    for command in commands:
        shell.run(Line(command), codes=(0, 1))


def test_policies(shell: Shell) -> None:
    shell.run_page("docs/policies.md")


@pytest.mark.parametrize("seconds", [None, 30, 200, 800, 4000])
def test_the_table_of_policies_is_the_rule(seconds: float | None) -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \| `(\w+)` \| (.+?) \|$", read_page("docs/policies.md"),
                      flags=re.MULTILINE)  # fmt: skip
    by_time = {when: (policy, keys) for when, _, policy, keys in rows}
    limits = {60: "under 1 minute", 300: "under 5 minutes", 900: "under 15 minutes"}
    when = "not known yet" if seconds is None else next(
        (words for limit, words in limits.items() if seconds < limit), "longer")  # fmt: skip
    advice = recommend_policy(History(done=100, seconds_per_key=seconds))
    assert by_time[when] == (advice.policy, f"{advice.fewest} to {advice.most}")
    often = recommend_policy(History(done=94, failed=6, seconds_per_key=seconds))
    assert by_time["any time"] == (often.policy, "1")


@pytest.fixture(scope="module")
def stac_url() -> Iterator[str]:
    """An API with a week of two Collections over the Alps."""
    first, last = datetime(2024, 6, 1, tzinfo=UTC), datetime(2024, 6, 8, tzinfo=UTC)
    memory = MemoryStac()
    for collection in ("sentinel-2-l2a", "landsat-c2-l2"):
        memory.items += simulate_items(collection, ALPS, first, last, ("sim-8",))
    assert len(memory.items) > 5
    with serve(memory.respond) as server:
        memory.url = server.url
        yield server.url


def test_own_archive(stac_url: str, tmp_path: Path) -> None:
    words = {
        "https://stac.example.org/v1": stac_url,
        'name = "mine"': 'name = "mine"\nrequests_per_s = 10000',
        # Years of empty windows up to today would only cost time.
        "start_date = 2024-06-01": "start_date = 2024-06-01\nend_date = 2024-06-20",
        "zoom = 7": "zoom = 6",
    }
    shell = Shell(tmp_path, words, {"SCENE_PIPELINE_CAPS__STAC_REQUESTS_PER_S": "10000"})
    shell.run_page("docs/own-archive.md")
    files = list(tmp_path.glob(".scene_pipeline/lake/alps/scene_footprints/*/*.parquet"))
    assert len(files) >= 7
    assert (tmp_path / "scene-pipeline-report.html").exists()


def test_missions(stac_url: str, tmp_path: Path) -> None:
    words = {'source = "earth-search"': f'url = "{stac_url}"\nrequests_per_s = 10000\n'
             'finality = { rule = "lag", hours = 72 }'}  # fmt: skip
    shell = Shell(tmp_path, words, {"SCENE_PIPELINE_CAPS__STAC_REQUESTS_PER_S": "10000"})
    shell.run_page("docs/missions.md")
    listed = shell.run(Line("scene-pipeline streams list"))
    assert {"stac-sentinel-2-l2a", "stac-landsat-c2-l2"} <= set(listed.split())


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    """A server of its own: roles are the whole server's, and these keep their names."""
    require_service(find_binaries() is not None, "PostgreSQL with PostGIS")
    with run_cluster() as made:
        yield made


# A command leaves its connections to the end of its process, and this one goes on.
@pytest.mark.filterwarnings("ignore:.* was deleted while still open:ResourceWarning")
@pytest.mark.postgres
@pytest.mark.s3
def test_production(cluster: PostgresCluster, s3_server: S3Server, tmp_path: Path) -> None:
    warehouse, state = (cluster.url(cluster.new_database()) for _ in range(2))
    dagster = cluster.url(cluster.new_database())
    (tmp_path / "infra").symlink_to(ROOT / "infra")
    words = {
        "psql -d warehouse": f"psql {warehouse}",
        "postgresql://scenes_state@db/scenes_state": state,
        "postgresql://dagster@db/dagster": dagster,
        "https://s3.example.org": s3_server.endpoint,
        "s3://scenes/lake": "s3://lake/production",
        **{
            f"postgresql://{role}@db/warehouse": warehouse.replace("//postgres", f"//{role}")
            for role in ("scenes_owner", "scenes_writer", "scenes_reader")
        },
    }
    secrets = {f"SCENE_PIPELINE_S3__{name}": "test" for name in ("ACCESS_KEY", "SECRET_KEY")}
    shell = Shell(tmp_path, words, secrets)
    shell.run_page("docs/production.md")
    gc.collect()
    for block in read_blocks("docs/operating.md", "sql"):
        done = subprocess.run(["psql", warehouse, "-v", "ON_ERROR_STOP=1", "-c", block.text],
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
