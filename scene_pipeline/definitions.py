"""What Dagster loads: ``dagster dev -w workspace.yaml``. Wiring only."""

from scene_pipeline.defs.build import build_definitions
from scene_pipeline.settings import load_settings

defs = build_definitions(load_settings())
