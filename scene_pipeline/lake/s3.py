"""The object store on S3: one request a read, one a write, no listing and no HEAD."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from scene_pipeline.errors import SettingsError, StoreUnavailableError
from scene_pipeline.lake.store import check_path
from scene_pipeline.settings import S3Settings

__all__ = ["S3Store"]


class S3Store:
    """Objects under ``s3://bucket/prefix``; endpoint, region and keys from the settings alone."""

    def __init__(self, base: str, settings: S3Settings) -> None:
        bucket, _, prefix = base.removeprefix("s3://").strip("/").partition("/")
        if not bucket:
            raise SettingsError(f"{base!r} names no bucket", where="lake")
        self.bucket = bucket
        self.prefix = prefix
        self.settings = settings

    @cached_property
    def _files(self) -> Any:
        import s3fs

        return s3fs.S3FileSystem(
            key=self.settings.access_key.get_secret_value() or None,
            secret=self.settings.secret_key.get_secret_value() or None,
            endpoint_url=self.settings.endpoint or None,
            client_kwargs={"region_name": self.settings.region or None},
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def read(self, path: str, *, last: int | None = None) -> bytes:
        """See `ObjectStore.read`."""
        try:
            content: bytes = self._files.cat_file(self._key(path))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreUnavailableError(str(error), where=self.address(path)) from error
        return content if last is None else content[-last:]

    def write(self, path: str, content: bytes) -> None:
        """See `ObjectStore.write`."""
        self._files.pipe_file(self._key(path), content)

    def write_new(self, path: str, content: bytes) -> bool:
        """See `ObjectStore.write_new`."""
        try:
            self._files.pipe_file(self._key(path), content, mode="create")
        except FileExistsError:
            return False
        return True

    def delete(self, path: str) -> None:
        """See `ObjectStore.delete`."""
        self._files.rm_file(self._key(path))

    def address(self, path: str) -> str:
        """See `ObjectStore.address`."""
        return f"s3://{self._key(path)}"

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self.bucket, self.prefix, check_path(path)) if part)
