"""Pictures in Dagster's metadata: an image in markdown that carries its own bytes."""

from __future__ import annotations

import base64

__all__ = ["markdown_image"]


def markdown_image(svg: str, alt: str) -> str:
    """Markdown that shows ``svg``; ``alt`` says in words what the picture shows.

    Dagster's UI keeps ``data:`` sources of markdown images and drops inline SVG. Base64, because
    the parentheses and quotes of an SVG would end the markdown link.
    """
    words = " ".join(alt.translate({ord(mark): " " for mark in "[]\\\n"}).split())
    return f"![{words}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"
