"""Path text: which strings may name a file at all, and how a path is shown."""

from __future__ import annotations

import threading
import unicodedata

from callgate.core.errors import ToolValidationError

MAX_NAME = 255
"""Bytes of one name, as on every usual file system."""
MAX_PATH = 4095
"""Bytes of a path once `//` and `/./` are gone."""
_MAX_TEXT = 65_536
_SHOWN = 200

_LOOK_ALIKE = frozenset({"Po", "Ps", "Pe", "Pi", "Pf", "Pd", "Pc", "Sm", "Sk"})


class _Inside(threading.local):
    depth = 0


_inside = _Inside()


def within_wall() -> bool:
    """Whether this thread opens a file for the wall just now; an audit hook asks this."""
    return _inside.depth > 0


class opening:  # reads like a function; a generator would cost five times as much
    """Mark what is opened in the block as opened by the wall."""

    __slots__ = ()

    def __enter__(self) -> None:
        _inside.depth += 1

    def __exit__(self, *exc: object) -> None:
        _inside.depth -= 1


def shown(path: str) -> str:
    """A path in quotes, with everything made visible that could hide or imitate something."""
    text = path if len(path) <= _SHOWN else path[:_SHOWN] + "…"
    quoted = repr(text)
    if quoted.isascii():
        return quoted
    return "".join(_visible(char) for char in quoted)


def _visible(char: str) -> str:
    if char.isascii() or char == "…" or unicodedata.category(char) not in _LOOK_ALIKE:
        return char
    return char.encode("ascii", "backslashreplace").decode()


def sayable(text: str) -> str:
    """A path from the disk as text that can be sent: bytes that are no text as `\\xNN`."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def readable(name: str) -> str:
    """A name for a list: as it is where it is harmless, in quotes where it is not."""
    return name if name.isprintable() and name == name.strip() else shown(name)


def encode(path: str) -> bytes:
    """The bytes of a path that may name a file. Raises `ToolValidationError` for others."""
    if isinstance(path, str) and path.isascii() and 0 < len(path) <= MAX_NAME:
        if "\0" not in path:
            return path.encode()
        raise invalid(path, "contains a NUL character")
    return _encode_unusual(path)


def _encode_unusual(path: str) -> bytes:
    if not isinstance(path, str):
        raise ToolValidationError("A path must be a string", reason="invalid_path")
    if not path:
        raise invalid(path, "is empty")
    if len(path) > _MAX_TEXT:
        raise invalid(path, "is too long")
    if "\0" in path:
        raise invalid(path, "contains a NUL character")
    try:
        text = path.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid(path, "is not valid Unicode") from None
    names = split(text)
    if any(len(name) > MAX_NAME for name in names):
        raise invalid(path, "contains a name that is too long")
    if len(text) > MAX_PATH:
        text = b"/" * text.startswith(b"/") + b"/".join(names) + b"/" * wants_directory(text)
        if len(text) > MAX_PATH:
            raise invalid(path, "is too long")
    return text or b"."


def split(text: bytes) -> list[bytes]:
    """The names of a path, without the ones that say nothing."""
    return [name for name in text.split(b"/") if name and name != b"."]


def wants_directory(text: bytes) -> bool:
    """Whether a path ends so that only a directory can be meant."""
    return text.endswith((b"/", b"/.")) or text == b"."


def invalid(path: str, why: str) -> ToolValidationError:
    return ToolValidationError(f"Path {shown(path)} {why}", reason="invalid_path")
