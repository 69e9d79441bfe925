"""Whether only the user controls a home: no other user owns it, writes to it, or can replace it.

A user who can put files there controls settings, rules and trust. Light to import: every
`callgate call` starts with it.
"""

from __future__ import annotations

import os
import stat

HOOKS = "hooks"
"""Directory in the home with the scripts that agents run as hooks."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_UNMAPPED = 65_534
"""Owner id of files whose owner this process does not know, as in a container."""


class UnsafeHome(Exception):
    """The home is not used; the message is safe to show. `hint` has the solution."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def home_path() -> str:
    """Return the home that the environment names. Raises `UnsafeHome` if others control it."""
    chosen = os.environ.get("CALLGATE_HOME") or "~/.callgate"
    path = os.path.abspath(os.path.expanduser(chosen))
    ensure_safe(path)
    return path


def ensure_safe(path: str) -> None:
    """Raise `UnsafeHome` for a home that others control; close one that they can only read."""
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError:  # it does not exist yet, or the code that uses it reports the error
        status = None
    if status is not None and stat.S_ISDIR(status.st_mode):
        _check_home(real, status)
    parent = os.path.dirname(real)
    while True:
        _check_parent(real, parent)
        if parent == os.path.dirname(parent):
            return
        parent = os.path.dirname(parent)


def _check_home(real: str, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UnsafeHome(
            f"the home {real} belongs to another user ({_name(status.st_uid)})",
            f"Run this as {_name(status.st_uid)}, or set CALLGATE_HOME to a directory of yours.",
        )
    if status.st_mode & _OTHERS_WRITE:
        raise UnsafeHome(
            f"others can write to the home {real}",
            f"Check that you own everything in it, then chmod 700 {real}",
        )
    if status.st_mode & 0o077:
        try:
            os.chmod(real, 0o700)
        except OSError:  # a read-only file system
            pass


def _check_parent(real: str, parent: str) -> None:
    try:
        status = os.stat(parent)
    except OSError:  # does not exist yet
        return
    if status.st_uid not in (0, os.geteuid(), _UNMAPPED):
        raise UnsafeHome(
            f"{parent} belongs to another user ({_name(status.st_uid)}), who can replace {real}",
            "Run this as that user, or set CALLGATE_HOME to a directory of yours.",
        )
    if status.st_mode & stat.S_ISVTX or not status.st_mode & _OTHERS_WRITE:
        return
    own_group = status.st_gid == os.getegid() == os.geteuid()  # has no other members
    if status.st_mode & stat.S_IWOTH or not own_group:
        raise UnsafeHome(
            f"others can write to {parent}, and so replace the home {real}",
            f"chmod go-w {parent}, or set CALLGATE_HOME to another directory.",
        )


def _name(uid: int) -> str:
    import pwd  # lazy: only for a message  # noqa: PLC0415

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
