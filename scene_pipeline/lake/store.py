"""The object store port and its two adapters: a local folder and S3."""

from __future__ import annotations

from typing import Protocol

__all__ = ["ObjectStore"]


class ObjectStore(Protocol):
    """Whole objects by known path; no listing on any hot path.

    Paths are relative, ``/``-separated and stay under the store's base.
    """

    def read(self, path: str) -> bytes:
        """The object's bytes; raises `FileNotFoundError` or `StoreUnavailableError`."""

    def write(self, path: str, content: bytes) -> None:
        """Replace the object, whole or not at all."""

    def write_new(self, path: str, content: bytes) -> bool:
        """Write only if absent; False where it was there already."""

    def delete(self, path: str) -> None:
        """Remove the object; absent is fine."""

    def address(self, path: str) -> str:
        """The full path or URL, for people and for other tools."""
