"""The chart's values against the installed dagster-k8s and Dagster's instance schema."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._config import process_config
from dagster._core.instance.config import dagster_instance_config_schema
from dagster_k8s import K8sRunLauncher
from dagster_k8s.job import UserDefinedDagsterK8sConfig, get_user_defined_k8s_config

from scene_pipeline.defs.build import build_definitions
from scene_pipeline.defs.jobs import K8S_TAG
from scene_pipeline.settings import PolicySettings, read_settings

INFRA = Path(__file__).resolve().parents[2] / "infra"
VALUES: dict[str, Any] = yaml.safe_load((INFRA / "kubernetes/values.yaml").read_text())
LAUNCHER: dict[str, Any] = VALUES["runLauncher"]["config"]["k8sRunLauncher"]
# Values whose own keys are Kubernetes's, in its spelling.
_KUBERNETES = {"resources", "labels", "podSpecConfig", "jobSpecConfig", "containerConfig"}


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def as_instance_config(value: Any) -> Any:
    """As the chart's templates write it into dagster.yaml."""
    if isinstance(value, list):
        return [as_instance_config(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        snake(key): each if key in _KUBERNETES else as_instance_config(each)
        for key, each in value.items()
    }


def check(schema: Any, value: Any) -> list[str]:
    return [str(error.message) for error in process_config(schema, value).errors or ()]


def test_every_field_of_the_run_launcher_is_one_of_the_installed_version() -> None:
    config = as_instance_config(LAUNCHER)
    needed = {"service_account_name": "dagster", "instance_config_map": "dagster-instance",
              "dagster_home": "/opt/dagster/dagster_home"}  # fmt: skip  # the chart adds them
    assert check(K8sRunLauncher.config_type(), config | needed) == []
    assert check(K8sRunLauncher.config_type(), config | needed | {"job_imagination": "x"})
    launched = UserDefinedDagsterK8sConfig.from_dict(config["run_k8s_config"])
    assert launched.pod_spec_config["automount_service_account_token"] is False
    assert launched.job_spec_config["ttl_seconds_after_finished"] == 86_400


def test_the_rest_is_what_dagsters_instance_takes() -> None:
    daemon, coordinator = VALUES["dagsterDaemon"], VALUES["dagsterDaemon"]["runCoordinator"]
    queue = as_instance_config(coordinator["config"]["queuedRunCoordinator"])
    concurrency = as_instance_config(VALUES["concurrency"])
    assert concurrency.pop("enabled") is True
    config = {
        "run_monitoring": as_instance_config(daemon["runMonitoring"]),
        "run_retries": as_instance_config(daemon["runRetries"]),
        "concurrency": concurrency,
        **VALUES["additionalInstanceConfig"],
    }
    assert check(dagster_instance_config_schema(), config) == []
    from dagster._core.run_coordinator import QueuedRunCoordinator

    assert check(QueuedRunCoordinator.config_type(), queue) == []


def test_it_says_what_the_server_says() -> None:
    """The two ways to run it do not drift apart."""
    server = yaml.safe_load((INFRA / "dagster.production.yaml").read_text())
    concurrency = as_instance_config(VALUES["concurrency"])
    assert concurrency["runs"] == server["concurrency"]["runs"]
    assert concurrency["pools"] == server["concurrency"]["pools"]
    assert VALUES["additionalInstanceConfig"]["python_logs"] == server["python_logs"]
    monitoring = as_instance_config(VALUES["dagsterDaemon"]["runMonitoring"])
    assert server["run_monitoring"].items() <= monitoring.items()
    (deployment,) = VALUES["dagster-user-deployments"]["deployments"]
    assert deployment["securityContext"]["runAsUser"] == 10001
    assert VALUES["dagsterWebserver"]["service"]["type"] == "ClusterIP"


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    sizes = {
        "per_partition": {"cpu": "250m", "memory": "512Mi"},
        "single_run": {"cpu": "2", "memory": "4Gi"},
    }
    settings = read_settings(policies=PolicySettings.model_validate({"resources": sizes}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_definitions(settings)


@pytest.mark.parametrize(
    ("job", "cpu", "memory"),
    [
        ("scenes_per_partition_job", "250m", "512Mi"),
        ("scenes_single_run_job", "2", "4Gi"),
        ("scenes_batched_job", None, None),
    ],
)
def test_a_policy_sizes_the_pods_of_its_runs(
    defs: dg.Definitions, job: str, cpu: str | None, memory: str | None
) -> None:
    tags = defs.resolve_job_def(job).run_tags
    pod = get_user_defined_k8s_config(tags).container_config
    if cpu is None:
        assert K8S_TAG not in tags
        assert pod == {}
        return
    assert pod["resources"] == {
        "requests": {"cpu": cpu, "memory": memory},
        "limits": {"memory": memory},
    }
