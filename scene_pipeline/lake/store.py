"""The object store port and its two adapters: a local folder and S3."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Protocol

from scene_pipeline.errors import LakeFileError, SettingsError, StoreUnavailableError
from scene_pipeline.settings import S3Settings

__all__ = ["LocalStore", "ObjectStore", "StoredObject", "open_store"]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a listing."""

    path: str
    bytes: int
    modified_at: datetime


class ObjectStore(Protocol):
    """Whole objects by known path; no listing on any hot path.

    Paths are relative, ``/``-separated and stay under the store's base.
    """

    def read(self, path: str, *, last: int | None = None) -> bytes:
        """The object's bytes, or its ``last`` bytes (fewer where it is shorter).

        Raises `FileNotFoundError` or `StoreUnavailableError`.
        """

    def write(self, path: str, content: bytes) -> None:
        """Replace the object, whole or not at all."""

    def write_new(self, path: str, content: bytes) -> bool:
        """Write only if absent; False where it was there already."""

    def delete(self, path: str) -> None:
        """Remove the object; absent is fine."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Every object below the folder ``prefix``, by path; for upkeep, never for a run."""

    def address(self, path: str) -> str:
        """The full path or URL, for people and for other tools."""


def check_path(path: str) -> str:
    """Return ``path``, or raise `LakeFileError` where it is not relative and plain."""
    parts = PurePosixPath(path).parts
    if not path or path != "/".join(parts) or path.startswith("/") or ".." in parts:
        raise LakeFileError(f"{path!r} is not a path inside the lake")
    return path


class LocalStore:
    """A folder. Writes go to a temporary name, to the disk, then to their place by rename."""

    def __init__(self, base: str | Path) -> None:
        self.base = Path(base).absolute()

    def read(self, path: str, *, last: int | None = None) -> bytes:
        """See `ObjectStore.read`."""
        place = self._place(path)
        with _named(place), place.open("rb") as file:
            if last is not None:
                file.seek(max(0, file.seek(0, os.SEEK_END) - last))
            return file.read()

    def write(self, path: str, content: bytes) -> None:
        """See `ObjectStore.write`."""
        place = self._place(path)
        with _named(place), _written_beside(place, content) as beside:
            beside.replace(place)
            _sync_folder(place.parent)

    def write_new(self, path: str, content: bytes) -> bool:
        """See `ObjectStore.write_new`."""
        place = self._place(path)
        if place.exists():
            return False
        with _named(place), _written_beside(place, content) as beside:
            try:
                os.link(beside, place)
            except FileExistsError:
                return False
            _sync_folder(place.parent)
            return True

    def delete(self, path: str) -> None:
        """See `ObjectStore.delete`."""
        place = self._place(path)
        with _named(place):
            place.unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """See `ObjectStore.list`; names the leftovers of killed writes too."""
        for place in sorted(self._place(prefix).rglob("*")):
            with suppress(FileNotFoundError), _named(place):
                status = place.stat()
                if not place.is_dir():
                    path = place.relative_to(self.base).as_posix()
                    changed = datetime.fromtimestamp(status.st_mtime, UTC)
                    yield StoredObject(path, status.st_size, changed)

    def address(self, path: str) -> str:
        """See `ObjectStore.address`."""
        return str(self._place(path))

    def _place(self, path: str) -> Path:
        return self.base / check_path(path)


@contextmanager
def _named(place: Path) -> Iterator[None]:
    """A failing disk, by the file that met it; an absent file stays `FileNotFoundError`."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreUnavailableError(
            f"the disk refuses: {error.strerror or error}",
            where=str(place),
            next_step="look for space and permissions; nothing was half written",
        ) from error


@contextmanager
def _written_beside(place: Path, content: bytes) -> Iterator[Path]:
    """``content`` on the disk under a name that no reader's pattern meets; gone in the end."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{uuid.uuid4().hex}.part")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield beside
    finally:
        beside.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """The rename itself reaches the disk with its folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_store(lake: str, s3: S3Settings) -> ObjectStore:
    """The store at ``lake``: a folder, or ``s3://bucket/prefix``."""
    if lake.startswith("s3://"):
        from scene_pipeline.lake.s3 import S3Store

        return S3Store(lake, s3)
    if "://" in lake:
        raise SettingsError(
            f"no object store for {lake.partition('://')[0]}://",
            where="lake",
            next_step="use a folder or s3://bucket/prefix",
        )
    return LocalStore(lake)
