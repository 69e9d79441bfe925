"""Which workspaces the user trusts to bring settings of their own (`callgate trust DIR`).

It does not lower any bar: that is `[policy] trusted_workspaces`. Neither implies the other.
"""

from __future__ import annotations

import os

import msgspec

from callgate.config.load import SettingsError
from callgate.config.places import Home, write_private


def trusted(home: Home) -> list[str]:
    """The trusted directories, resolved."""
    try:
        with open(home.trust, "rb") as file:
            return msgspec.json.decode(file.read(), type=list[str])
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SettingsError(home.trust, None, f"cannot be read: {error.strerror}") from None
    except msgspec.DecodeError:
        raise SettingsError(home.trust, 1, "is not a JSON list of directories") from None


def is_trusted(home: Home, workspace: str) -> bool:
    return os.path.realpath(workspace) in trusted(home)


def trust(home: Home, directory: str) -> str:
    """Trust one directory (not what lies below it); returns its resolved path."""
    real = os.path.realpath(os.path.expanduser(directory))
    if not os.path.isdir(real):
        raise NotADirectoryError(f"{directory} is not a directory")
    known = trusted(home)
    if real not in known:
        _write(home, [*known, real])
    return real


def distrust(home: Home, directory: str) -> bool:
    """Take the trust back; False if there was none."""
    real = os.path.realpath(os.path.expanduser(directory))
    known = trusted(home)
    if real in known:
        _write(home, [each for each in known if each != real])
    return real in known


def _write(home: Home, directories: list[str]) -> None:
    write_private(home.trust, msgspec.json.format(msgspec.json.encode(directories)).decode() + "\n")
