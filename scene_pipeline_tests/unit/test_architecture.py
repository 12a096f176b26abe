"""The rules of the house that a reader would otherwise have to trust."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import scene_pipeline
from scene_pipeline import errors

PACKAGE = Path(scene_pipeline.__file__).parent
MODULES = sorted(
    module.name for module in pkgutil.walk_packages([str(PACKAGE)], prefix="scene_pipeline.")
)

# Which parts a part may import: data moves one way, and so do imports.
_BASE = {"errors", "settings"}
_ALLOWED = {
    "errors": set(),
    "settings": {"errors"},
    "scenes": {"errors"},
    "pictures": {"errors", "scenes"},
    "lake": _BASE | {"scenes"},
    "state": _BASE | {"scenes"},
    "ingest": _BASE | {"scenes", "lake", "state"},
    "warehouse": _BASE | {"scenes", "lake", "state"},
    "backfill": _BASE | {"scenes", "lake", "state", "ingest", "warehouse"},
    "defs": _BASE | {"scenes", "lake", "state", "ingest", "warehouse", "backfill", "pictures"},
    "definitions": {"settings", "defs"},
    "__main__": {"cli"},
}
_ALLOWED["cli"] = set(_ALLOWED) - {"definitions", "__main__"}

PURE_BACKFILL = (
    *("assets", "causes", "cover", "plan", "policies", "recommend", "selection"),
    *("states", "tags", "versions"),
)
# Pure: no Dagster, no SQL, no network, no clock, no environment.
PURE = [
    *(name for name in MODULES if name.startswith("scene_pipeline.scenes")),
    *(name for name in MODULES if name.startswith("scene_pipeline.pictures")),
    "scene_pipeline.ingest.bounds",
    "scene_pipeline.lake.layout",
    *(f"scene_pipeline.backfill.{name}" for name in PURE_BACKFILL),
]
_IMPURE_CALLS = {
    ("datetime", "now"), ("datetime", "utcnow"), ("date", "today"), ("time", "time"),
    ("time", "monotonic"), ("os", "environ"), ("os", "getenv"),
}  # fmt: skip


def path_of(module: str) -> Path:
    place = PACKAGE.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def imports_of(module: str) -> Iterator[str]:
    """Every module that ``module`` imports anywhere, lazily or for its types too."""
    for node in ast.walk(ast.parse(path_of(module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            yield str(node.module)


def test_the_package_is_not_empty() -> None:
    assert len(MODULES) > 40
    assert {name.split(".")[1] for name in MODULES} == set(_ALLOWED)


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_flow_of_data(module: str) -> None:
    part = module.split(".")[1]
    for imported in imports_of(module):
        if imported.startswith("scene_pipeline."):
            other = imported.split(".")[1]
            assert other == part or other in _ALLOWED[part], f"{module} imports {imported}"


@pytest.mark.parametrize("module", MODULES)
def test_dagster_internals_are_imported_in_one_module(module: str) -> None:
    if module == "scene_pipeline.backfill.dagster_internals":
        return
    private = [
        name
        for name in imports_of(module)
        if name.split(".")[0].startswith("dagster")
        and any(part.startswith("_") for part in name.split("."))
    ]
    assert private == []


@pytest.mark.parametrize("name", MODULES)
def test_all_is_there_and_true(name: str) -> None:
    if name.endswith((".definitions", ".__main__")) or "migrations" in name:
        return  # Dagster, Python and alembic look for attributes of their own
    module = importlib.import_module(name)
    source = path_of(name).read_text()
    if name in {"scene_pipeline.errors"} or not source.strip():
        return
    assert len(set(module.__all__)) == len(module.__all__)
    for attribute in module.__all__:
        assert hasattr(module, attribute), f"{name}.__all__ names {attribute}"


def test_pure_modules_load_nothing_heavy() -> None:
    code = (
        "import importlib, json, sys\n"
        f"for name in {PURE!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert loaded.isdisjoint({"dagster", "sqlalchemy", "geopandas", "httpx", "s3fs", "psycopg"})
    assert {"shapely", "pyarrow"} <= loaded


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_know_no_clock_and_no_environment(module: str) -> None:
    found = [
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(path_of(module).read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    assert _IMPURE_CALLS.isdisjoint(found)


@pytest.mark.parametrize("module", [name for name in MODULES if name != "scene_pipeline.settings"])
def test_the_environment_is_read_in_settings_alone(module: str) -> None:
    source = path_of(module).read_text()
    # A child process gets a copy of the environment; nothing is decided by it.
    assert "os.getenv" not in source
    assert source.count("os.environ") == source.count("**os.environ")


def error_classes() -> list[type[errors.ScenePipelineError]]:
    return [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.ScenePipelineError)
    ]


def test_every_error_is_in_the_tree_of_the_docstring() -> None:
    assert len(error_classes()) > 15
    for each in error_classes():
        assert each.__name__ in (errors.__doc__ or ""), f"draw {each.__name__} in errors.py"
        assert each.__doc__, each.__name__
        assert each.exit_code in {1, 2, 3}


def test_the_tree_shows_the_exit_codes_that_the_classes_have() -> None:
    shown = {}
    for line in (errors.__doc__ or "").splitlines():
        words = line.replace("│", " ").replace("├──", " ").replace("└──", " ").split()
        if len(words) > 1 and words[0].endswith("Error") and words[1].isdigit():
            shown[words[0]] = int(words[1])
    assert len(shown) >= 6
    for name, code in shown.items():
        assert getattr(errors, name).exit_code == code


def test_nothing_bare_is_raised() -> None:
    for module in MODULES:
        for node in ast.walk(ast.parse(path_of(module).read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = ast.unparse(node.exc.func)
                assert name not in {"Exception", "RuntimeError", "BaseException"}, module


def test_names_say_what_is_done() -> None:
    theirs = {"handle_output", "process_bind_param", "process_result_value"}
    for module in MODULES:
        assert not {"utils", "helpers", "common", "misc"} & set(module.split("."))
        for node in ast.walk(ast.parse(path_of(module).read_text())):
            if isinstance(node, ast.FunctionDef) and node.name not in theirs:
                assert not node.name.startswith(("process_", "handle_", "do_")), module
                arguments = {argument.arg for argument in node.args.args + node.args.kwonlyargs}
                assert not {"data", "df", "obj"} & arguments, f"{module}.{node.name}"


def test_files_hold_one_subject() -> None:
    for module in MODULES:
        lines = len(path_of(module).read_text().splitlines())
        assert lines <= 400, f"{module} has {lines} lines: it usually means two subjects"
