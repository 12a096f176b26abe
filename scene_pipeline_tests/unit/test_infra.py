"""The compose file against the script that stands in for it, and against the code."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scene_pipeline.settings import Settings, read_settings

INFRA = Path(__file__).resolve().parents[2] / "infra"
COMPOSE: dict[str, Any] = yaml.safe_load((INFRA / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONE_SHOT = {name for name, service in SERVICES.items() if service.get("restart") == "no"}


def load_stack() -> Any:
    spec = importlib.util.spec_from_file_location("stack", INFRA / "stack.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def stack(tmp_path: Path) -> Any:
    return load_stack().Stack(tmp_path / "stack")


def test_the_script_runs_every_service_of_the_compose_file(stack: Any) -> None:
    assert set(stack.services) == set(SERVICES)
    stand_ins = load_stack().STAND_INS
    ours = {name for name, each in SERVICES.items() if each["image"].startswith("scene-pipeline:")}
    assert set(SERVICES) == ours | set(stand_ins)
    assert {name for name in stand_ins if "Debian" not in stand_ins[name]} == {"s3"}
    for name in stand_ins:
        assert hasattr(stack, f"_start_{name}")


def test_what_the_script_starts_is_the_compose_files_command_with_other_places(stack: Any) -> None:
    for name in ("code", "webserver", "daemon", "prepare", "migrate"):
        theirs = SERVICES[name]["command"]
        ours = stack.command(*theirs)
        assert ours[:2] == ["sh", str(INFRA / "with-secrets.sh")]
        assert len(ours) == len(theirs) + 2
        changed = {t: o for t, o in zip(theirs, ours[2:], strict=True) if t != o}
        assert all(re.search(r"/|\d", text) for text in changed), changed
        given = set(SERVICES[name]["environment"])
        seen = stack.environment(name)
        assert given <= set(seen)
        assert not [key for key in given if "/opt/" in seen[key] or "/run/" in seen[key]]
        assert not [key for key in given if re.search(r"//\w+:\d", seen[key])], "a host's name"


def test_images_are_pinned_users_are_not_root_and_ports_are_on_loopback() -> None:
    for name, service in SERVICES.items():
        image, _, tag = service["image"].rpartition(":")
        assert image, name
        assert re.fullmatch(r"v?\d+[\w.-]*", tag), f"{name}: {tag}"
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        if image == "scene-pipeline":
            assert service["user"] == "10001"
    assert [name for name, service in SERVICES.items() if service.get("ports")] == ["proxy"]
    dockerfile = (INFRA / "Dockerfile").read_text()
    assert re.search(r"^USER 10001$", dockerfile, re.MULTILINE)
    assert "--require-hashes -r requirements-server.lock" in dockerfile
    for source in re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", dockerfile, re.MULTILINE):
        for each in source.split():
            assert (INFRA.parent / each).exists(), each
    assert all(":" in line.split()[1] for line in dockerfile.splitlines() if line[:5] == "FROM ")


def test_services_start_in_order_and_are_watched() -> None:
    for name, service in SERVICES.items():
        if name not in ONE_SHOT:
            assert service["healthcheck"]["test"][0] == "CMD", name
            assert service["restart"] == "unless-stopped"
        for other, how in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
            assert how == {"condition": wanted}, (name, other)
    order = list(load_stack().read_services())
    assert order.index("prepare") < order.index("code") < order.index("daemon")
    assert SERVICES["migrate"]["profiles"], "an upgrade never migrates by itself"


def test_secrets_come_from_files_and_files_from_the_script(tmp_path: Path) -> None:
    subprocess.run(["sh", str(INFRA / "make-secrets.sh"), str(tmp_path)], check=True)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    declared = COMPOSE["secrets"]
    assert {Path(each["file"]).name for each in declared.values()} == set(made)
    for name, service in SERVICES.items():
        given = service.get("environment", {})
        for key, value in given.items():
            words = ("PASSWORD", "SECRET", "KEY", "_URL", "USERS")
            if any(word in key for word in words):
                assert str(value).startswith("/run/secrets/"), (name, key)
                assert Path(value).name in service["secrets"], (name, key)
        assert set(service.get("secrets", [])) <= set(declared)
    before = dict(made)
    subprocess.run(["sh", str(INFRA / "make-secrets.sh"), str(tmp_path)], check=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_volumes_and_mounted_files_exist() -> None:
    named = set(COMPOSE["volumes"])
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in named or (INFRA / source).is_file(), volume
    assert (INFRA / "server.toml").is_file()


def test_the_settings_of_the_services_are_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prefix = "SCENE_PIPELINE_"
    names = {key for service in SERVICES.values() for key in service.get("environment", {})}
    ours = {key.removesuffix("_FILE") for key in names if key.startswith(prefix)}
    for key in ours - {"SCENE_PIPELINE_CONFIG"}:
        section, _, field = key.removeprefix(prefix).lower().partition("__")
        info = Settings.model_fields[section]
        if field:
            assert info.annotation is not None
            assert field in info.annotation.model_fields, key
    monkeypatch.setenv("SCENE_PIPELINE_CONFIG", str(INFRA / "server.toml"))
    assert read_settings().region == "fiji"


def test_the_entry_point_reads_secrets_from_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("p%w 'quoted\"\n")
    environment = {
        **os.environ,
        "SCENE_PIPELINE_STATE_URL_FILE": str(tmp_path / "secret"),
        "PROVIDER_KEY_FILE": str(tmp_path / "secret"),
        "SSL_CERT_FILE": "stays",
    }
    code = (
        "import os; print([os.environ.get(n) for n in ('SCENE_PIPELINE_STATE_URL', 'PROVIDER_KEY',"
    )
    code += " 'SSL_CERT_FILE', 'SSL_CERT', 'PROVIDER_KEY_FILE')])"
    done = subprocess.run(
        ["sh", str(INFRA / "with-secrets.sh"), sys.executable, "-c", code],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(["p%w 'quoted\"", "p%w 'quoted\"", "stays", None, None])


def test_the_run_launcher_of_workers_is_one() -> None:
    from dagster._config import process_config
    from dagster_celery.launcher import CeleryRunLauncher

    named = yaml.safe_load((INFRA / "celery/launcher.yaml").read_text())["run_launcher"]
    assert (named["module"], named["class"]) == (CeleryRunLauncher.__module__, "CeleryRunLauncher")
    config = {
        name: "redis://x" if isinstance(value, dict) and "env" in value else value
        for name, value in named["config"].items()
    }
    assert not process_config(CeleryRunLauncher.config_type(), config).errors
