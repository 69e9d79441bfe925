"""Trusted workspaces (`callgate trust`), and items that need trust: skills, MCP servers, by hash.

Trust covers the items that the user has reviewed. A later item has another hash, and is not trusted
before the user has seen it. Trust lowers no policy (`[policy] trusted_workspaces` does), and
neither implies the other.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tomllib

import msgspec

from callgate.config.home import Home, workspace_settings
from callgate.config.load import SettingsError
from callgate.core.local.disk import write_private
from callgate.policy.rules import is_within

SKILL, MCP = "skill", "mcp server"
_MOST_FILES = 2_000
_MOST_BYTES = 32 * 1024 * 1024


def brought_items(workspace: str) -> dict[str, str]:
    """Return `skill NAME` and `mcp server NAME`, each with the hash of its present content."""
    return {**_skills(workspace), **_servers(workspace)}


def _servers(workspace: str) -> dict[str, str]:
    try:
        with open(workspace_settings(workspace), "rb") as file:
            tables = tomllib.load(file).get("mcp", {})
    except (OSError, ValueError, RecursionError):  # reading the settings reports this
        return {}
    named = tables.items() if isinstance(tables, dict) else ()
    return {f"{MCP} {name}": _hash(_encoded(table)) for name, table in named}


def _skills(workspace: str) -> dict[str, str]:
    directory = os.path.join(workspace, ".callgate", "skills")
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return {}
    return {f"{SKILL} {name}": _hash_tree(os.path.join(directory, name)) for name in names}


def _hash_tree(path: str) -> str:
    """Hash all files below, with their names. The hash of a tree that is too large is random."""
    digest = hashlib.sha256()
    count = size = 0
    for parent, directories, files in os.walk(path):
        directories.sort()
        for name in sorted(files):
            file = os.path.join(parent, name)
            content = _content(file)
            count, size = count + 1, size + len(content)
            if count > _MOST_FILES or size > _MOST_BYTES:
                return _hash(os.urandom(16))
            relative = os.path.relpath(file, path)
            digest.update(_hash(os.fsencode(relative)).encode() + _hash(content).encode())
    digest.update(_content(path) if not os.path.isdir(path) or os.path.islink(path) else b"")
    return digest.hexdigest()


def _content(path: str) -> bytes:
    try:
        if os.path.islink(path):
            link = os.fsencode(os.readlink(path))
            return link + (b"" if os.path.isdir(path) else _read_item(path))
        return _read_item(path) if os.path.isfile(path) else b"no file"
    except OSError:
        return os.urandom(16)  # the user cannot have reviewed an unreadable file


def _read_item(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MOST_BYTES + 1)


def _encoded(table: object) -> bytes:
    return msgspec.json.encode(table, order="deterministic")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_log = logging.getLogger("callgate.trust")


def trusted(home: Home) -> list[str]:
    """Return the trusted directories, with links resolved."""
    return list(_read(home))


def is_trusted(home: Home, workspace: str) -> bool:
    """Whether a workspace is trusted, so that its settings (which only narrow) are read."""
    return os.path.realpath(workspace) in _read(home)


def is_within_trusted(home: Home, directory: str) -> bool:
    """Whether a directory is trusted or inside a trusted one: instances accept calls from there.

    Settings, skills and servers apply only in the trusted directory itself.
    """
    real = os.path.realpath(directory)
    return any(is_within(real, each) for each in _read(home))


def admits_skills(home: Home, workspace: str) -> bool:
    """Whether the skills of a workspace are used: it is trusted, and none is new or changed since
    then.

    MCP servers are approved one by one (`pins`).
    """
    real = os.path.realpath(workspace)
    known = _read(home)
    if real not in known:
        return False
    unseen = [name for name in unseen_items(home, real) if name.startswith(SKILL)]
    if unseen:
        _log.warning(
            "%s: new or changed since it was trusted, so none of its skills is used: %s."
            " callgate trust %s shows and admits them.",
            real,
            ", ".join(unseen),
            real,
        )
    return not unseen


def unseen_items(home: Home, directory: str) -> dict[str, str]:
    """Return the items of a workspace that trust does not cover: `new` or `changed`."""
    real = os.path.realpath(directory)
    seen = _read(home).get(real, {})
    return {
        name: "changed" if name in seen else "new"
        for name, digest in brought_items(real).items()
        if seen.get(name) != digest
    }


def trust(home: Home, directory: str) -> str:
    """Trust the present state of one directory, without those below. Return its resolved path."""
    real = os.path.realpath(os.path.expanduser(directory))
    if not os.path.isdir(real):
        raise NotADirectoryError(f"{directory} is not a directory")
    items = brought_items(real)
    from callgate.config.stores import configured_store, shared_homes  # lazy: heavy  # noqa: PLC0415

    shared = configured_store(home)
    if shared is not None:
        shared_homes().trust(home, shared, real, items)
    else:
        _write(home, {**_read(home), real: items})
    return real


def distrust(home: Home, directory: str) -> bool:
    """Revoke the trust; False if there was none."""
    real = os.path.realpath(os.path.expanduser(directory))
    known = _read(home)
    from callgate.config.stores import configured_store, shared_homes  # lazy: heavy  # noqa: PLC0415

    shared = configured_store(home)
    if shared is not None:
        shared_homes().distrust(home, shared, real)
    elif real in known:
        _write(home, {each: items for each, items in known.items() if each != real})
    return real in known


def _read(home: Home) -> dict[str, dict[str, str]]:
    """Return the admitted items by directory, with their hashes."""
    try:
        with open(home.trust, "rb") as file:
            known = msgspec.json.decode(file.read(), type=dict[str, dict[str, str]] | list[str])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(home.trust, None, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise SettingsError(home.trust, 1, "is not a JSON object of directories") from None
    # Older versions wrote a list, without items.
    return known if isinstance(known, dict) else {directory: {} for directory in known}


def _write(home: Home, known: dict[str, dict[str, str]]) -> None:
    write_private(home.trust, msgspec.json.format(msgspec.json.encode(known)).decode() + "\n")
