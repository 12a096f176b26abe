"""What HTTP messages say: roots, dates, pauses and bounded JSON (pure)."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import numpy as np
import orjson

from scene_pipeline.errors import SettingsError

__all__ = [
    "MAX_DEPTH",
    "excerpt",
    "measure_depth",
    "parse_date",
    "parse_document",
    "parse_retry_after",
    "parse_root",
]

MAX_DEPTH = 64
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_NO_STRUCTURE = bytes(set(range(256)) - set(b'{}[]"'))
# A whole number of more digits may not fit 64 bits, which is all that the fast parser keeps.
_LONG_NUMBER = b"0" * 19
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)


def parse_root(text: str) -> httpx.URL:
    """The root URL of an API; raises `SettingsError` where it is none or holds credentials."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise SettingsError(
            f"url of a stream: {error}", next_step="write it as https://…"
        ) from None
    if url.scheme not in {"http", "https"} or not url.host or url.userinfo or url.query:
        raise SettingsError(
            "url of a stream is not http(s)://host/path alone",
            where=f"{url.scheme}://{url.host}{url.path}",
            next_step="put credentials into headers of the stream, as ${VARIABLE}",
        )
    return url


def parse_date(text: str | None) -> datetime | None:
    """An HTTP date as aware UTC, None for anything else."""
    try:
        parsed = parsedate_to_datetime(text or "")
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def parse_retry_after(text: str | None, server_at: datetime | None) -> float | None:
    """Seconds from now (RFC 9110, 10.2.3); a date counts from the server's own clock."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text.strip()[:12])
    until = parse_date(text)
    if until is None:
        return None
    return max(0.0, (until - (server_at or datetime.now(UTC))).total_seconds())


def excerpt(text: str) -> str:
    """The start of a text on one line, for a message."""
    printable = "".join(char if char.isprintable() else " " for char in text[:2000])
    return " ".join(printable.split())[:200]


def parse_document(body: bytes) -> Any:
    """The JSON of a body; raises `ValueError` where it is none or nested too deep.

    ``NaN`` and ``Infinity``, which are no JSON but are met, become null. Whole numbers of any
    length and lone surrogates are read as they are.
    """
    if measure_depth(body) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if _LONG_NUMBER not in body.translate(_DIGITS_TO_ZERO):
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            pass  # what the standard library takes as well
    return json.loads(body, parse_constant=lambda _: None)


def measure_depth(body: bytes) -> int:
    """How deep the brackets of a JSON text nest; of no meaning where it is no JSON.

    Counted on the bytes, because a walk over the parsed document takes as long as its parsing.
    """
    text = _ESCAPE.sub(b"", body) if b"\\" in body else body
    codes = np.frombuffer(text.translate(None, _NO_STRUCTURE), np.uint8)
    # Without escapes every second quote ends a string; the sum may wrap, its parity stays.
    outside = np.cumsum(codes == ord('"'), dtype=np.uint8) % 2 == 0
    folded = codes | 0x20  # "[" becomes "{" and "]" becomes "}"
    brackets = folded[((folded == ord("{")) | (folded == ord("}"))) & outside]
    levels = np.cumsum(np.where(brackets == ord("{"), 1, -1), dtype=np.int32)
    return int(levels.max(initial=0))
