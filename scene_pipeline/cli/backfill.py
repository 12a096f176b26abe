"""``backfill``: plan, launch, follow, diagnose and retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from scene_pipeline.cli.console import Console, pass_console
from scene_pipeline.cli.selecting import (
    Desk,
    asset_option,
    choose_assets,
    find_workspace,
    open_desk,
    read_selection,
    selection_options,
    window_options,
)
from scene_pipeline.errors import UnavailableError, UsageError
from scene_pipeline.settings import PolicyName

if TYPE_CHECKING:
    from scene_pipeline.backfill.assets import TrackedAsset
    from scene_pipeline.backfill.policies import Policy
    from scene_pipeline.backfill.waves import Executor, Wave

__all__ = ["backfill"]

policy_option = click.option(
    "--policy",
    type=click.Choice(get_args(PolicyName)),
    help="Keys a run of scene_footprints: one, a batch, or as many as fit.",
)


def executor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where runs are executed, and whether to wait."""
    for option in (
        click.option(
            "--workspace",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="The daemon's workspace file.  [default: workspace.yaml, if it is here]",
        ),
        click.option(
            "--no-wait",
            is_flag=True,
            help="Queue what can start and return; what waits for it is named, with its command.",
        ),
        click.option("--local", is_flag=True, help="Execute in this process, without a daemon."),
    ):
        command = option(command)
    return command


@click.group()
def backfill() -> None:
    """Build exactly the partitions that need it, and account for every one.

    \b
    Examples:
      scene-pipeline backfill plan --from 2024-06-01 --to 2024-06-30
      scene-pipeline backfill launch --from 2024-06-01 --to 2024-06-30 --policy batched
      scene-pipeline backfill launch --states failed --local
      scene-pipeline backfill diagnose 3f2a90c1de
      scene-pipeline backfill retry 3f2a90c1de
    """


@backfill.command()
@selection_options
@asset_option
@policy_option
@click.option(
    "--save",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the plan of one asset to a file, for `launch --plan`.",
)
@pass_console
def plan(
    console: Console,
    *,
    assets: tuple[str, ...],
    policy: PolicyName | None,
    save: Path | None,
    **asked: Any,
) -> int:
    """Say what a launch would start, and start nothing.

    Keys by state, runs under each policy, the rectangles, the expected time, and which policy
    and batch suit the asset's past. Days are UTC, both ends included.
    """
    from scene_pipeline.backfill.preview import preview_plan
    from scene_pipeline.cli.backfill_text import show_previews

    selection = read_selection(**asked)
    chosen = choose_assets(assets)
    if save is not None and len(chosen) > 1:
        raise UsageError(
            "a saved plan is of one asset: what the table needs is known after the footprints",
            next_step="add --asset scene_footprints",
        )
    with open_desk() as desk:
        keys = desk.list_keys(selection)
        previews = [
            preview_plan(
                desk.site, asset, desk.pipeline.settings, keys=keys, selection=selection,
                name=policy, now=desk.now,
            )
            for asset in chosen
        ]  # fmt: skip
    if save is not None:
        save.write_text(previews[0].plan.document)
    documents = [preview.document for preview in previews]
    console.result({"plans": documents}, lambda: show_previews(console, documents))
    return 0


@backfill.command()
@selection_options
@asset_option
@policy_option
@executor_options
@click.option(
    "--plan",
    "saved",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Launch this saved plan; refused if definition, raw data or a key moved since.",
)
@click.option("--keys-of", metavar="ID", help="Take the keys of this backfill, started anywhere.")
@pass_console
def launch(
    console: Console,
    *,
    assets: tuple[str, ...],
    policy: PolicyName | None,
    saved: Path | None,
    keys_of: str | None,
    local: bool,
    no_wait: bool,
    workspace: Path | None,
    **asked: Any,
) -> int:
    """Start what is missing or changed: footprints first, then the table.

    Each wave is a row of Dagster's Backfills page, which can cancel it. Interrupting the wait
    stops nothing. Exits with 1 where a key has failed.
    """
    from scene_pipeline.backfill.waves import launch_saved, launch_waves

    selection = read_selection(**asked)
    with open_desk() as desk, _open_executor(desk, local, no_wait, workspace) as executor:
        with _following(console) as advance:
            if saved is not None:
                waves = launch_saved(
                    desk.site, executor, document=saved.read_text(), advance=advance
                )
            else:
                chosen = choose_assets(assets)
                keys = desk.keys_of(keys_of) if keys_of else desk.list_keys(selection)
                waves = launch_waves(
                    desk.site,
                    executor,
                    policies=_policies(desk, chosen, policy),
                    keys=dict.fromkeys(chosen, keys),
                    selection=selection,
                    advance=advance,
                )
        return _report_waves(console, waves)


