"""The frame of a map: what it shows of the plane, its ground, graticule and scale bar."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import shapely

from scene_pipeline.pictures import svg
from scene_pipeline.pictures.land import WORLD, Bounds, Projection, read_land
from scene_pipeline.scenes import mercator

__all__ = ["View", "draw_frame", "draw_ground", "draw_scale_bar", "fit_view", "unroll"]

_STEPS_DEG = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60)
_LABEL: dict[str, Any] = {"font_size": 10.5, "fill": svg.MUTED}


@dataclass(frozen=True, slots=True)
class View:
    """``bounds`` of the plane and the rectangle of pixels that shows them."""

    bounds: Bounds
    left: float
    top: float
    width: float
    height: float
    projection: Projection = "mercator"

    def to_pixels(self, geometries: Any) -> Any:
        """Geometries in pixels, y down; an array stays an array."""
        return shapely.transform(geometries, self.place)

    def place(self, xy: Any) -> Any:
        """An (n, 2) array of the plane in pixels."""
        west, south, east, north = self.bounds
        x = self.left + (xy[:, 0] - west) * (self.width / (east - west))
        return np.column_stack((x, self.top + (north - xy[:, 1]) * (self.height / (north - south))))

    def place_degrees(self, lon: float, lat: float) -> tuple[float, float]:
        """One lon/lat point in pixels."""
        point = np.array([[lon, lat]])
        x, y = self.place(mercator.project(point) if self.projection == "mercator" else point)[0]
        return float(x), float(y)

    def degrees(self) -> Bounds:
        """The bounds as lon/lat degrees; longitudes may pass 180 where the view does."""
        if self.projection == "degrees":
            return self.bounds
        corners = mercator.unproject(np.reshape(self.bounds, (2, 2)))
        west, south, east, north = corners.ravel().tolist()
        return west, south, east, north


def fit_view(
    bounds: Bounds,
    *,
    left: float,
    top: float,
    width: float,
    max_height: float,
    context: float = 0.08,
    projection: Projection = "mercator",
) -> View:
    """A view of ``bounds`` with ``context`` (a share of the longer side) around them.

    It never shows past the world's upper and lower edge, and takes no more than ``max_height``:
    what is taller gets more context at its sides.
    """
    west, south, east, north = bounds
    # Degrees of longitude are narrower than those of latitude: keep local shapes right.
    flat = 1.0 if projection == "mercator" else math.cos(math.radians((south + north) / 2))
    squeeze = max(flat, 0.2)
    pad = max((east - west) * squeeze, north - south) * context
    west, east = west - pad / squeeze, east + pad / squeeze
    limit = WORLD["mercator"] / 2 if projection == "mercator" else 90.0
    south, north = max(south - pad, -limit), min(north + pad, limit)
    missing = (north - south) * width / max_height - (east - west) * squeeze
    if missing > 0:
        west, east = west - missing / squeeze / 2, east + missing / squeeze / 2
    height = width * (north - south) / ((east - west) * squeeze)
    return View((west, south, east, north), left, top, width, height, projection)


@lru_cache(maxsize=64)
def draw_ground(view: View, *, coast_bytes: int = 8_000) -> tuple[str, ...]:
    """Sea, land and coast, the coast as coarse as it must be to stay within ``coast_bytes``.

    Kept for the next key of the same tile: it is most of a map's cost.
    """
    shapes = view.to_pixels(read_land(view.bounds, view.projection))
    land, tolerance_px = svg.path_data(shapes), 0.5
    while len(land) > coast_bytes:
        shapes = shapes[shapely.area(shapes) > tolerance_px**2]
        land = svg.path_data(shapes, tolerance_px=tolerance_px)
        tolerance_px *= 1.3
    coast: dict[str, Any] = {"stroke": svg.COAST, "stroke_width": 0.7, "stroke_linejoin": "round"}
    sea = _rectangle(view, fill=svg.SEA)
    return (sea, svg.draw_element("path", d=land, fill=svg.LAND, **coast)) if land else (sea,)


def draw_frame(view: View) -> list[str]:
    """Graticule, its labels outside the left and lower edge, and the neat line."""
    west, south, east, north = view.degrees()
    lines, labels = [], []
    right, bottom = view.left + view.width, view.top + view.height
    for lon in _ticks(west, east, view.width / 64):
        x, _ = view.place_degrees(lon, 0)
        lines.append(f"M{x:.1f} {view.top:.1f}V{bottom:.1f}")
        labels.append(svg.draw_text(_longitude(lon), x=x, y=bottom + 14, text_anchor="middle"))
    for lat in _ticks(south, north, view.height / 50):
        if abs(lat) < 90:
            _, y = view.place_degrees(0, lat)
            lines.append(f"M{view.left:.1f} {y:.1f}H{right:.1f}")
            label = _hemisphere(lat, "N", "S")
            labels.append(svg.draw_text(label, x=view.left - 5, y=y + 3.5, text_anchor="end"))
    return [
        svg.draw_element("path", d="".join(lines), stroke=svg.GRID, stroke_width=0.6, fill="none"),
        _rectangle(view, fill="none", stroke=svg.INK, stroke_width=1),
        svg.draw_element("g", "".join(labels), **_LABEL),
    ]


def draw_scale_bar(view: View) -> str:
    """A bar in the lower left corner of a Mercator ``view``, true at the latitude that it names.

    Nothing where the scale differs more than twofold between two places of the view.
    """
    _, south, _, north = view.degrees()
    widths = [math.cos(math.radians(lat)) for lat in (south, north)] + [1.0] * (south < 0 < north)
    if min(widths) * 2 < max(widths):
        return ""
    middle = (south + north) / 2
    metres = (view.bounds[2] - view.bounds[0]) * math.cos(math.radians(middle))
    longest = metres / view.width * min(110, view.width * 0.3)
    power = 10.0 ** math.floor(math.log10(longest))
    length = next(step for step in (5 * power, 2 * power, power) if step <= longest)
    pixels = length / metres * view.width
    x, y = view.left + 9, view.top + view.height - 9
    text = f"{length / 1000:g} km" if length >= 1000 else f"{length:g} m"
    if min(widths) * 1.05 < max(widths):
        text += f" at {_hemisphere(round(middle), 'N', 'S')}"
    bar = f"M{x:.1f} {y - 5:.1f}v5h{pixels:.1f}v-5"
    halo: dict[str, Any] = {
        "stroke": svg.PAPER,
        "stroke_width": 4,
        "stroke_opacity": 0.7,
        "fill": "none",
    }
    return (
        svg.draw_element("path", d=bar, **halo)
        + svg.draw_element("path", d=bar, stroke=svg.INK, stroke_width=1.4, fill="none")
        + svg.draw_text(
            text, x=x + 4, y=y - 4, font_size=10.5, **svg.HALO | {"text_anchor": "start"}
        )
    )


def unroll(intervals: Sequence[tuple[float, float]], world: float) -> list[float]:
    """Shifts (0 or ``world``) that draw (west, east) ``intervals`` with the widest gap outside.

    West must not exceed east in any of them. Tiles 126, 127 and 0 of zoom 7 become neighbours.
    """
    order = sorted(range(len(intervals)), key=lambda index: intervals[index])
    if not order:
        return []
    best_gap = intervals[order[0]][0] + world - max(east for _, east in intervals)
    start = reach = intervals[order[0]][0]
    for index in order:
        west, east = intervals[index]
        # Rounding must not turn two touching tiles into a gap.
        if west - reach > best_gap + world * 1e-9:
            best_gap, start = west - reach, west
        reach = max(reach, east)
    return [world if west < start else 0.0 for west, _ in intervals]


def _rectangle(view: View, **attributes: Any) -> str:
    return svg.draw_element(
        "rect", x=view.left, y=view.top, width=view.width, height=view.height, **attributes
    )


def _ticks(low: float, high: float, most: float) -> Iterable[float]:
    step = next((s for s in _STEPS_DEG if (high - low) / s <= max(most, 2)), _STEPS_DEG[-1])
    first = math.ceil(low / step)
    return [round(index * step, 6) for index in range(first, math.floor(high / step) + 1)]


def _longitude(lon: float) -> str:
    lon = (lon + 180) % 360 - 180
    return "180°" if abs(lon) == 180 else _hemisphere(lon, "E", "W")


def _hemisphere(degrees: float, positive: str, negative: str) -> str:
    side = positive if degrees > 0 else negative if degrees < 0 else ""
    return f"{round(abs(degrees), 2):g}°{side}"
