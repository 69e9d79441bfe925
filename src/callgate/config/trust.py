"""Which workspaces the user trusts to bring settings, skills and MCP servers (`callgate trust`).

It does not lower any bar: that is `[policy] trusted_workspaces`. Neither implies the other.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import msgspec

from callgate.config.brought_items import SKILL, brought_items
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.core.directories import write_private

if TYPE_CHECKING:
    from callgate.config.mirror import Mirror

_log = logging.getLogger("callgate.trust")


def trusted(home: Home) -> list[str]:
    """The trusted directories, resolved."""
    return list(_read(home))


def is_trusted(home: Home, workspace: str) -> bool:
    """Whether its settings are read, which only narrow."""
    return os.path.realpath(workspace) in _read(home)


def admits_skills(home: Home, workspace: str) -> bool:
    """Whether the skills of a workspace count: it is trusted, and none was added or changed since
    the person was shown them. MCP servers are approved one by one (`pins`)."""
    real = os.path.realpath(workspace)
    known = _read(home)
    if real not in known:
        return False
    unseen = [name for name in unseen_items(home, real) if name.startswith(SKILL)]
    if unseen:
        _log.warning(
            "%s: new or changed since it was trusted, so no skill of it counts: %s."
            " callgate trust %s shows and admits it.",
            real,
            ", ".join(unseen),
            real,
        )
    return not unseen


def unseen_items(home: Home, directory: str) -> dict[str, str]:
    """What a workspace brings that was not there when it was trusted: `new` or `changed`."""
    real = os.path.realpath(directory)
    seen = _read(home).get(real, {})
    return {
        name: "changed" if name in seen else "new"
        for name, digest in brought_items(real).items()
        if seen.get(name) != digest
    }


def trust(home: Home, directory: str) -> str:
    """Trust one directory (not what lies below it) as it is now; returns its resolved path."""
    real = os.path.realpath(os.path.expanduser(directory))
    if not os.path.isdir(real):
        raise NotADirectoryError(f"{directory} is not a directory")
    items = brought_items(real)
    mirror = _mirror(home)
    if mirror is not None:
        mirror.trust(real, items)
    else:
        _write(home, {**_read(home), real: items})
    return real


def distrust(home: Home, directory: str) -> bool:
    """Take the trust back; False if there was none."""
    real = os.path.realpath(os.path.expanduser(directory))
    known = _read(home)
    mirror = _mirror(home)
    if mirror is not None:
        mirror.distrust(real)
    elif real in known:
        _write(home, {each: items for each, items in known.items() if each != real})
    return real in known


def _mirror(home: Home) -> Mirror | None:
    """Where the trust of several homes is kept; None: this one has its own."""
    from callgate.config.stores import configured_store  # lazy: few commands change it  # noqa: PLC0415

    shared = configured_store(home)
    if shared is None:
        return None
    from callgate.config.mirror import Mirror  # lazy: most homes share nothing  # noqa: PLC0415

    return Mirror(home, shared)


def _read(home: Home) -> dict[str, dict[str, str]]:
    """By directory: what was admitted, with its hash."""
    try:
        with open(home.trust, "rb") as file:
            known = msgspec.json.decode(file.read(), type=dict[str, dict[str, str]] | list[str])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(home.trust, None, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise SettingsError(home.trust, 1, "is not a JSON object of directories") from None
    # A list is of a version that did not look at what a workspace brings.
    return known if isinstance(known, dict) else {directory: {} for directory in known}


def _write(home: Home, known: dict[str, dict[str, str]]) -> None:
    write_private(home.trust, msgspec.json.format(msgspec.json.encode(known)).decode() + "\n")
