"""The one body of the partitioned assets, for runs of one key and of many.

A run of one key is ordinary Dagster: an Output goes to the IO manager, checks and later steps
follow. A run of many keys keeps its own account: each key is claimed, made, stored and recorded
by itself, and retried by itself, so a bad key costs one key and a killed run keeps what it did.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import dagster as dg

from scene_pipeline.backfill.causes import describe_error
from scene_pipeline.backfill.claims import Claims, Held
from scene_pipeline.backfill.key_states import has_ended
from scene_pipeline.backfill.tags import LAUNCH_TAG, require_planned_keys
from scene_pipeline.defs.coverage import build_coverage_of_day
from scene_pipeline.defs.failures import mapped_failures, retry_helps
from scene_pipeline.defs.makers import Facts, Made, Maker
from scene_pipeline.defs.metadata import describe_coverage, to_metadata
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.errors import ClaimRefusedError, PartitionsFailedError, ScenePipelineError
from scene_pipeline.scenes.keys import PartitionKey, parse_day, parse_key

__all__ = ["cover_days", "materialize_keys", "read_run_keys"]

# Keys that are claimed, read and released together: neighbours share raw segments.
_CHUNK = 50
# Keys that an error's text names; its metadata names all.
_MOST_NAMES = 20


def read_run_keys(context: dg.AssetExecutionContext) -> list[PartitionKey]:
    """The keys of this run; raises `KeySetError` where they are none or not its plan's."""
    keys = [parse_key(text) for text in context.partition_keys]
    assets = context.job_def.asset_layer.selected_asset_keys
    require_planned_keys(context.run.tags, keys, assets=len(assets))
    return keys


def materialize_keys(
    context: dg.AssetExecutionContext, pipeline: Pipeline, *, maker: Maker, retry: dg.RetryPolicy
) -> Iterator[dg.Output[Made]]:
    """Make and store the run's keys; yields an Output in a run of one key alone."""
    with mapped_failures():
        keys = read_run_keys(context)
        claims = Claims(
            pipeline.state,
            region=pipeline.region,
            asset=maker.asset.name,
            run_id=context.run.run_id,
            run_ended=lambda run_id: has_ended(context.instance, run_id),
            launch_id=context.run.tags.get(LAUNCH_TAG),
        )
        if len(keys) == 1:
            yield from _materialize_one(keys[0], claims, maker)
        else:
            _Batch(context, claims, maker).materialize(keys, retry)


def _materialize_one(key: PartitionKey, claims: Claims, maker: Maker) -> Iterator[dg.Output[Made]]:
    with ExitStack() as claim:
        held = claim.enter_context(claims.hold([key]))
        for error in held.refused.values():
            raise error
        for _, made in maker.make([key]):
            if isinstance(made, Exception):
                raise made
            held.require([key])
            # The IO manager gives the claim up once the output is stored, or cannot be: this
            # generator is not closed for as long as a traceback holds it.
            yield _as_output(replace(made, claim=claim))


def _as_output(made: Made) -> dg.Output[Made]:
    with warnings.catch_warnings():
        # The data version of an output is "beta"; what states are read from depends on it.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.Output(made, data_version=dg.DataVersion(str(made.version)))


def as_account(
    failed: Mapping[str, Exception], *, asked: int, run_id: str
) -> PartitionsFailedError:
    """The end of a run of many keys: its text names the first of ``failed``, its fields all."""
    named = ", ".join(list(failed)[:_MOST_NAMES])
    more = f" and {len(failed) - _MOST_NAMES} more" if len(failed) > _MOST_NAMES else ""
    return PartitionsFailedError(
        f"{len(failed)} of {asked} keys failed: {named}{more}",
        failed={key: describe_error(error) for key, error in failed.items()},
        where=f"run {run_id}",
        next_step="the other keys are done; `backfill diagnose` gives each cause",
    )


class _Batch:
    """The account of one run of many keys."""

    def __init__(self, context: dg.AssetExecutionContext, claims: Claims, maker: Maker) -> None:
        self._context = context
        self._claims = claims
        self._maker = maker

    def materialize(self, keys: Sequence[PartitionKey], retry: dg.RetryPolicy) -> None:
        """Work on ``keys``; raises a failure that names those that failed in the end."""
        failed: dict[PartitionKey, Exception] = {}
        pending = list(keys)
        for attempt in range(retry.max_retries + 1):
            errors: dict[PartitionKey, Exception] = {}
            for start in range(0, len(pending), _CHUNK):
                errors |= self._work(pending[start : start + _CHUNK])
            for key, error in errors.items():
                self._context.log.warning(f"{key}: {error}", extra={"partition": str(key)})
            last = attempt == retry.max_retries
            pending = [key for key, error in errors.items() if retry_helps(error) and not last]
            failed |= {key: error for key, error in errors.items() if key not in pending}
            if not pending:
                break
            time.sleep(retry.calculate_delay(attempt + 1))
        if failed:
            raise as_account(
                {str(key): error for key, error in failed.items()},
                asked=len(keys),
                run_id=self._context.run.run_id,
            )

    def _work(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, Exception]:
        """Claim, make, store and record ``keys``; returns the errors of those that failed."""
        with self._claims.hold(keys) as held:
            errors: dict[PartitionKey, Exception] = {**held.refused}
            waiting: list[Made] = []
            for key, made in self._maker.make(held.keys):
                if isinstance(made, Exception):
                    errors[key] = made
                else:
                    waiting.append(made)
                if len(waiting) >= self._maker.store_together:
                    errors |= self._store(waiting, held)
                    waiting = []
            if waiting:
                errors |= self._store(waiting, held)
        return errors

    def _store(self, made: Sequence[Made], held: Held) -> dict[PartitionKey, Exception]:
        by_key = {each.key: each for each in made}
        try:
            held.require(by_key)
        except ClaimRefusedError as error:
            return dict.fromkeys(by_key, error)
        errors: dict[PartitionKey, Exception] = {}
        for key, stored in self._maker.store(made):
            if isinstance(stored, Exception):
                errors[key] = stored
            else:
                self._record(by_key[key], stored)
        return errors

    def _record(self, made: Made, stored: Facts) -> None:
        self._context.log_event(
            dg.AssetMaterialization(
                asset_key=self._context.asset_key,
                partition=str(made.key),
                metadata=to_metadata({**made.facts, **stored}),
                tags=made.version.tags,
            )
        )


def cover_days(
    context: dg.AssetExecutionContext, pipeline: Pipeline
) -> Iterator[dg.MaterializeResult[Any]]:
    """Measure the run's days, each from its own files: one that fails does not cost the others."""
    failed: dict[str, Exception] = {}
    with mapped_failures():
        for text in context.partition_keys:
            day = parse_day(text)
            try:
                metadata = describe_coverage(build_coverage_of_day(pipeline, day))
            except ScenePipelineError as error:
                if len(context.partition_keys) == 1:
                    raise
                failed[text] = error
                continue
            if len(context.partition_keys) == 1:
                yield dg.MaterializeResult(metadata=metadata)
            else:
                context.log_event(
                    dg.AssetMaterialization(context.asset_key, partition=text, metadata=metadata)
                )
        if failed:
            raise as_account(failed, asked=len(context.partition_keys), run_id=context.run.run_id)
