"""A local HTTP/1.1 server around one function, which remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Incoming:
    """One request; ``path`` has its query, header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON, None where there is no body."""
        return json.loads(self.body) if self.body else None


@dataclass(frozen=True, slots=True)
class Answer:
    """One response; a body of several chunks is sent as such, without a length."""

    body: bytes | Iterable[bytes] = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def answer_json(document: Any, status: int = 200, **headers: str) -> Answer:
    """``retry_after="2"`` becomes the header ``retry-after: 2``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(
        json.dumps(document).encode(), status, {"content-type": "application/json", **named}
    )


@dataclass(slots=True)
class LocalServer:
    """A running server: its origin, and the requests so far in order of arrival."""

    url: str
    requests: list[Incoming] = field(default_factory=list)


@contextmanager
def serve(respond: Callable[[Incoming], Answer]) -> Iterator[LocalServer]:
    """Serve on a free port of the loopback for the length of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two writes: 40 ms a page otherwise

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name upstream
            pass

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            incoming = Incoming(self.command, self.path, headers, body)
            local.requests.append(incoming)
            answer = respond(incoming)
            try:
                self._send(answer)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client has seen enough

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if isinstance(answer.body, bytes):
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
                return
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for chunk in answer.body:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    local = LocalServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield local
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
