"""One HTML page that needs nothing else: no network, no script, no file beside it.

It can be read on a phone, printed, and walked through with a keyboard alone: wide pictures and
tables scroll inside a focusable frame, each picture has words that say what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import count

from scene_pipeline.pictures.markdown import data_uri
from scene_pipeline.pictures.svg import BLUE, INK, MUTED, PAPER, SEA, VERMILION

__all__ = ["Block", "Figure", "Page", "Paragraph", "Section", "Table", "write_page"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture; ``alt`` says what it shows to whoever does not see it."""

    svg: str
    alt: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table; None is an empty cell, columns of numbers go to the right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Words; a command in ``code`` stands below them."""

    text: str
    code: str = ""


Block = Figure | Table | Paragraph


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of the page. ``attention`` marks it in the table of contents."""

    title: str
    blocks: Sequence[Block]
    attention: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A report: its name, one sentence that sums it up, and its parts."""

    title: str
    summary: str
    made_at: datetime
    sections: Sequence[Section]


# Tables of more columns, or of longer texts, turn into lists on a phone.
_NARROW, _SHORT = 4, 30

_STYLE = f"""
:root {{ color-scheme: light; --line: #c9d1d8 }}
* {{ box-sizing: border-box }}
body {{ margin: 0; background: {PAPER}; color: {INK};
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }}
header, main, footer {{ max-width: 62rem; margin: 0 auto; padding: 0 1rem }}
h1 {{ font-size: 1.6rem; line-height: 1.2; margin: 1.2rem 0 .3rem }}
h2 {{ font-size: 1.25rem; margin: 2.2rem 0 .4rem; border-bottom: 2px solid var(--line) }}
p {{ margin: .4rem 0 }}
.summary {{ font-size: 1.1rem }}
.muted, caption, footer {{ color: {MUTED}; font-size: .9rem }}
nav ul {{ list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .4rem }}
nav a {{ display: block; padding: .45rem .7rem; border: 1px solid var(--line);
  border-radius: .4rem; background: {SEA}; color: {INK}; text-decoration: none }}
nav a.attention {{ border: 2px solid {VERMILION}; font-weight: 600 }}
a {{ color: {BLUE} }}
:focus-visible {{ outline: 3px solid {BLUE}; outline-offset: 2px }}
.skip {{ position: absolute; left: -99rem }}
.skip:focus {{ left: 1rem; top: .5rem; background: {PAPER}; padding: .5rem }}
.frame {{ overflow-x: auto; max-width: 100% }}
figure {{ margin: .6rem 0 }}
img {{ display: block; max-width: none }}
table {{ border-collapse: collapse; font-size: .95rem; margin: .6rem 0 }}
caption {{ text-align: left; padding: .2rem 0 }}
th, td {{ text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; max-width: 24rem; overflow-wrap: break-word }}
th {{ white-space: nowrap }}
.number {{ text-align: right; font-variant-numeric: tabular-nums }}
code {{ background: {SEA}; padding: .1rem .35rem; border-radius: .25rem;
  overflow-wrap: anywhere; font-size: .9em }}
footer {{ margin: 2rem auto; border-top: 1px solid var(--line); padding-top: .5rem }}
@media (max-width: 40rem) {{
  .wide, .wide caption, .wide tbody, .wide tr, .wide td {{ display: block }}
  .wide td:empty {{ display: none }}
  .wide thead {{ position: absolute; left: -99rem }}
  .wide tr {{ border-bottom: 2px solid var(--line); padding: .3rem 0 }}
  .wide td {{ border: 0; padding: .1rem 0 .1rem 9rem; min-height: 1.7rem; text-align: left;
    position: relative; max-width: none }}
  .wide td::before {{ content: attr(data-column); position: absolute; left: 0; width: 8.5rem;
    color: {MUTED}; font-size: .9rem }}
}}
@media print {{
  nav, .skip {{ display: none }}
  body {{ font-size: 11pt }}
  .frame {{ overflow: visible }}
  img {{ max-width: 100%; height: auto }}
  table {{ font-size: 9pt }}
  h2, caption {{ break-after: avoid }}
  figure, tr {{ break-inside: avoid }}
  thead {{ display: table-header-group }}
}}
"""


def write_page(page: Page) -> str:
    """The page as HTML; every text is escaped."""
    names = [f"part-{number}" for number in range(1, len(page.sections) + 1)]
    links = "".join(
        f'<li><a href="#{name}" class="{_kind(section)}">{_mark(section)}</a></li>'
        for name, section in zip(names, page.sections, strict=True)
    )
    numbers = count(1)
    parts = "".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{_mark(section)}</h2>'
        f"{''.join(_write_block(block, next(numbers)) for block in section.blocks)}</section>\n"
        for name, section in zip(names, page.sections, strict=True)
    )
    made = f"{page.made_at:%Y-%m-%d %H:%M} UTC"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(page.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the report</a>\n'
        f'<header><h1>{escape(page.title)}</h1>\n<p class="summary">{escape(page.summary)}</p>\n'
        f'<p class="muted">Made {made}</p>\n'
        f'<nav aria-label="Parts"><ul>{links}</ul></nav></header>\n'
        f'<main id="main" tabindex="-1">\n{parts}</main>\n'
        f"<footer>{escape(page.title)}, {made}. Land: Natural Earth.</footer>\n</body>\n</html>\n"
    )


def _kind(section: Section) -> str:
    return "attention" if section.attention else "plain"


def _mark(section: Section) -> str:
    return ("&#9888;&#xFE0E; " if section.attention else "") + escape(section.title)


def _write_block(block: Block, number: int) -> str:
    match block:
        case Paragraph():
            code = f"<p><code>{escape(block.code)}</code></p>" if block.code else ""
            return f"<p>{escape(block.text)}</p>{code}"
        case Figure():
            image = f'<img alt="{escape(block.alt)}" src="{data_uri(block.svg)}">'
            return f"<figure>{_frame(image, block.alt)}</figure>"
        case Table():
            return _frame(_write_table(block, f"table-{number}"), block.caption)


def _frame(content: str, label: str) -> str:
    """A box that scrolls sideways, with the arrow keys too once it has the focus."""
    return (
        f'<div class="frame" role="group" tabindex="0" aria-label="{escape(label)}">{content}</div>'
    )


def _write_table(table: Table, name: str) -> str:
    columns = [_Column.of(table, place) for place in range(len(table.columns))]
    head = "".join(f'<th role="columnheader" scope="col"{c.kind}>{c.name}</th>' for c in columns)
    body = "".join(
        f'<tr role="row">{"".join(c.write(value) for c, value in zip(columns, row, strict=True))}'
        "</tr>"
        for row in table.rows
    )
    # On a phone rows of wide tables become lists; the roles keep them tables for screen readers.
    longest = max((len(str(value)) for row in table.rows for value in row), default=0)
    width = "wide" if len(columns) > _NARROW or longest > _SHORT else "narrow"
    return (
        f'<table id="{name}" class="{width}" role="table">'
        f"<caption>{escape(table.caption)}</caption>"
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table>'
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """One column's name, escaped, and how its values are written: all alike."""

    name: str
    numeric: bool
    decimals: int

    @classmethod
    def of(cls, table: Table, place: int) -> _Column:
        values = [row[place] for row in table.rows if row[place] is not None]
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        floats = [abs(v) for v in numbers if isinstance(v, float)]
        decimals = 0 if not floats else 1 if max(floats) >= 10 else 2
        numeric = bool(values) and len(numbers) == len(values)
        return cls(escape(table.columns[place]), numeric, decimals)

    @property
    def kind(self) -> str:
        return ' class="number"' if self.numeric else ""

    def write(self, value: object) -> str:
        text = "" if value is None else f"{value}"
        if isinstance(value, datetime):
            text = f"{value:%Y-%m-%d %H:%M} UTC"
        elif self.numeric and value is not None:
            text = f"{value:,.{self.decimals}f}"
        return f'<td role="cell" data-column="{self.name}"{self.kind}>{escape(text)}</td>'
