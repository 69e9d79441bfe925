"""Saves the login of an agent after a run in the sandbox: known values only, never settings.

    login(before, after, current) -> text to write, or None

`before` is the file at the start of the run, `after` at its end, and `current` is the present file
in the user's home. A value is saved if the run changed it, the table lists it, and it is a short
plain value. The rest of the user's file stays unchanged, because it may contain settings that name
programs.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from typing import Any

from callgate.core.local.disk import make_private_directory
from callgate.features.agents.known.values import Login

LARGEST = 16 * 1024 * 1024
"""Maximum size of a login file. Claude Code's file also contains the settings of each project."""
_LONGEST = 64 * 1024
_MOST_ENTRIES = 200
_MISSING = object()
_ENCRYPTED = re.compile(r"[0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+\n?")
"""Initialization vector, authentication tag and data."""


def merge(login: Login, before: str | None, after: str, current: str | None) -> str | None:
    """Return the new text of the user's file; None if it stays unchanged."""
    if login.is_encrypted:
        is_valid = _ENCRYPTED.fullmatch(after) is not None
        return after if is_valid and after not in (before, current) else None
    old, new = _decoded(before), _decoded(after)
    target = _decoded(current) if current and current.strip() else {}
    if target is None or new is None:
        return None
    changes = [
        (path, value)
        for key in login.values
        for path, value in _values(new, tuple(key.split(".")))
        if _is_allowed(login, path, new, target) and value != _at(old, path)
    ]
    for path, value in changes[:_MOST_ENTRIES]:
        if not _put(target, path, value):
            return None
    text = json.dumps(target, indent=2)
    return text if changes and target != _decoded(current) else None


def _decoded(text: str | None) -> dict[str, Any] | None:
    """Return the JSON object of a file; None if it is not an object."""
    try:
        value = json.loads(text or "", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _values(value: Any, keys: tuple[str, ...], at: tuple[str, ...] = ()) -> Iterator[Any]:
    """Yield every plain value that matches the keys, with its path."""
    if not keys:
        if _is_plain(value):
            yield at, value
        return
    if not isinstance(value, dict):
        return
    names = list(value)[:_MOST_ENTRIES] if keys[0] == "*" else [keys[0]]
    for name in names:
        if name in value:
            yield from _values(value[name], keys[1:], (*at, name))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _MOST_ENTRIES and all(isinstance(each, str) for each in value)
    if isinstance(value, str):
        return len(value) <= _LONGEST
    return value is None or isinstance(value, bool | int | float)


def _is_allowed(login: Login, path: tuple[str, ...], *documents: dict[str, Any]) -> bool:
    """Return whether the type of the value's entry is allowed, before and after the run."""
    if not login.types:
        return True
    entries = [document[path[0]] for document in documents if path[0] in document]
    return all(isinstance(each, dict) and each.get("type") in login.types for each in entries)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _put(target: dict[str, Any], path: tuple[str, ...], value: Any) -> bool:
    """Set a value. Return False if the path leads through a value that is not an object."""
    for name in path[:-1]:
        below = target.setdefault(name, {})
        if not isinstance(below, dict):
            return False
        target = below
    target[path[-1]] = value
    return True


# --- files ----------------------------------------------------------------------------------


def text_of(path: str) -> str | None:
    """Return the text of a regular file of bounded size; None for anything else."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(LARGEST + 1)
        return data.decode() if len(data) <= LARGEST else None
    except (OSError, UnicodeDecodeError):
        return None


def save(login: Login, before: str | None, after: str | None, path: str) -> bool:
    """Write the values that a run changed to the user's file. Returns whether anything changed."""
    if after is None:
        return False
    real = os.path.realpath(path)
    current = text_of(real)
    if current is None and os.path.lexists(real):
        return False
    text = merge(login, before, after, current)
    if text is None:
        return False
    mode = stat.S_IMODE(os.stat(real).st_mode) if current is not None else 0o600
    make_private_directory(os.path.dirname(real))
    temporary = f"{real}.callgate-{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(descriptor, mode)
        os.replace(temporary, real)
    except BaseException:
        os.unlink(temporary)
        raise
    return True
