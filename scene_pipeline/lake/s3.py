"""The object store on S3: one request a read, one a write, no listing and no HEAD.

Requests go through s3fs with its own and botocore's retries off: here is the one loop that
repeats, for a closed list of faults, with jitter and under one deadline.
"""

from __future__ import annotations

import base64
import hashlib
import random
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from http.client import IncompleteRead
from typing import Any, TypeVar

import aiohttp
import botocore.exceptions
from botocore.parsers import ResponseParserError

from scene_pipeline.errors import SettingsError, StoreUnavailableError
from scene_pipeline.lake.store import StoredObject, check_path
from scene_pipeline.settings import S3Settings

__all__ = ["S3Store"]

T = TypeVar("T")

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; a proxy answers in numbers.
_PASSING_CODES = {
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "ThrottlingException",
    "429",
    "500",
    "502",
    "503",
    "504",
}
_BROKEN_TRANSFERS = (
    aiohttp.ClientError,
    botocore.exceptions.ConnectionError,
    botocore.exceptions.HTTPClientError,
    ResponseParserError,
    ConnectionError,
    IncompleteRead,
    TimeoutError,
)
# One PUT, whatever the size: s3fs would cut at twice this.
_ONE_PUT_BYTES = 5 * 2**30
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class S3Store:
    """Objects under ``s3://bucket/prefix``; endpoint, region and keys from the settings alone.

    Without keys the machine's role is asked for them (botocore's chain).
    """

    def __init__(self, base: str, settings: S3Settings) -> None:
        bucket, _, prefix = base.removeprefix("s3://").strip("/").partition("/")
        if not bucket:
            raise SettingsError(
                f"{base!r} names no bucket", where="lake", next_step="write s3://bucket/prefix"
            )
        self.bucket = bucket
        self.prefix = prefix
        self.settings = settings

    @cached_property
    def _files(self) -> Any:
        import s3fs

        files = s3fs.S3FileSystem(
            key=self.settings.access_key.get_secret_value() or None,
            secret=self.settings.secret_key.get_secret_value() or None,
            endpoint_url=self.settings.endpoint or None,
            client_kwargs={"region_name": self.settings.region or "us-east-1"},
            config_kwargs={
                "retries": {"total_max_attempts": 1},
                "connect_timeout": self.settings.timeout_s,
                "read_timeout": self.settings.timeout_s,
                "ignore_configured_endpoint_urls": True,
                # Content-MD5 guards each PUT; newer checksums are unknown to older servers.
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
            },
            # More than one makes s3fs ask for an object's size before it reads it.
            max_concurrency=1,
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        files.retries = 1
        return files

    def read(self, path: str, *, last: int | None = None) -> bytes:
        """See `ObjectStore.read`."""
        start = None if last is None else -last
        content: bytes = self._ask(path, lambda key: self._files.cat_file(key, start=start))
        return content

    def write(self, path: str, content: bytes) -> None:
        """See `ObjectStore.write`."""
        self._ask(path, lambda key: self._put(key, content, mode="overwrite"))

    def write_new(self, path: str, content: bytes) -> bool:
        """See `ObjectStore.write_new`; needs a store that honours ``If-None-Match: *``."""
        try:
            self._ask(path, lambda key: self._put(key, content, mode="create"))
        except FileExistsError:
            return False
        return True

    def delete(self, path: str) -> None:
        """See `ObjectStore.delete`."""
        self._ask(path, self._files.rm_file)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """See `ObjectStore.list`; a thousand objects a request."""
        found = self._ask(prefix, lambda key: self._files.find(f"{key}/", detail=True))
        above = len(self._key(prefix)) - len(prefix)
        for key in sorted(found):
            each = found[key]
            yield StoredObject(key[above:], each["size"], each["LastModified"])

    def address(self, path: str) -> str:
        """See `ObjectStore.address`."""
        return f"s3://{self._key(path)}"

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self.bucket, self.prefix, check_path(path)) if part)

    def _put(self, key: str, content: bytes, *, mode: str) -> None:
        digest = hashlib.md5(content, usedforsecurity=False).digest()
        self._files.pipe_file(
            key,
            content,
            mode=mode,
            chunksize=_ONE_PUT_BYTES,
            ContentMD5=base64.b64encode(digest).decode(),
        )

    def _ask(self, path: str, request: Callable[[str], T]) -> T:
        """Repeat ``request`` while the store's fault may pass and the deadline is not reached."""
        key = self._key(path)
        deadline = time.monotonic() + self.settings.deadline_s
        longest = _FIRST_PAUSE_S
        while True:
            try:
                return request(key)
            except (OSError, botocore.exceptions.BotoCoreError, *_BROKEN_TRANSFERS) as error:
                code = _find_code(error)
                if code in {"PreconditionFailed", "412"}:
                    raise FileExistsError(key) from None
                if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
                    raise
                if not (code in _PASSING_CODES or isinstance(error, _BROKEN_TRANSFERS)):
                    raise SettingsError(
                        f"the object store refuses: {error}",
                        where=self.address(path),
                        next_step="check lake and s3 in the settings: bucket, endpoint, keys",
                    ) from error
                pause = random.uniform(longest / 2, longest)  # noqa: S311  jitter, no secret
                if time.monotonic() + pause > deadline:
                    raise StoreUnavailableError(
                        f"no success within {self.settings.deadline_s:g} s: {error}",
                        where=self.address(path),
                        next_step="try again; nothing was half written",
                    ) from error
            time.sleep(pause)
            longest = min(2 * longest, _LONGEST_PAUSE_S)


def _find_code(error: BaseException) -> str:
    """The store's own error code, which s3fs keeps in the cause of what it raises."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    return str(response["Error"].get("Code", "")) if isinstance(response, dict) else ""
