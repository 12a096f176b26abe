"""What an operator's tools are told: structured logs, metrics, alerts, the webhook."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import dagster as dg
import pytest
import yaml

from scene_pipeline.cli.metrics import HELP, Sample, format_metrics
from scene_pipeline.defs.alerts import build_failure_webhook
from scene_pipeline.defs.build import build_definitions
from scene_pipeline.defs.home import open_instance, render_config
from scene_pipeline.defs.logs import describe_record
from scene_pipeline.errors import UnavailableError
from scene_pipeline.settings import read_settings
from scene_pipeline_tests.services.command import Command
from scene_pipeline_tests.services.http_server import Answer, serve

INFRA = Path(__file__).parents[2] / "infra"
LINE = re.compile(r'scene_pipeline_\w+(\{(\w+="(\\.|[^"\\])*",?)*\})? -?[0-9.e+]+')


def test_metrics_are_the_prometheus_text_format() -> None:
    text = format_metrics(
        [
            Sample("keys", 3, (("state", 'a "b"\\\n'),)),
            Sample("frontier_lag_seconds", 12.5),
            Sample("keys", 0, (("state", "c"),)),
        ]
    )
    lines = text.splitlines()
    assert 'scene_pipeline_keys{state="a \\"b\\"\\\\\\n"} 3' in lines
    assert "scene_pipeline_frontier_lag_seconds{} 12.5" in lines
    assert "# TYPE scene_pipeline_requests_total counter" in lines
    assert all(LINE.fullmatch(line) for line in lines if line[0] != "#")
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == [
        f"scene_pipeline_{name}" for name in HELP
    ]


@pytest.mark.postgres
def test_the_textfile_counts_what_there_is_and_alerts_use_its_names(
    command: Command, tmp_path: Path, postgis_url: str
) -> None:
    assert command("migrate", WAREHOUSE_URL=postgis_url).code == 0
    assert command("ingest", "run").code == 0
    target = tmp_path / "node" / "scenes.prom"
    assert command("metrics", "--textfile", str(target), WAREHOUSE_URL=postgis_url).code == 0
    assert [path.name for path in target.parent.iterdir()] == ["scenes.prom"]
    samples = dict(
        line.rsplit(" ", 1) for line in target.read_text().splitlines() if line[0] != "#"
    )
    region = 'region="fiji"'
    assert float(samples[f"scene_pipeline_frontier_lag_seconds{{{region}}}"]) > 86_400
    assert samples[f'scene_pipeline_frontier_holder{{{region},stream="sim"}}'] == "1"
    assert samples[f'scene_pipeline_stream_blocked{{{region},stream="sim"}}'] == "0"
    keys = f'scene_pipeline_keys{{{region},asset="scene_footprints",state='
    assert samples[f'{keys}"missing"}}'] == "12"
    assert samples[f'{keys}"materialized"}}'] == "0"
    quarantined = [v for n, v in samples.items() if n.startswith("scene_pipeline_quarantined")]
    listed = command("quarantine", "list", "--json").document["open"]
    assert sum(map(int, quarantined)) == listed > 0
    assert samples["scene_pipeline_open_writers{}"] == "0"
    assert samples['scene_pipeline_pool_slots{pool="postgis",slots="limit"}'] == "4"

    rules = yaml.safe_load((INFRA / "alerts.yml").read_text())["groups"][0]["rules"]
    expressions = " ".join(rule["expr"] for rule in rules)
    used = set(re.findall(r"scene_pipeline_\w+", expressions))
    assert used <= {f"scene_pipeline_{name}" for name in HELP}
    assert len(used) >= 8
    labels = set(re.findall(r'(\w+)="', " ".join(samples)))
    asked = set(re.findall(r"(\w+)=\"", expressions))
    shown = set(re.findall(r"\$labels\.(\w+)", str(rules)))
    assert asked | shown <= labels | {"source"}, "no source was asked: the stream is simulated"


def test_a_log_record_says_run_partition_plan_and_stream() -> None:
    record = logging.makeLogRecord({"levelno": 30, "levelname": "WARNING", "msg": "job - bad key"})
    tags = {"scene_pipeline/plan": "p1", "dagster/partition": "2024-06-01|a"}
    record.dagster_meta = {
        "run_id": "r1", "job_name": "j", "job_tags": tags, "step_key": "s",
        "orig_message": "bad key", "dagster_event": None,
    }  # fmt: skip
    said = describe_record(record)
    assert said.pop("at")
    assert said == {
        "level": "warning", "message": "bad key", "run": "r1", "job": "j", "step": "s",
        "plan": "p1", "partition": "2024-06-01|a",
    }  # fmt: skip
    record.partition, record.stream = "2024-06-02|b", "sim"
    assert describe_record(record)["partition"] == "2024-06-02|b", "a run has many partitions"
    assert describe_record(record)["stream"] == "sim"


def test_a_run_logs_one_object_a_line(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCENE_PIPELINE_LOG_FORMAT", "json")
    assert command("init").code == 0
    settings = read_settings()
    defs = build_definitions(settings)
    with open_instance(settings) as instance:
        capsys.readouterr()
        assert defs.resolve_job_def("ingest_job").execute_in_process(instance=instance).success
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["job"] for line in lines} == {"ingest_job"}
    assert len({line["run"] for line in lines}) == 1
    (stream,) = [line for line in lines if "stream" in line]
    assert stream["stream"] == "sim"
    partitions = {line.get("partition") for line in lines}
    assert "2024-06-01|7-0-71" in partitions, "events of raw_scenes name their partition"


def test_the_servers_log_as_the_settings_json_does() -> None:
    server = yaml.safe_load((INFRA / "dagster.production.yaml").read_text())["python_logs"]
    local = yaml.safe_load(render_config(read_settings(log_format="json")))["python_logs"]
    assert server == local
    assert "python_logs" not in yaml.safe_load(render_config(read_settings()))


@dg.op
def breaks() -> None:
    raise ValueError("no such tile")


@dg.job(tags={"scene_pipeline/plan": "p1"})
def breaking_job() -> None:
    breaks()


def test_a_failed_run_reaches_the_webhook() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = breaking_job.execute_in_process(instance=instance, raise_on_error=False)
        (entry,) = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
        context = dg.build_run_status_sensor_context(
            "failure_webhook", entry.dagster_event, instance, result.dagster_run
        ).for_run_failure()
        with serve(lambda incoming: Answer(status=204)) as server:
            (sensor,) = build_failure_webhook(
                read_settings(alert_webhook=f"{server.url}/hook/sesame")
            )
            sensor(context)
            (request,) = server.requests
        assert request.path == "/hook/sesame"
        assert request.document["run"] == result.run_id
        assert request.document["plan"] == "p1"
        assert "no such tile" in request.document["text"]
        with serve(lambda incoming: Answer(status=500)) as server:
            settings = read_settings(alert_webhook=f"{server.url}/hook/sesame")
            (sensor,) = build_failure_webhook(settings)
            with pytest.raises(UnavailableError, match="HTTPStatusError") as caught:
                sensor(context)
        assert "sesame" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_without_a_webhook_there_is_no_sensor() -> None:
    assert build_failure_webhook(read_settings()) == []
