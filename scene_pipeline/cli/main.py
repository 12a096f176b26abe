"""The command line: parse, call, print.

Exit codes: 0 fine, 1 findings (failed or missing keys, faults in data), 2 the request is wrong,
3 a service is unavailable.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from scene_pipeline import __version__
from scene_pipeline.cli.console import print_error
from scene_pipeline.errors import ScenePipelineError

__all__ = ["cli", "main"]

# Command → module that holds it. A module is imported when its command is asked for, so that
# `--help` and a wrong option answer at once.
_COMMANDS = {
    "backfill": "scene_pipeline.cli.backfill",
    "demo": "scene_pipeline.cli.demo",
    "dev": "scene_pipeline.cli.setup",
    "doctor": "scene_pipeline.cli.doctor",
    "expire": "scene_pipeline.cli.upkeep",
    "frontier": "scene_pipeline.cli.ingest",
    "gc": "scene_pipeline.cli.upkeep",
    "ingest": "scene_pipeline.cli.ingest",
    "init": "scene_pipeline.cli.setup",
    "metrics": "scene_pipeline.cli.metrics",
    "migrate": "scene_pipeline.cli.setup",
    "partitions": "scene_pipeline.cli.partitions",
    "quarantine": "scene_pipeline.cli.quarantine",
    "report": "scene_pipeline.cli.report",
    "streams": "scene_pipeline.cli.streams",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        from importlib import import_module

        command: click.Command = getattr(import_module(_COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def cli(*, as_json: bool) -> None:
    """Satellite scene archives: STAC streams to GeoParquet and PostGIS, backfilled exactly.

    \b
    Settings come from scene_pipeline.toml (or the file in SCENE_PIPELINE_CONFIG)
    and from SCENE_PIPELINE_… variables; without any, this is the demo.

    \b
    Exit codes: 0 fine, 1 findings, 2 wrong request, 3 unavailable service.
    """
    del as_json  # read by `pass_console` from the root context


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and exits with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # A command returns its exit code, or nothing where all is fine.
        code = cli.main(args=given, prog_name="scene-pipeline", standalone_mode=False)
    except ScenePipelineError as error:
        print_error(error, as_json="--json" in given)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(code or 0)
