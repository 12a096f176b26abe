"""The few SVG elements that pictures are made of: paths, words, marks and colours.

Geometry is in pixels rounded to a tenth, drawn in relative steps, so that a picture is small
enough to live in an event's metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import shapely

__all__ = [
    "Mark",
    "draw_element",
    "draw_legend",
    "draw_text",
    "path_data",
    "style_of",
    "wrap_svg",
]

# Marks after Okabe and Ito (Color Universal Design, 2008), darkened until lines stand out on the
# ground. Words are in INK or MUTED alone, which a test holds above 4.5 to 1 on every ground.
PAPER = "#ffffff"
INK = "#1c2733"
MUTED = "#4d5966"
SEA = "#e3edf3"
LAND = "#ece6d8"
COAST = "#8f8670"
GRID = "#b9c4cd"
BLUE = "#0072b2"
VERMILION = "#c44601"

HALO: dict[str, Any] = {
    "text_anchor": "middle",
    "stroke": PAPER,
    "stroke_width": 3,
    "stroke_linejoin": "round",
    "paint_order": "stroke",
}
HATCH = (
    '<defs><pattern id="none" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<path d="M-1 7L7-1" stroke="#4d5966" stroke-width=".8"/></pattern></defs>'
)
_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"


@dataclass(frozen=True, slots=True)
class Mark:
    """How one kind of thing is drawn and what the legend calls it; never told by hue alone."""

    label: str
    fill: str = "none"
    stroke: str = "none"
    dash: str | None = None


def draw_element(tag: str, content: str = "", **attributes: Any) -> str:
    """One element; ``_`` in a name becomes ``-``, floats are rounded to a tenth, None left out."""
    written = "".join(
        f" {name.replace('_', '-')}={quoteattr(_number(value))}"
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def draw_text(text: str, *, x: float, y: float, **attributes: Any) -> str:
    """A line of words, escaped; ``y`` is its baseline."""
    return draw_element("text", escape(text), x=float(x), y=float(y), **attributes)


def draw_legend(
    marks: Sequence[Mark], *, x: float, y: float, width: float, opacity: float = 1
) -> tuple[str, float]:
    """Swatches with their words, wrapped to ``width``, and the lower edge of the last line.

    ``y`` is the upper edge of the first line. Widths of words are estimates.
    """
    parts, at = [], x
    for mark in marks:
        step = 24 + 6.4 * len(mark.label)
        if at > x and at + step > x + width:
            at, y = x, y + 18
        swatch = style_of(mark, width=1.2) | {"fill_opacity": f"{opacity:g}"}
        parts.append(draw_element("rect", x=at, y=y, width=14, height=10, **swatch))
        parts.append(draw_text(mark.label, x=at + 19, y=y + 9, font_size=11))
        at += step + 8
    return "".join(parts), y + 18 * bool(marks)


def style_of(mark: Mark, *, width: float) -> dict[str, Any]:
    """The presentation attributes of ``mark``."""
    style = {"fill": mark.fill, "stroke": mark.stroke, "stroke_width": float(width)}
    return style | ({"stroke_dasharray": mark.dash} if mark.dash else {})


def wrap_svg(parts: Iterable[str], *, width: float, height: float, title: str) -> str:
    """A stand-alone picture of ``width`` by ``height`` CSS pixels; ``title`` is its short name."""
    return draw_element(
        "svg",
        draw_element("title", escape(title))
        + draw_element("rect", width=width, height=height, fill=PAPER)
        + "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        width=float(width),
        height=float(height),
        viewBox=f"0 0 {_number(float(width))} {_number(float(height))}",
        role="img",
        font_family=_FONT,
        font_size=12,
        fill=INK,
    )


def path_data(geometries: Any, *, tolerance_px: float = 0.3) -> str:
    """The ``d`` of all polygons of ``geometries`` (pixels, y down), simplified to a tolerance."""
    simple = shapely.simplify(np.atleast_1d(geometries), tolerance_px)
    parts = shapely.get_parts(shapely.get_parts(simple))  # collections may hold multi parts
    polygons = parts[shapely.get_type_id(parts) == shapely.GeometryType.POLYGON]
    return "".join(map(_draw_ring, shapely.get_rings(polygons)))


def _draw_ring(ring: Any) -> str:
    # Steps are taken between rounded points, so that rounding never adds up along the ring.
    tenths = np.round(shapely.get_coordinates(ring) * 10).astype(np.int64)
    steps = np.diff(tenths, axis=0)[:-1]
    steps = steps[(steps != 0).any(axis=1)]
    if len(steps) < 2:
        return ""
    moves = " ".join(f"{_tenth(x)} {_tenth(y)}" for x, y in steps.tolist())
    start = f"{_tenth(int(tenths[0, 0]))} {_tenth(int(tenths[0, 1]))}"
    return f"M{start}l{moves}z".replace(" -", "-")


def _tenth(value: int) -> str:
    whole, rest = divmod(abs(value), 10)
    digits = f"{whole or ''}.{rest}" if rest else str(whole)
    return f"-{digits}" if value < 0 else digits


def _number(value: Any) -> str:
    return f"{round(value, 1):g}" if isinstance(value, float) else str(value)
