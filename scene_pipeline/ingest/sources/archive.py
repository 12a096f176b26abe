"""A closed set of Items in files: ndjson, ndjson.gz, stac-geoparquet, or a folder of Item JSON.

Every Item of the Collection is given, whatever its time or place: one whose time cannot be read
needs an outcome too, so nothing is left out here that only a parser could judge.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import IO, Any

from scene_pipeline.errors import SourceUnavailableError, TokenExpiredError
from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.http_parse import parse_document
from scene_pipeline.ingest.sources.base import (
    FOREIGN_CHARS,
    Declaration,
    Page,
    Query,
    format_scope,
)

__all__ = ["Archive"]

MAX_LINE_BYTES = 64 * 2**20

# An Item, or the text of something that is none.
Member = Mapping[str, Any] | str


@dataclass(slots=True)
class Archive:
    """The `Source` over files at ``path``; ``through``: its operator says it is complete before.

    A token is a position together with a stamp of the files, so that it expires when they
    change. Members with no Collection at all are given to every query.
    """

    path: Path
    declaration: Declaration
    through: datetime | None = None
    _open: tuple[str, Iterator[Member]] | None = field(default=None, init=False, repr=False)
    # Pages are fetched ahead by another thread, and the open file is shared.
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    @property
    def address(self) -> str:
        """The path as it was set."""
        return str(self.path)

    @property
    def scope(self) -> str:
        """Files have one order; the stamp in each token tells changed ones apart."""
        return format_scope(address=self.address, order="file", boundary="none")

    def complete_through(self, query: Query) -> Bound | None:  # noqa: ARG002 - the port's signature
        """What the operator declared; the newest Item proves nothing about later ones."""
        return None if self.through is None else Bound(self.through)

    def fetch_page(self, query: Query, token: str | None) -> Page:
        """Up to ``limit`` members; sequential pages read each file once."""
        with self._lock:
            return self._fetch(query, token)

    def _fetch(self, query: Query, token: str | None) -> Page:
        stamp = self._stamp()
        position, members = self._resume(token, stamp)
        items: list[Mapping[str, Any]] = []
        foreign: list[str] = []
        for member in members:
            position += 1
            if isinstance(member, str):
                foreign.append(member[:FOREIGN_CHARS])
            elif not query.collection or member.get("collection") in (None, query.collection):
                items.append(member)
            if len(items) + len(foreign) == query.limit:
                following = f"{stamp}:{position}"
                self._open = (following, members)
                return Page(items, following, foreign=foreign)
        self._open = None
        return Page(items, None, foreign=foreign)

    def _resume(self, token: str | None, stamp: str) -> tuple[int, Iterator[Member]]:
        if token is None:
            return 0, self._iterate()
        saved, _, position = token.partition(":")
        if saved != stamp:
            raise TokenExpiredError(
                "the archive changed since its last page was read",
                where=str(self.path),
                next_step="the window is read again from its start",
            )
        if self._open and self._open[0] == token:
            return int(position), self._open[1]
        return int(position), islice(self._iterate(), int(position), None)

    def _files(self) -> list[Path]:
        if self.path.is_dir():
            return sorted(file for file in self.path.rglob("*.json") if file.is_file())
        return [self.path]

    def _stamp(self) -> str:
        digest = hashlib.sha256()
        for file in self._files():
            try:
                status = file.stat()
            except OSError as error:
                raise _unreadable(file, error) from error
            digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        return digest.hexdigest()[:16]

    def _iterate(self) -> Iterator[Member]:
        for file in self._files():
            try:
                if file.suffix in {".parquet", ".geoparquet"}:
                    # Here, because it loads pyarrow and shapely.
                    from scene_pipeline.ingest.sources.geoparquet_items import read_items

                    yield from read_items(file)
                elif file.suffix in {".json", ".geojson"}:
                    yield from _read_document(file)
                else:
                    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
                        yield from _read_lines(lines)
            except (OSError, EOFError, ValueError, zlib.error) as error:
                raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"the archive cannot be read: {error}",
        where=str(file),
        next_step="give path of a stream as an existing file or folder",
    )


def _read_lines(lines: IO[bytes] | gzip.GzipFile) -> Iterator[Member]:
    while line := lines.readline(MAX_LINE_BYTES):
        if line.strip():
            yield _parse_member(line)


def _read_document(file: Path) -> Iterator[Member]:
    """A Feature, the Features of a FeatureCollection, or nothing of a Catalog or Collection."""
    member = _parse_member(file.read_bytes())
    kind = member.get("type") if isinstance(member, Mapping) else None
    if isinstance(member, Mapping) and kind == "FeatureCollection":
        for feature in member.get("features") or ():
            yield feature if isinstance(feature, dict) else json.dumps(feature)
    elif kind not in {"Catalog", "Collection"}:
        yield member


def _parse_member(text: bytes) -> Member:
    try:
        member = parse_document(text)
    except ValueError:
        member = None
    return member if isinstance(member, dict) else text.decode(errors="replace")
