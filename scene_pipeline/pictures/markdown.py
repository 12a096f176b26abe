"""Pictures that carry their own bytes: as a data URI, and as an image in Dagster's markdown."""

from __future__ import annotations

import base64
from collections.abc import Callable

__all__ = ["data_uri", "markdown_image", "try_drawing"]


def data_uri(svg: str) -> str:
    """``svg`` as the source of an image, in base64: no quote or parenthesis ends it early."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def try_drawing(draw: Callable[[], str | None]) -> tuple[str | None, str]:
    """What ``draw`` gives, or None and why: data is never lost for want of its picture."""
    try:
        return draw(), ""
    except Exception as error:  # noqa: BLE001  said in the picture's place
        return None, f"not drawn: {type(error).__name__}: {error}"


def markdown_image(svg: str, alt: str) -> str:
    """Markdown that shows ``svg``; ``alt`` says in words what the picture shows.

    Dagster's UI keeps ``data:`` sources of markdown images and drops inline SVG.
    """
    words = " ".join(alt.translate({ord(mark): " " for mark in "[]\\\n"}).split())
    return f"![{words}]({data_uri(svg)})"
