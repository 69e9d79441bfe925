"""Strict JSON, and lines of it: input with exactly one reading; everything else is refused.

Two readers of the same bytes must never see two different calls. The reader therefore refuses,
beyond the grammar, duplicate keys, encodings other than UTF-8, a byte order mark, lone surrogates,
NaN and infinity in any spelling (`1e400`), and numbers, nesting, objects and documents above the
limits, also small documents with so many values that they would block other work. msgspec refuses
all of these except duplicates and sizes. Those are found by comparing counts, and only a suspicious
document is read a second time.

    feed(chunk) ---> the lines that it completes; None once for each line that is too long
    line(value) ---> its JSON as one line, which no reader splits

A line ends only at `\\n`. `feed` examines each byte once and copies it at most twice, for any sizes
of chunks. It never buffers more than one line of the maximum length: it drops a longer line
immediately and skips the rest of it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, NoReturn

import msgspec

MAX_LINE = 8 * 1024 * 1024
"""Bytes, without the newline."""

_MAX_SENT_DEPTH = 1_000
"""Maximum nesting of encoded values: about the limit of the encoder before Python 3.14."""

_BLANK = b" \t\r"
"""Blanks around a JSON value: CRLF is allowed, and a line of blanks is ignored."""

# Line ends for some readers (Node's readline, Python's splitlines), but not in JSON.
_MISTAKEN = (
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
    ("\u0085".encode(), rb"\u0085"),
)
_encode = msgspec.json.Encoder().encode
_ENCODER_BOUNDS_DEPTH = sys.version_info < (3, 14)  # later versions recurse as deep as the stack


class Unsendable(ValueError):
    """JSON cannot express the value, or it is longer than a line may be."""


def line(value: object) -> bytes:
    """Encode a value as a line, with its newline. Raises `Unsendable`."""
    try:
        data = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unsendable(f"not JSON: {type(error).__name__}") from error
    if not data.isascii():
        for written, escaped in _MISTAKEN:
            data = data.replace(written, escaped)
    if len(data) > MAX_LINE:
        raise Unsendable(f"{len(data)} bytes; at most {MAX_LINE} fit into one line")
    if not _ENCODER_BOUNDS_DEPTH and len(data) > 2 * _MAX_SENT_DEPTH and _is_too_deep(data):
        raise Unsendable(f"nested deeper than {_MAX_SENT_DEPTH}")
    return data + b"\n"


def _is_too_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= _MAX_SENT_DEPTH:
        return False
    import re  # lazy: few values have so many brackets  # noqa: PLC0415
    from itertools import accumulate  # lazy: the same  # noqa: PLC0415

    steps = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
    without_strings = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", data)
    return max(accumulate(steps.get(byte, 0) for byte in without_strings)) > _MAX_SENT_DEPTH


class Framer:
    __slots__ = ("_head", "_max_line", "_passed_over", "_unfinished", "heads", "longest")

    def __init__(self, max_line: int = MAX_LINE, head: int = 0) -> None:
        """`head`: number of bytes of each over-long line that are retained in `heads`."""
        self._max_line = max_line
        self._head = head
        self.heads: deque[bytes] = deque()
        """Beginnings of over-long lines, in order, for the caller to take; empty without `head`."""
        self._unfinished = bytearray()
        """The beginning of an incomplete line."""
        self._passed_over = 0
        """Bytes of an incomplete over-long line."""
        self.longest = 0
        """Bytes of the longest over-long line so far, complete or not."""

    @property
    def unfinished(self) -> int:
        """Bytes of an incomplete line."""
        return len(self._unfinished)

    def drop(self) -> None:
        """Release the memory of an unfinished line immediately, without garbage collection."""
        self._unfinished = bytearray()

    def feed(self, data: bytes) -> list[bytes | None]:
        """Return the lines that end in `data`, except blank ones; None for an over-long one."""
        lines: list[bytes | None] = []
        pieces = data.split(b"\n")
        tail = pieces.pop()
        if pieces and (self._unfinished or self._passed_over):
            self._hold(pieces.pop(0), lines)
            self._end(lines)
        for piece in pieces:
            if len(piece) > self._max_line:
                self._too_long(len(piece), piece, lines)
            elif line := piece.strip(_BLANK):
                lines.append(line)
        if tail:
            self._hold(tail, lines)
        return lines

    def _hold(self, piece: bytes, lines: list[bytes | None]) -> None:
        if self._passed_over:
            self._passed_over += len(piece)
            self.longest = max(self.longest, self._passed_over)
        elif (size := len(self._unfinished) + len(piece)) > self._max_line:
            self._too_long(size, bytes(self._unfinished[: self._head]) + piece[: self._head], lines)
            self._unfinished = bytearray()
            self._passed_over = size
        else:
            self._unfinished += piece

    def _end(self, lines: list[bytes | None]) -> None:
        if line := bytes(self._unfinished).strip(_BLANK):
            lines.append(line)
        self._unfinished = bytearray()
        self._passed_over = 0

    def _too_long(self, size: int, first: bytes, lines: list[bytes | None]) -> None:
        self.longest = max(self.longest, size)
        if self._head:
            self.heads.append(bytes(first[: self._head]))
        lines.append(None)


MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 64
MAX_DIGITS = 400
MAX_KEYS = 10_000
"""Maximum keys of one object."""
MAX_VALUES = 300_000
"""Maximum values of all objects and lists together."""

Refusal = Literal["size", "encoding", "syntax", "number", "depth", "keys", "duplicate_key"]

_SHOWN_KEY = 64
_CONTAINERS = frozenset({dict, list})
_DIGITS = bytes(ord("0") if byte in b"0123456789" else 0 for byte in range(256))
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)
_decode = msgspec.json.Decoder().decode


class StrictJsonError(ValueError):
    """The text is not acceptable JSON. `str(error)` quotes at most a few characters."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


