"""An S3 server over HTTP (moto) behind a proxy that counts requests and injects faults."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from moto.server import ThreadedMotoServer

from scene_pipeline.settings import S3Settings

Fault = Literal["throttled", "failing", "half-closed", "lost", "slow"]

_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
_CODES = {"throttled": (503, "SlowDown"), "failing": (500, "InternalError")}


@dataclass(frozen=True, slots=True)
class Request:
    """One request that the server saw; ``is_listing`` is a GET of the bucket itself."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def kind(self) -> str:
        """The method, or LIST for a GET that names no object."""
        plain = self.path.partition("?")[0].strip("/")
        return "LIST" if self.method == "GET" and "/" not in plain else self.method


class S3Server:
    """What tests hold: the endpoint, what was asked, and the faults still to come."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.requests: list[Request] = []
        self._faults: list[tuple[str, Fault]] = []
        self._lock = threading.Lock()

    def settings(self, **changes: object) -> S3Settings:
        """Settings of a client, with a short deadline."""
        fields = {
            "endpoint": self.endpoint,
            "region": "eu-central-1",
            "access_key": "test",
            "secret_key": "test",
            "timeout_s": 2.0,
            "deadline_s": 20.0,
        }
        return S3Settings.model_validate(fields | changes)

    def inject(self, fault: Fault, *, method: str, times: int = 1) -> None:
        """The next ``times`` requests of ``method`` meet ``fault``."""
        with self._lock:
            self._faults += [(method, fault)] * times

    def record(self, request: Request) -> Fault | None:
        """Note a request; the fault that it meets, if any."""
        with self._lock:
            self.requests.append(request)
            for entry in self._faults:
                if entry[0] == request.method:
                    self._faults.remove(entry)
                    return entry[1]
        return None

    @property
    def pending_faults(self) -> int:
        """Faults that no request has met yet."""
        return len(self._faults)

    def kinds(self) -> list[str]:
        """What kinds of requests were seen, in order, since the last `forget`."""
        return [request.kind for request in self.requests]

    def forget(self) -> None:
        """Start a new count."""
        with self._lock:
            self.requests.clear()
            self._faults.clear()


@contextmanager
def run_s3(bucket: str = "lake") -> Iterator[S3Server]:
    """A server with one empty bucket, until the block ends."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    backend = http.client.HTTPConnection(host, port)
    backend.request("PUT", f"/{bucket}", body=_LOCATION, headers=_SIGNED)
    if backend.getresponse().status != 200:
        raise RuntimeError(f"moto made no bucket {bucket}")
    backend.close()

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
    proxy.backend = (host, port)  # type: ignore[attr-defined]
    proxy.state = state = S3Server(f"http://127.0.0.1:{proxy.server_address[1]}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
        moto.stop()


_LOCATION = (
    "<CreateBucketConfiguration><LocationConstraint>eu-central-1</LocationConstraint>"
    "</CreateBucketConfiguration>"
)
# moto tells services apart by the scope of a signature.
_SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=test/20240601/eu-central-1/s3/aws4_request,"
    " SignedHeaders=host, Signature=0"
}


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.state.record(Request(self.command, self.path, dict(self.headers)))
        if fault in _CODES:
            status, code = _CODES[fault]
            self._reply(status, [("Content-Type", "application/xml")], _ERROR.format(code=code))
            return
        if fault == "slow":
            time.sleep(3)  # longer than the client's patience of 2 s
        backend = http.client.HTTPConnection(*self.server.backend)
        backend.request(self.command, self.path, body=body, headers=dict(self.headers))
        answer = backend.getresponse()
        content = answer.read()
        backend.close()
        if fault == "lost":
            self.close_connection = True
            return
        self._reply(answer.status, answer.getheaders(), content, half=fault == "half-closed")

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve  # noqa: N815  names of http.server

    def _reply(
        self, status: int, headers: list[tuple[str, str]], body: str | bytes, half: bool = False
    ) -> None:
        content = body.encode() if isinstance(body, str) else body
        if half and not content:
            self.wfile.write(b"HTTP/1.1 200 O")
            self.close_connection = True
            return
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"connection", "content-length", "transfer-encoding"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            self.wfile.write(content[: len(content) // 2] if half else content)
        except (BrokenPipeError, ConnectionResetError):
            half = True
        if half:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Quiet."""
