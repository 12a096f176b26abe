"""A failed run tells a webhook.

No postponed annotations here: Dagster reads the type of ``context`` as an object.
"""

import dagster as dg

from scene_pipeline.backfill.run_failures import read_run_failure
from scene_pipeline.backfill.tags import PARTITION_TAG, PLAN_TAG
from scene_pipeline.errors import UnavailableError
from scene_pipeline.settings import Settings

__all__ = ["build_failure_webhook"]

_TIMEOUT_S = 10.0
# Keys that a message names; the run's page has all.
_MOST_KEYS = 20


def build_failure_webhook(settings: Settings) -> list[dg.SensorDefinition]:
    """The sensor, where ``alert_webhook`` is set; a POST that fails fails its tick by name."""
    url = settings.alert_webhook.get_secret_value()
    if not url:
        return []

    @dg.run_failure_sensor(
        name="failure_webhook",
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Sends each failed run to alert_webhook: run, job, plan, keys and reasons.",
    )
    def failure_webhook(context: dg.RunFailureSensorContext) -> None:
        import httpx

        run = context.dagster_run
        failure = read_run_failure(context.instance, run.run_id)
        whole = failure.whole.text if failure.whole else failure.last_words
        keys = {key: each.text for key, each in list(failure.by_key.items())[:_MOST_KEYS]}
        document = {
            "text": f"{run.job_name} of {settings.region} failed: {whole or ', '.join(keys)}",
            "region": settings.region,
            "run": run.run_id,
            "job": run.job_name,
            "plan": run.tags.get(PLAN_TAG),
            "partition": run.tags.get(PARTITION_TAG),
            "failed_keys": len(failure.by_key),
            "keys": keys,
        }
        try:
            httpx.post(url, json=document, timeout=_TIMEOUT_S).raise_for_status()
        except httpx.HTTPError as error:
            # Without its text, which holds the URL: a webhook's URL is its secret.
            raise UnavailableError(
                f"the webhook did not take the message: {type(error).__name__}",
                where="alert_webhook",
                next_step="correct SCENE_PIPELINE_ALERT_WEBHOOK; the run's page has the failure",
            ) from None

    return [failure_webhook]
