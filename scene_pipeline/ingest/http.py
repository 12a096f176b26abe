"""HTTP for sources: one JSON document a request, bounded in time, size, depth and reach.

Requests go to an allow-list of origins alone, redirects and stored tokens included. Credentials
go to the provider's own origin alone and are cut out of every message.
"""

from __future__ import annotations

import json
import random
import time
import weakref
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import httpx
from pydantic import SecretStr

from scene_pipeline.errors import (
    SettingsError,
    SourceFaultError,
    SourceRefusedError,
    SourceUnavailableError,
)
from scene_pipeline.ingest.http_parse import (
    excerpt,
    parse_date,
    parse_document,
    parse_retry_after,
)
from scene_pipeline.ingest.throttle import Throttle

__all__ = ["HttpClient", "Reply", "Request"]

MAX_BODY_BYTES = 64 * 2**20
MAX_REDIRECTS = 5
MAX_HOLD_S = 3600.0
_TIMEOUT = httpx.Timeout(connect=10, read=60, write=30, pool=10)
# A server that refuses or fails for now; all else is final.
_RETRIED = frozenset({408, 425, 429, *range(500, 600)}) - {501, 505}
# Named by the connection itself; a link must not set them.
_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "cookie"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request; ``headers`` are those that a next link asked for, without credentials."""

    method: Literal["GET", "POST"]
    url: str
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed document, where it came from in the end, and the server's clock.

    ``where`` names the request in messages; ``url`` may hold signatures.
    """

    document: Any
    url: str
    server_at: datetime | None
    where: str = ""


