"""Path text: valid paths, and their display."""

from __future__ import annotations

import threading
import unicodedata

from callgate.core.errors import ToolValidationError

MAX_NAME = 255
"""Maximum bytes of one name, as on all common file systems."""
MAX_PATH = 4095
"""Maximum bytes of a path after the removal of `//` and `/./`."""
_MAX_TEXT = 65_536
_SHOWN = 200

_LOOK_ALIKE = frozenset({"Po", "Ps", "Pe", "Pi", "Pf", "Pd", "Pc", "Sm", "Sk"})


class _Inside(threading.local):
    depth = 0


_inside = _Inside()


def within_wall() -> bool:
    """Whether this thread is opening a file for the workspace boundary; for an audit hook."""
    return _inside.depth > 0


class opening:  # reads like a function; a generator would cost five times as much
    """Mark files opened in the block as opened by the workspace boundary."""

    __slots__ = ()

    def __enter__(self) -> None:
        _inside.depth += 1

    def __exit__(self, *exc: object) -> None:
        _inside.depth -= 1


def shown(path: str) -> str:
    """Return a path in quotes, with invisible and misleading characters escaped."""
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
    """Return a path as valid text, with bytes that are not UTF-8 as `\\xNN`."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def readable(name: str) -> str:
    """Return a name for a list: unchanged if it is harmless, else in quotes."""
    return name if name.isprintable() and name == name.strip() else shown(name)


def encode(path: str) -> bytes:
    """Return the bytes of a path. Raises `ToolValidationError` for an invalid one."""
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
    """Return the names of a path, without empty ones and `.`."""
    return [name for name in text.split(b"/") if name and name != b"."]


def wants_directory(text: bytes) -> bool:
    """Whether the end of a path requires a directory."""
    return text.endswith((b"/", b"/.")) or text == b"."


def invalid(path: str, why: str) -> ToolValidationError:
    return ToolValidationError(f"Path {shown(path)} {why}", reason="invalid_path")
