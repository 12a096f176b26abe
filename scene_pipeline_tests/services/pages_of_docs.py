"""The docs as a reader meets them: their blocks, and the commands that stand in their text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
)

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )*scene-pipeline [^`]+)`")
_INDENTED = re.compile(r"^ {4}(scene-pipeline .+)$", re.MULTILINE)
_EXIT = re.compile(r"exits with (\d)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A command of a console block, and the exit code that its comment promises."""

    command: str
    exit_code: int = 0


def read_page(page: str) -> str:
    """A page's text."""
    return (ROOT / page).read_text(encoding="utf-8")


def read_blocks(page: str, *languages: str) -> list[Block]:
    """A page's fenced blocks, of these languages or all."""
    blocks = [Block(found[1], found[2]) for found in _BLOCK.finditer(read_page(page))]
    return [block for block in blocks if not languages or block.language in languages]


def read_lines(block: Block) -> Iterator[Line]:
    """The commands of a console block."""
    for line in block.text.splitlines():
        assert line.startswith("$ "), f"not a command: {line}"
        command, _, comment = line.removeprefix("$ ").partition("  #")
        promised = _EXIT.search(comment)
        yield Line(command.strip(), int(promised[1]) if promised else 0)


def read_inline(page: str) -> list[str]:
    """Our commands in the running text and in tables, each once, in order of appearance."""
    text = _BLOCK.sub("", read_page(page))
    found = [
        (each.start(), each[1]) for each in (*_INLINE.finditer(text), *_INDENTED.finditer(text))
    ]
    commands = [command.replace("\\|", "|") for _, command in sorted(found)]
    return list(dict.fromkeys(" ".join(command.split()) for command in commands))