@dataclass(slots=True, weakref_slot=True)
class HttpClient:
    """Fetches JSON from the origin of ``root`` and from ``allowed_hosts`` (same scheme).

    ``deadline_s`` bounds one `fetch` with all its waits and retries. ``sleep`` and ``clock``
    (monotonic seconds) are the effects that a test replaces.
    """

    root: httpx.URL
    throttle: Throttle
    deadline_s: float
    secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = MAX_BODY_BYTES
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _client: httpx.Client = field(init=False, repr=False)
    _origins: frozenset[tuple[str, str, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, secret in self.secrets.items():
            value = secret.get_secret_value()
            if not (value.isascii() and value.isprintable()):
                raise SettingsError(
                    f"header {name} holds characters that HTTP cannot send", where=str(self.root)
                )
        others = (f"{self.root.scheme}://{host}" for host in self.allowed_hosts)
        self._origins = frozenset(map(_origin, (self.root, *map(httpx.URL, others))))
        self._client = httpx.Client(
            timeout=_TIMEOUT,
            follow_redirects=False,
            headers={
                "user-agent": "scene-pipeline",
                "accept": "application/geo+json, application/json",
                # Others can grow a thousandfold a byte, before any limit could be checked.
                "accept-encoding": "gzip",
            },
        )
        weakref.finalize(self, self._client.close)

    def fetch(self, request: Request, *, tries_at_500: int | None = None) -> Reply:
        """Send until answered or ``deadline_s`` has passed.

        Raises `SourceUnavailableError`, `SourceFaultError`, or `SourceRefusedError` at a 4xx
        and at a status 500 that comes ``tries_at_500`` times.
        """
        deadline = self.clock() + self.deadline_s
        attempt = 0
        while True:
            self._take_turn(request, deadline)
            held = False
            try:
                reply = self._send(request, deadline)
            except httpx.TransportError as error:
                trouble, pause_s = self._scrub(f"{type(error).__name__}: {error}"), None
            except _RetryLaterError as later:
                trouble, pause_s, held = later.what, later.pause_s, later.held
                if later.status == 500 and attempt + 1 == tries_at_500:
                    raise SourceRefusedError(
                        f"failed {tries_at_500} times: {trouble}",
                        status=500,
                        where=self._name(request),
                    ) from None
            else:
                return reply
            if pause_s is None:
                pause_s = min(60.0, 2.0**attempt) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
            attempt += 1
            if held:
                self.throttle.hold(min(pause_s, MAX_HOLD_S))
            if self.clock() + pause_s >= deadline:
                raise SourceUnavailableError(
                    f"no answer within {self.deadline_s:g} s and {attempt} tries; "
                    f"the last: {trouble}",
                    where=self._name(request),
                    next_step="run it again later; nothing moved",
                )
            if not held:
                self.sleep(pause_s)

    def _take_turn(self, request: Request, deadline: float) -> None:
        wait_s = self.throttle.reserve(deadline - self.clock())
        if wait_s is None:
            raise SourceUnavailableError(
                f"the provider's shared request rate has no turn within {self.deadline_s:g} s",
                where=self._name(request),
                next_step="run it again later; the provider asked for a pause, or others use it",
            )
        if wait_s > 0:
            self.sleep(wait_s)

    def _send(self, request: Request, deadline: float) -> Reply:
        for _ in range(MAX_REDIRECTS + 1):
            url = self._check_reach(request)
            asked = {k: v for k, v in request.headers.items() if k.lower() not in _OWN_HEADERS}
            headers = httpx.Headers(asked)
            if _origin(url) == _origin(self.root):
                for name, secret in self.secrets.items():
                    headers[name] = secret.get_secret_value()
            with self._client.stream(
                request.method, url, json=request.body, headers=headers
            ) as response:
                if response.has_redirect_location:
                    request = self._redirect(request, response)
                    continue
                body = self._read_body(response, deadline, where=self._name(request))
                return self._judge(request, response, body)
        raise SourceFaultError(f"more than {MAX_REDIRECTS} redirects", where=self._name(request))

    def _redirect(self, request: Request, response: httpx.Response) -> Request:
        """The request again at its new address; one whose method would change is refused."""
        if request.method == "POST" and response.status_code not in {307, 308}:
            raise SourceFaultError(
                f"status {response.status_code} would turn a POST into a GET",
                where=self._name(request),
                next_step="set url of the stream to the API's new address",
            )
        try:
            url = str(response.url.join(response.headers["location"]))
        except httpx.InvalidURL as error:
            raise SourceFaultError(
                f"redirect to no URL: {error}", where=self._name(request)
            ) from None
        return Request(request.method, url, request.body, request.headers)

    def _check_reach(self, request: Request) -> httpx.URL:
        try:
            url = httpx.URL(request.url)
        except httpx.InvalidURL as error:
            raise SourceFaultError(f"not a URL: {error}", where=self._name(request)) from None
        if url.userinfo or _origin(url) not in self._origins:
            allowed = ", ".join(sorted(f"{s}://{host}:{port}" for s, host, port in self._origins))
            foreign = self._scrub(f"{url.scheme}://{url.netloc.decode()}")
            raise SourceFaultError(
                f"the provider leads to {foreign}, which is not its own",
                where=f"allowed: {allowed}",
                next_step="name the host in allowed_hosts of the stream's options if it is right",
            )
        return url

    def _read_body(self, response: httpx.Response, deadline: float, *, where: str) -> bytes:
        encoding = response.headers.get("content-encoding", "identity").lower()
        if encoding not in {"identity", "gzip"}:
            raise SourceFaultError(
                "the body has a content-encoding that was not asked for (gzip alone was)",
                where=where,
            )
        inflate = zlib.decompressobj(31) if encoding == "gzip" else None
        body = bytearray()
        for chunk in response.iter_raw():
            room = self.max_body_bytes + 1 - len(body)
            body += inflate.decompress(chunk, room) if inflate else chunk
            if len(body) > self.max_body_bytes:
                raise SourceFaultError(
                    f"the body is larger than {self.max_body_bytes / 2**20:g} MiB",
                    where=where,
                    next_step="lower page_limit of the stream, or raise max_page_mb of its options",
                )
            if self.clock() >= deadline:
                raise httpx.ReadTimeout("the body did not end in time")
        if inflate and not inflate.eof:
            raise httpx.RemoteProtocolError("the compressed body was cut")
        return bytes(body)

    def _judge(self, request: Request, response: httpx.Response, body: bytes) -> Reply:
        status, server_at = response.status_code, parse_date(response.headers.get("date"))
        if status in _RETRIED:
            pause_s = parse_retry_after(response.headers.get("retry-after"), server_at)
            held = status == 429 or pause_s is not None
            raise _RetryLaterError(status, self._quote(body), pause_s=pause_s, held=held)
        if not response.is_success:
            raise SourceRefusedError(
                f"refused with status {status}: {self._quote(body)}",
                status=status,
                where=self._name(request),
                next_step="check headers of the stream" if status in {401, 403} else "",
            )
        try:
            document = parse_document(body)
        except ValueError as error:
            raise SourceFaultError(
                f"the answer is not usable JSON: {str(error)[:100]}",
                where=self._name(request),
            ) from None
        return Reply(document, str(response.url), server_at, where=self._name(request))

    def _name(self, request: Request) -> str:
        """Method and address without its query, which may hold a signature."""
        return self._scrub(f"{request.method} {request.url.partition('?')[0]}")[:300]

    def _quote(self, body: bytes) -> str:
        # Scrubbed before it is cut: half a secret is one too much.
        return excerpt(self._scrub(body.decode(errors="replace")))

    def _scrub(self, text: str) -> str:
        for secret in self.secrets.values():
            value = secret.get_secret_value()
            # A server may echo the whole header, or the bare key behind "Bearer ".
            for part in (value, *(word for word in value.split() if len(word) > 8)):
                for form in filter(None, (part, json.dumps(part)[1:-1])):
                    text = text.replace(form, "***")
        return text


class _RetryLaterError(Exception):
    def __init__(self, status: int, text: str, *, pause_s: float | None, held: bool) -> None:
        super().__init__(text)
        self.status, self.what = status, f"status {status}: {text}"
        self.pause_s, self.held = pause_s, held


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
