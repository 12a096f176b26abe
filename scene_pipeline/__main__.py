"""``python -m scene_pipeline``, the same as ``scene-pipeline``."""

from scene_pipeline.cli.main import main

if __name__ == "__main__":
    main()
