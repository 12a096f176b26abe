"""The object store port and its two adapters: a local folder and S3."""

from __future__ import annotations

import os
import uuid
from pathlib import Path, PurePosixPath
from typing import Protocol

from scene_pipeline.errors import LakeFileError, SettingsError
from scene_pipeline.settings import S3Settings

__all__ = ["LocalStore", "ObjectStore", "open_store"]


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
        with self._place(path).open("rb") as file:
            if last is not None:
                file.seek(max(0, file.seek(0, os.SEEK_END) - last))
            return file.read()

    def write(self, path: str, content: bytes) -> None:
        """See `ObjectStore.write`."""
        place = self._place(path)
        self._write_beside(place, content).replace(place)
        _sync_folder(place.parent)

    def write_new(self, path: str, content: bytes) -> bool:
        """See `ObjectStore.write_new`."""
        place = self._place(path)
        if place.exists():
            return False
        beside = self._write_beside(place, content)
        try:
            os.link(beside, place)
        except FileExistsError:
            return False
        finally:
            beside.unlink()
        _sync_folder(place.parent)
        return True

    def delete(self, path: str) -> None:
        """See `ObjectStore.delete`."""
        self._place(path).unlink(missing_ok=True)

    def address(self, path: str) -> str:
        """See `ObjectStore.address`."""
        return str(self._place(path))

    def _place(self, path: str) -> Path:
        return self.base / check_path(path)

    def _write_beside(self, place: Path, content: bytes) -> Path:
        # The name ends otherwise than data does, so that no reader's pattern meets half a file.
        beside = place.with_name(f".{place.name}.{uuid.uuid4().hex}.part")
        for _ in range(2):
            try:
                with beside.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                return beside
            except FileNotFoundError:
                place.parent.mkdir(parents=True, exist_ok=True)
        raise LakeFileError("cannot create the folder", where=str(place.parent))


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
