"""Small pictures, pure: geometry and numbers in, SVG text out."""

from scene_pipeline.pictures.markdown import markdown_image

__all__ = ["markdown_image"]
