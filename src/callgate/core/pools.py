"""A workspace that lives on other machines: a pool of remote workers, and its name there.

    pool:build/app     workspace `app` of the workers of pool `build`

A session whose workspace is spelled so has no directory on this machine.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PREFIX = "pool:"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Of a pool, of a worker, and of a workspace in a pool."""
_NAME = re.compile(NAME + r"\Z")


class PoolWorkspace(NamedTuple):
    pool: str
    name: str

    def __str__(self) -> str:
        return f"{PREFIX}{self.pool}/{self.name}"


def is_pool_name(text: str) -> bool:
    return _NAME.match(text) is not None


def pool_workspace(workspace: str) -> PoolWorkspace | None:
    """Which workspace of which pool it is; None for a directory of this machine."""
    if not workspace.startswith(PREFIX):
        return None
    pool, slash, name = workspace.removeprefix(PREFIX).partition("/")
    if not slash or not is_pool_name(pool) or not is_pool_name(name):
        return None
    return PoolWorkspace(pool, name)
