"""What Dagster loads: ``dagster dev -w workspace.yaml``. Wiring only."""

import dagster as dg

from scene_pipeline.defs.build import build_definitions, build_range_definitions
from scene_pipeline.settings import load_settings

defs = build_definitions(load_settings())


def ranges() -> dg.Definitions:
    """What ``dagster asset materialize -a ranges --partition-range`` loads instead of `defs`."""
    return build_range_definitions(load_settings())
