"""What a workspace brings beside settings that only narrow: skills and MCP servers, by hash.

Trust is given to what a person was shown. What is added or changed later has another hash, and
does not count before it is shown again.
"""

from __future__ import annotations

import hashlib
import os
import tomllib

import msgspec

from callgate.config.home import workspace_settings

SKILL, MCP = "skill", "mcp server"
_MOST_FILES = 2_000
_MOST_BYTES = 32 * 1024 * 1024


def brought_items(workspace: str) -> dict[str, str]:
    """`skill NAME` and `mcp server NAME`, each with the hash of what it is now."""
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
    """Of all files below, with their names. What is too large to look at never has the same."""
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
            return link + (b"" if os.path.isdir(path) else _read(path))
        return _read(path) if os.path.isfile(path) else b"no file"
    except OSError:
        return os.urandom(16)  # what cannot be read was not looked at


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MOST_BYTES + 1)


def _encoded(table: object) -> bytes:
    return msgspec.json.encode(table, order="deterministic")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
