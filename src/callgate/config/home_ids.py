"""What tells a home from the others that share a store: a small file with an id, made once.

A home that is copied must not keep it: two homes with one id take each other's journals for read.
`home_place` tells them apart while both are in use.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.core.ids import ulid

_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\Z")


def home_id(home: Home) -> str:
    """The id of a home, which gets one if it has none. `SettingsError` where it is damaged."""
    known = known_home_id(home)
    if known is not None:
        return known
    home.make()
    temporary = f"{home.id}.{ulid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, f"{ulid()}\n".encode())
        os.fsync(descriptor)
        with suppress(FileExistsError):  # another process was faster
            os.link(temporary, home.id)
    finally:
        os.close(descriptor)
        os.unlink(temporary)
    return home_id(home)


def known_home_id(home: Home) -> str | None:
    """The id of a home; None where it has none."""
    try:
        with open(home.id, encoding="ascii", errors="replace") as file:
            text = file.read(100).strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(home.id, None, f"cannot be read: {error.strerror}") from None
    if not _ID.match(text):
        raise SettingsError(home.id, 1, "is not the id of a home; restore it, or remove the file")
    return text


def home_place(home: Home) -> str:
    """Where the directory of a home is: the same for all its processes, another for a copy."""
    found = os.stat(home.path)
    return f"{_machine()}:{found.st_dev:x}:{found.st_ino:x}"


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(100).strip()
    except OSError:
        return os.uname().nodename
