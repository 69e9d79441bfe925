"""JSON that can be read in one way only; everything else is refused.

Two readers of the same bytes must never see two different calls, so beyond the grammar this
refuses duplicate keys, any encoding but UTF-8, a byte order mark, lone surrogates, NaN and
infinity in any spelling (`1e400`), and numbers, nesting, objects and documents too large: also
those that are small, but of so many values that reading them would hold up everybody.

Reading is done by msgspec, which refuses all of these but duplicates and sizes. Those are
found by comparing counts; only a document that looks suspicious is read a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, NoReturn

import msgspec

MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 64
MAX_DIGITS = 400
MAX_KEYS = 10_000
"""In one object."""
MAX_VALUES = 300_000
"""Of all objects and lists together."""

Refusal = Literal["size", "encoding", "syntax", "number", "depth", "keys", "duplicate_key"]

_SHOWN_KEY = 64
_CONTAINERS = frozenset({dict, list})
_DIGITS = bytes(ord("0") if byte in b"0123456789" else 0 for byte in range(256))
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class StrictJsonError(ValueError):
    """The text is not JSON that we take. `str(error)` repeats next to nothing of it."""

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
        raise StrictJsonError("size", f"{len(data)} bytes; at most {max_bytes} are taken")
    if len(data) > MAX_VALUES:
        _ensure_few_values(data)
    try:
        value = _decode(data)
    except (ValueError, RecursionError) as error:
        _refuse(error)
    size = len(data)
    # Each bound is checked only where the document is long enough to break it.
    if size > 2 * max_depth and data.count(b"[") + data.count(b"{") > max_depth:
        _check_depth(value, max_depth)
    if size > 4 * MAX_KEYS and data.count(b":") > MAX_KEYS:
        _check_keys(value)
    if size > MAX_DIGITS and _TOO_MANY_DIGITS in data.translate(_DIGITS):
        _read_again(data)
    written = _encode(value)
    if written != data:
        # What was written has each member that survived, and each colon of its texts, once.
        # Fewer colons than were read mean a dropped member; an escaped colon blurs the count.
        members = data.count(b":")
        if members > 1 and (written.count(b":") != members or b"\\u003" in data):
            _read_again(data)
    return value


def _ensure_few_values(data: bytes) -> None:
    """Before it is read. Most documents are long for their texts, which are looked at only where
    there are as many commas and brackets in all."""
    if _count_values(data) <= MAX_VALUES:
        return
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Beside a value there is at most a key: four quotation marks for both.
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
    if isinstance(error, msgspec.ValidationError):  # without a type, only numbers have a range
        raise StrictJsonError("number", "a number is out of range") from None
    raise StrictJsonError("syntax", str(error)) from None


def _levels(value: Any) -> Iterator[list[Any]]:
    """The containers at depth 1, at depth 2, and so on."""
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
    """Tell a real duplicate or an over-long number from a text that only looks like one."""
    _second_reader().decode(data.decode())