def loads(data: bytes | str, *, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_BYTES) -> Any:
    """Decode one JSON document, or raise `StrictJsonError`."""
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError:
            raise StrictJsonError("encoding", "a lone surrogate is not Unicode text") from None
    if len(data) > max_bytes:
        raise StrictJsonError("size", f"{len(data)} bytes; the maximum is {max_bytes}")
    if len(data) > MAX_VALUES:
        _ensure_few_values(data)
    try:
        value = _decode(data)
    except (ValueError, RecursionError) as error:
        _refuse(error)
    size = len(data)
    # Each limit is checked only if the document is long enough to violate it.
    if size > 2 * max_depth and data.count(b"[") + data.count(b"{") > max_depth:
        _check_depth(value, max_depth)
    if size > 4 * MAX_KEYS and data.count(b":") > MAX_KEYS:
        _check_keys(value)
    if size > MAX_DIGITS and _TOO_MANY_DIGITS in data.translate(_DIGITS):
        _read_again(data)
    written = _encode(value)
    if written != data:
        # The encoded copy has each remaining member, and each colon in its texts, once.
        # Fewer colons than in the input mean a dropped member; an escaped colon blurs the count.
        members = data.count(b":")
        if members > 1 and (written.count(b":") != members or b"\\u003" in data):
            _read_again(data)
    return value


def _ensure_few_values(data: bytes) -> None:
    """Check the number of values before parsing. Most documents are long because of their texts,
    which are examined only if there are too many commas and brackets in total."""
    if _count_values(data) <= MAX_VALUES:
        return
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Next to a value there is at most a key: four quotation marks for both.
    few_texts = plain.count(b'"') <= 4 * MAX_VALUES
    if not few_texts or _count_values(b"".join(plain.split(b'"')[::2])) > MAX_VALUES:
        raise StrictJsonError("size", f"more than {MAX_VALUES} values")


def _count_values(data: bytes) -> int:
    return sum(map(data.count, (b",", b"[", b"{")))


def _refuse(error: ValueError | RecursionError) -> NoReturn:
    if isinstance(error, RecursionError):
        raise StrictJsonError("depth", "nested too deep") from None
    if isinstance(error, UnicodeDecodeError):
        raise StrictJsonError("encoding", "not UTF-8") from None
    if isinstance(error, msgspec.ValidationError):  # an untyped decode only limits numbers
        raise StrictJsonError("number", "a number is out of range") from None
    raise StrictJsonError("syntax", str(error)) from None


def _levels(value: Any) -> Iterator[list[Any]]:
    """Yield the containers at depth 1, at depth 2, and so on."""
    level = [value] if type(value) in _CONTAINERS else []
    while level:
        yield level
        level = [
            child
            for item in level
            for child in (item.values() if type(item) is dict else item)
            if type(child) in _CONTAINERS
        ]


def _check_depth(value: Any, max_depth: int) -> None:
    for depth, _ in enumerate(_levels(value), 1):
        if depth > max_depth:
            raise StrictJsonError("depth", f"nested deeper than {max_depth}")


def _check_keys(value: Any) -> None:
    for level in _levels(value):
        if any(type(item) is dict and len(item) > MAX_KEYS for item in level):
            raise StrictJsonError("keys", f"an object has more than {MAX_KEYS} keys")


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(items)
    if len(members) != len(items):
        seen: set[str] = set()
        for key, _ in items:
            if key in seen:
                shown = ascii(key[:_SHOWN_KEY])
                raise StrictJsonError("duplicate_key", f"the key {shown} stands twice")
            seen.add(key)
    return members


def _count_digits(text: str) -> None:
    if sum(map(str.isdigit, text)) > MAX_DIGITS:
        raise StrictJsonError("number", f"an integer has more than {MAX_DIGITS} digits")


@cache
def _second_reader() -> Any:
    import json  # lazy: most documents need no second look  # noqa: PLC0415

    return json.JSONDecoder(object_pairs_hook=_unique, parse_int=_count_digits)


def _read_again(data: bytes) -> None:
    """Distinguish a real duplicate or an over-long number from a text that looks like one."""
    _second_reader().decode(data.decode())
