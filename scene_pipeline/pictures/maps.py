"""Maps of a partition, of a day and of a repair, over land, without any network.

Pieces and tile bounds are EPSG:3857 metres, footprints of a repair lon/lat degrees. Places on
both sides of the antimeridian are drawn side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import shapely

from scene_pipeline.pictures import svg
from scene_pipeline.pictures.frame import (
    View,
    draw_frame,
    draw_ground,
    draw_scale_bar,
    fit_view,
    unroll,
)
from scene_pipeline.pictures.land import WORLD, Bounds, shift_east
from scene_pipeline.pictures.svg import Mark

__all__ = ["draw_day_map", "draw_partition_map", "draw_repair"]

_LEFT, _TOP, _RIGHT, _BELOW = 46.0, 48.0, 14.0, 22.0
_MAX_OUTLINES = 150
_OPACITY = 0.72  # land shows through
_FOOTPRINT = Mark("footprint", fill=svg.BLUE, stroke=svg.BLUE)
_REPAIRED = Mark("repaired footprint", fill=svg.VERMILION, stroke=svg.VERMILION, dash="4 2")
_TILE = Mark("tile", stroke=svg.INK)
_OUTLINE = Mark("", stroke=svg.INK)
_NO_SCENE = Mark("no scene", fill="url(#none)", stroke=svg.MUTED)
_NOT_BUILT = Mark("not built", stroke=svg.MUTED, dash="3 3")
# Covered share by fifths: ColorBrewer's five-class GnBu, safe for colour-blind readers.
_CLASSES = tuple(
    Mark(f"{low} to {low + 20} %", fill=color, stroke=svg.MUTED)
    for low, color in zip(
        range(0, 100, 20), ("#f0f9e8", "#bae4bc", "#7bccc4", "#43a2ca", "#0868ac"), strict=True
    )
)


def draw_partition_map(
    pieces: Sequence[Any],
    bounds: Bounds,
    *,
    title: str,
    note: str = "",
    repaired: Sequence[bool] | None = None,
) -> str:
    """The ``pieces`` (WKB or geometries) of one partition in its tile.

    ``title`` is the key, ``note`` one line below it. Where ``repaired`` is true a piece is drawn
    dashed and in another colour.
    """
    geometries = _read_geometries(pieces)
    mended = np.zeros(len(geometries), bool) if repaired is None else np.array(repaired, bool)
    view = fit_view(bounds, left=_LEFT, top=_TOP, width=380, max_height=380)
    parts = [*_draw_heading(title, note), *draw_ground(view)]
    parts += [
        _draw_footprints(view, geometries[mended == kind], mark)
        for kind, mark in ((False, _FOOTPRINT), (True, _REPAIRED))
    ]
    parts += [_draw_shape(view, shapely.box(*bounds), _TILE, width=1.6), *draw_frame(view)]
    parts.append(draw_scale_bar(view))
    if not len(geometries):
        parts.append(_write_middle(view, "no scene was acquired"))
    marks = [_TILE] + [_FOOTPRINT] * (not mended.all()) + [_REPAIRED] * bool(mended.any())
    return _finish(parts, [view], marks, title=f"Footprints of {title}")


def draw_day_map(
    coverage: Any,
    bounds: Mapping[str, Bounds],
    *,
    title: str,
    note: str = "",
    pieces: Mapping[str, Sequence[Any]] | None = None,
) -> str:
    """Covered share and scenes of each tile of ``coverage`` (`coverage.cover_day`).

    ``bounds`` gives the tiles to draw; one that has no row is drawn as not built. ``pieces`` are
    drawn on top, unless there are too many to be told apart.
    """
    rows = {row["tile"]: row for row in coverage.to_pylist()}
    shifts = unroll([(box[0], box[2]) for box in bounds.values()], WORLD["mercator"])
    moved = dict(zip(bounds, shifts, strict=True))
    boxes = {tile: shift_east(shapely.box(*bounds[tile]), moved[tile]) for tile in bounds}
    extent = tuple(shapely.total_bounds(list(boxes.values())).tolist())
    view = fit_view(extent, left=_LEFT, top=_TOP, width=580, max_height=520, context=0.05)
    classes: dict[Mark, list[Any]] = {mark: [] for mark in (*_CLASSES, _NO_SCENE, _NOT_BUILT)}
    for tile, box in boxes.items():
        classes[_class_of(rows.get(tile))].append(box)
    parts = [*_draw_heading(title, note), svg.HATCH, *draw_ground(view, coast_bytes=24_000)]
    parts += [
        _draw_shape(view, group, mark, opacity=_OPACITY) for mark, group in classes.items() if group
    ]
    outlines = [
        piece
        for tile in bounds
        for piece in shift_east(_read_geometries((pieces or {}).get(tile, ())), moved[tile])
    ]
    if 0 < len(outlines) <= _MAX_OUTLINES:
        parts.append(_draw_shape(view, outlines, _OUTLINE, width=0.6))
    built = [box for tile, box in boxes.items() if tile in rows]
    parts.append(_draw_shape(view, built, _TILE, width=1.1))
    parts += [*draw_frame(view), *_label_tiles(view, rows, boxes), draw_scale_bar(view)]
    marks = [mark for mark, group in classes.items() if group or mark in _CLASSES]
    return _finish(parts, [view], marks, title=f"Coverage of {title}")


def draw_repair(before: Any, after: Any, *, title: str, note: str = "") -> str:
    """A footprint as published and as stored, side by side; both lon/lat, WKB or geometry.

    Each panel has its own extent where the published ring spans the globe and the stored one
    does not, else both show the same ground.
    """
    published, stored = _read_geometries([before, after])
    shown = shapely.get_parts(stored)
    intervals = [(west, east) for west, _, east, _ in shapely.bounds(shown).tolist()]
    stored = shapely.multipolygons(
        [
            shift_east(part, shift)
            for part, shift in zip(shown, unroll(intervals, WORLD["degrees"]), strict=True)
        ]
    )
    if published.bounds[2] - published.bounds[0] <= 180:
        # Published as -181 or stored from 179 on: show both on the same turn of the globe.
        apart = shapely.box(*stored.bounds).centroid.x - shapely.box(*published.bounds).centroid.x
        published = shift_east(published, round(apart / WORLD["degrees"]) * WORLD["degrees"])
    extents = [published.bounds, stored.bounds]
    if extents[0][2] - extents[0][0] <= 180:
        extents = [tuple(shapely.total_bounds([published, stored]).tolist())] * 2
    views = [
        fit_view(
            extent,
            left=left,
            top=_TOP + 16,
            width=270,
            max_height=300,
            context=0.15,
            projection="degrees",
        )
        for extent, left in zip(extents, (_LEFT, 2 * _LEFT + 270 + 8), strict=True)
    ]
    parts = _draw_heading(title, note)
    marks = (Mark("", fill=svg.VERMILION, stroke=svg.VERMILION), _FOOTPRINT)
    for view, shape, mark, words in zip(
        views, (published, stored), marks, ("as published", "as stored"), strict=True
    ):
        parts.append(svg.draw_text(words, x=view.left, y=view.top - 6, font_weight="bold"))
        parts += [*draw_ground(view), _draw_footprints(view, np.array([shape]), mark)]
        parts += draw_frame(view)
    if extents[0][2] - extents[0][0] <= 180:
        parts.append(_number_vertices(views[0], published))
    return _finish(parts, views, [], title=f"Repair of {title}")


def _read_geometries(shapes: Sequence[Any]) -> Any:
    mixed = [shapely.from_wkb(s) if isinstance(s, bytes) else s for s in shapes]
    return np.array(mixed, dtype=object)


def _class_of(row: Mapping[str, Any] | None) -> Mark:
    if row is None:
        return _NOT_BUILT
    if not row["scenes"]:
        return _NO_SCENE
    return _CLASSES[min(int(row["covered_share"] * len(_CLASSES)), len(_CLASSES) - 1)]


def _draw_heading(title: str, note: str) -> list[str]:
    heading = svg.draw_text(title, x=_LEFT, y=20, font_size=14, font_weight="bold")
    return [heading, svg.draw_text(note, x=_LEFT, y=37, fill=svg.MUTED)]


def _draw_footprints(view: View, geometries: Any, mark: Mark) -> str:
    """One translucent shape a footprint, so that overlaps darken; many as one covered area."""
    if not len(geometries):
        return ""
    drawn = view.to_pixels(geometries)
    if len(geometries) > _MAX_OUTLINES:
        drawn = np.array([shapely.union_all(drawn)])
    paths = "".join(svg.draw_element("path", d=svg.path_data(shape)) for shape in drawn)
    fill_opacity = max(0.1, min(0.35, 1.5 / len(drawn)))
    style = svg.style_of(mark, width=1.2) | {"fill_opacity": f"{fill_opacity:.2f}"}
    return svg.draw_element("g", paths, fill_rule="evenodd", **style)


def _draw_shape(
    view: View, geometries: Any, mark: Mark, *, width: float = 0.8, opacity: float = 1
) -> str:
    style = svg.style_of(mark, width=width)
    path = svg.path_data(view.to_pixels(np.atleast_1d(np.array(geometries, dtype=object))))
    return svg.draw_element("path", d=path, fill_opacity=f"{opacity:g}", **style)


def _label_tiles(
    view: View, rows: Mapping[str, Mapping[str, Any]], boxes: Mapping[str, Any]
) -> list[str]:
    """As many words as a tile has room for: key and numbers; the scenes; nothing."""
    labels = []
    for tile, box in boxes.items():
        west, north, east, south = view.to_pixels(box).bounds
        words = _describe_tile(tile, rows.get(tile), room=east - west)
        x, top = (west + east) / 2, (north + south) / 2 - 7 * (len(words) - 1) + 4
        labels += [
            svg.draw_text(text, x=x, y=top + 14 * index, font_size=11, **svg.HALO)
            for index, text in enumerate(words)
        ]
    return labels


def _describe_tile(tile: str, row: Mapping[str, Any] | None, *, room: float) -> list[str]:
    scenes = row["scenes"] if row else 0
    if room < 84:
        return [str(scenes)] if scenes and room >= 22 else []
    if row is None:
        return [tile, "not built"]
    if not scenes:
        return [tile, "no scene"]
    covered = f"{100 * row['covered_share']:.0f} % covered"
    words = [tile, f"{scenes} scene{'s' if scenes > 1 else ''}", covered]
    cloud = row["cloud_cover_pct"]
    return words if cloud is None else [*words, f"{cloud:.0f} % cloud"]


def _number_vertices(view: View, ring: Any) -> str:
    """The published order of the first vertices: what makes a bow-tie a bow-tie."""
    points = view.place(shapely.get_coordinates(ring))
    if not 3 < len(points) <= 13:
        return ""
    return "".join(
        svg.draw_element("circle", cx=x, cy=y, r=2.5, fill=svg.INK)
        + svg.draw_text(str(number), x=x, y=y - 5, font_size=11, **svg.HALO)
        for number, (x, y) in enumerate(points[:-1].tolist(), start=1)
    )


def _write_middle(view: View, text: str) -> str:
    x, y = view.left + view.width / 2, view.top + view.height / 2
    return svg.draw_text(text, x=x, y=y, font_size=13, **svg.HALO)


def _finish(
    parts: Sequence[str], views: Sequence[View], marks: Sequence[Mark], *, title: str
) -> str:
    """Put the legend and the source below the lowest view and close the picture."""
    bottom = max(view.top + view.height for view in views) + _BELOW
    right = max(view.left + view.width for view in views)
    legend, bottom = svg.draw_legend(
        marks, x=_LEFT, y=bottom, width=right - _LEFT, opacity=_OPACITY
    )
    note = {"text_anchor": "end", "font_size": 10, "fill": svg.MUTED}
    source = svg.draw_text("land: Natural Earth", x=right, y=bottom + 9, **note)
    size = {"width": right + _RIGHT, "height": bottom + 17}
    return svg.wrap_svg([*parts, legend, source], title=title, **size)
