"""A session: the workspace, the mode and the marks under which calls are made.

A workspace is a directory of this machine, or one that lives on remote workers:

    pool:build/app     workspace `app` of the workers of pool `build`
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import NamedTuple

import msgspec

from callgate.core.clients import Client
from callgate.core.ids import session_id


class Mode(StrEnum):
    """The ceiling over everything the policy may allow in a session."""

    NONE = "none"
    READ = "read"
    ASK = "ask"
    GUARDED = "guarded"
    """Runs what stays in the workspace, and what goes where the user said; asks about the rest."""
    WRITE = "write"


class Root(msgspec.Struct, frozen=True):
    """One more directory beside the workspace, with the same wall around it."""

    path: str
    writable: bool = False


POOL_PREFIX = "pool:"
POOL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Of a pool, of a worker, and of a workspace in a pool."""
_POOL_NAME = re.compile(POOL_NAME + r"\Z")


class PoolWorkspace(NamedTuple):
    """A workspace on the workers of a pool."""

    pool: str
    name: str

    def __str__(self) -> str:
        return f"{POOL_PREFIX}{self.pool}/{self.name}"


def is_pool_name(text: str) -> bool:
    return _POOL_NAME.match(text) is not None


def pool_workspace(workspace: str) -> PoolWorkspace | None:
    """Which workspace of which pool it is; None for a directory of this machine."""
    if not workspace.startswith(POOL_PREFIX):
        return None
    pool, slash, name = workspace.removeprefix(POOL_PREFIX).partition("/")
    if not slash or not is_pool_name(pool) or not is_pool_name(name):
        return None
    return PoolWorkspace(pool, name)


class Session(msgspec.Struct, kw_only=True):
    workspace: str
    """Absolute once made, `~` is expanded; or the workspace of a pool (`pool:build/app`)."""
    id: str = msgspec.field(default_factory=session_id)
    mode: Mode = Mode.ASK
    """May change while calls run: each call reads it when it is authorized."""
    extra_roots: tuple[Root, ...] = ()
    tags: frozenset[str] = frozenset()
    model: str | None = None
    """Who is at work in it, by its name in the settings; its tags count."""
    turn_id: str | None = None
    """The turn under way, if an agent works in this session."""
    is_worker: bool = False
    """A sub-agent's session: some tools are hidden, `always` answers count once."""
    parent: str | None = None
    """The session that a worker's session works for."""
    title: str | None = None
    client: Client | None = None
    """Who works in it, as the surface found it; None: this process."""
    pool: PoolWorkspace | None = None
    """Where its workspace lives, if not on this machine; follows from `workspace`."""

    def __post_init__(self) -> None:
        self.pool = pool_workspace(self.workspace)
        if self.pool is None:
            self.workspace = os.path.abspath(os.path.expanduser(self.workspace))
        self.mode = Mode(self.mode)