@backfill.command()
@click.argument("backfill_id")
@policy_option
@executor_options
@pass_console
def retry(
    console: Console,
    *,
    backfill_id: str,
    policy: PolicyName | None,
    local: bool,
    no_wait: bool,
    workspace: Path | None,
) -> int:
    """Launch exactly the failed and missing keys of a backfill, started anywhere.

    Exits with 1 where one of its keys is still failed or missing.
    """
    from scene_pipeline.backfill.assets import WAVES
    from scene_pipeline.backfill.diagnose import diagnose_backfill
    from scene_pipeline.backfill.waves import retry_undone
    from scene_pipeline.cli.backfill_text import account_document, show_account

    with open_desk() as desk, _open_executor(desk, local, no_wait, workspace) as executor:
        before = diagnose_backfill(desk.site, backfill_id, now=desk.now)
        with _following(console) as advance:
            waves = retry_undone(
                desk.site,
                executor,
                backfill_id=backfill_id,
                policies=_policies(desk, list(WAVES), policy),
                advance=advance,
            )
        after = diagnose_backfill(desk.site, backfill_id, now=desk.now)
    documents = [
        account_document(account, rebuilt=earlier.count_rebuilt(account))
        for earlier, account in zip(before, after, strict=True)
    ]
    launched = [wave.stored.plan.plan_id for wave in waves if wave.stored]

    def show() -> None:
        console.line(f"launched: {', '.join(launched) or 'nothing, there was nothing to retry'}")
        for document in documents:
            show_account(console, document)

    console.result({"backfill": backfill_id, "launched": launched, "accounts": documents}, show)
    return 0 if all(account.clean for account in after) else 1


@backfill.command()
@click.argument("backfill_id", required=False)
@window_options
@asset_option
@pass_console
def diagnose(
    console: Console, *, backfill_id: str | None, assets: tuple[str, ...], **asked: Any
) -> int:
    """Account for every key of a backfill, started anywhere, or of a window.

    Exits with 1 where a key is not done, or rejected.

    \b
    1  requested, done, in progress, failed and missing keys
    2  keys that the definition rejects, apart from valid ones that failed
    3  one failed key: its error, its upstream, a command that tries it alone
    4  the causes by kind
    5  the command that launches exactly what is not done
    """
    from scene_pipeline.backfill.diagnose import diagnose_backfill, diagnose_window
    from scene_pipeline.cli.backfill_text import account_document, show_diagnosis

    selection = read_selection(**asked)
    with open_desk() as desk:
        if backfill_id is not None:
            accounts = diagnose_backfill(desk.site, backfill_id, now=desk.now)
        else:
            keys, rejected = desk.sort_keys(selection)
            accounts = [
                diagnose_window(desk.site, asset, keys=keys, now=desk.now, rejected=rejected)
                for asset in choose_assets(assets)
            ]
    documents = [account_document(account) for account in accounts]
    console.result(
        {"backfill": backfill_id, "accounts": documents},
        lambda: show_diagnosis(console, documents, backfill_id=backfill_id),
    )
    return 0 if all(account.clean for account in accounts) else 1


@backfill.command()
@click.argument("backfill_id", required=False)
@click.option("--last", type=click.IntRange(1, 100), default=10, show_default=True,
              help="So many backfills.")  # fmt: skip
@pass_console
def status(console: Console, *, backfill_id: str | None, last: int) -> int:
    """List the newest backfills of any origin, or show one; lost keys are named as missing.

    Exits with 1 where a key is failed or missing.
    """
    from scene_pipeline.backfill.overview import read_overview
    from scene_pipeline.cli.backfill_text import show_overview

    with open_desk() as desk:
        rows = read_overview(desk.site, now=desk.now, last=last, only=backfill_id)
    console.result({"backfills": rows}, lambda: show_overview(console, rows))
    return 1 if any(row["failed"] or row["missing"] for row in rows) else 0


def _policies(
    desk: Desk, assets: list[TrackedAsset], name: PolicyName | None
) -> dict[TrackedAsset, Policy]:
    from scene_pipeline.backfill.assets import choose_policy

    settings = desk.pipeline.settings.policies
    return {asset: choose_policy(asset, settings, name) for asset in assets}


@contextmanager
def _open_executor(
    desk: Desk, local: bool, no_wait: bool, workspace: Path | None
) -> Iterator[Executor]:
    from scene_pipeline.backfill.dagster_internals import is_daemon_beating, open_workspace
    from scene_pipeline.backfill.waves import DaemonExecutor, LocalExecutor

    if local:
        from scene_pipeline.defs.build import build_definitions

        yield LocalExecutor(build_definitions(desk.pipeline.settings).resolve_job_def)
        return
    if not is_daemon_beating(desk.instance):
        raise UnavailableError(
            "no Dagster daemon is running, so nothing would start the runs",
            where=f"Dagster home {desk.pipeline.settings.dagster_home}",
            next_step="start one (`scene-pipeline dev`), or add --local to run in this process",
        )
    with open_workspace(
        desk.instance,
        workspace_file=find_workspace(workspace),
        module="scene_pipeline.definitions",
    ) as opened:
        yield DaemonExecutor(opened, wait=not no_wait)


@contextmanager
def _following(console: Console) -> Iterator[Callable[[TrackedAsset, int, int, str], None]]:
    with console.progress("keys", total=None) as advance:
        yield lambda asset, done, of, text: advance(done, f"{asset.name}, {text}", of)


def _report_waves(console: Console, waves: list[Wave]) -> int:
    from scene_pipeline.cli.backfill_text import show_waves, wave_document

    documents = [wave_document(wave) for wave in waves]
    console.result({"waves": documents}, lambda: show_waves(console, documents))
    undone = any(wave.account is not None and wave.account.undone for wave in waves)
    return 1 if undone else 0
