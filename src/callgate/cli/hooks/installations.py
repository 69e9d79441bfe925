"""What we have written into agents' settings, and what stood there before: HOME/hooks/AGENT."""

from __future__ import annotations

import hashlib
import os

import msgspec

from callgate.config.agents.settings_files import hook_directory
from callgate.core.directories import write_private


class Installed(msgspec.Struct, frozen=True):
    path: str
    before: str | None
    """None: there was no file."""
    after_sha256: str
    url: str | None = None
    """Address of an HTTP hook; only versions before the command form wrote one."""


class Edit(msgspec.Struct, frozen=True):
    path: str
    before: str | None
    after: str | None
    """None: the file is removed."""


def remember(home: str, agent: str, edit: Edit, original: str | None) -> None:
    """Store the text to restore: that of before the first installation, else `original`."""
    known = remembered(home, agent)
    kept = [each for each in known if each.path != edit.path]
    first = next((each for each in known if each.path == edit.path), None)
    before = original
    if first is not None and first.after_sha256 == hash_of(edit.before):
        before = first.before
    kept.append(Installed(edit.path, before, hash_of(edit.after)))
    _keep(home, agent, kept)


def remembered(home: str, agent: str) -> list[Installed]:
    try:
        with open(_record(home, agent), "rb") as file:
            return msgspec.json.decode(file.read(), type=list[Installed])
    except (OSError, ValueError, RecursionError):
        return []


def forget(home: str, agent: str, path: str) -> None:
    _keep(home, agent, [each for each in remembered(home, agent) if each.path != path])


def _keep(home: str, agent: str, installed: list[Installed]) -> None:
    write_private(_record(home, agent), msgspec.json.encode(installed).decode())


def _record(home: str, agent: str) -> str:
    return os.path.join(hook_directory(home, agent), "installed.json")


def hash_of(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()
