"""A session: its client, workspace, mode and marks, and the resolved paths inside its workspace.

A workspace is a directory of this machine, or a directory on remote workers:

    pool:build/app     workspace `app` of the workers of pool `build`
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from callgate.core.ids import session_id


class Client(msgspec.Struct, frozen=True, kw_only=True):
    process: int | None = None
    """Process id, from the operating system."""
    program: str | None = None
    """Path of its executable, from the operating system."""
    directory: str | None = None
    """Its working directory, from the operating system."""
    address: str | None = None
    """Network address, if the client is not an identified local process."""
    name: str | None = None
    """The name that the client declares, without secrets. Not verified."""

    @property
    def label(self) -> str | None:
        """Short display name: the declared name, or else the name of the executable."""
        if self.name:
            return self.name
        return None if self.program is None else self.program.rpartition("/")[2]


class Mode(StrEnum):
    """Upper limit for the effects that the policy can allow in a session."""

    NONE = "none"
    READ = "read"
    ASK = "ask"
    GUARDED = "guarded"
    """Calls inside the workspace run, and calls to destinations that the user named. Others need
    approval.
    """
    WRITE = "write"


class Root(msgspec.Struct, frozen=True):
    """An additional directory, confined like the workspace."""

    path: str
    writable: bool = False


POOL_PREFIX = "pool:"
POOL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern for the names of pools, workers and pool workspaces."""
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
    """Return the pool workspace, or None for a directory of this machine."""
    if not workspace.startswith(POOL_PREFIX):
        return None
    pool, slash, name = workspace.removeprefix(POOL_PREFIX).partition("/")
    if not slash or not is_pool_name(pool) or not is_pool_name(name):
        return None
    return PoolWorkspace(pool, name)


class Session(msgspec.Struct, kw_only=True):
    workspace: str
    """An absolute path (`~` is expanded), or the workspace of a pool (`pool:build/app`)."""
    id: str = msgspec.field(default_factory=session_id)
    mode: Mode = Mode.ASK
    """May change while calls run: each call reads it during authorization."""
    extra_roots: tuple[Root, ...] = ()
    tags: frozenset[str] = frozenset()
    model: str | None = None
    """The settings name of the model that works in the session. Rules can use its tags."""
    turn_id: str | None = None
    """The running turn, if an agent works in this session."""
    is_worker: bool = False
    """The session belongs to a sub-agent: some tools are hidden, and `always` answers count once.
    """
    parent: str | None = None
    """The session that started this sub-agent's session."""
    title: str | None = None
    client: Client | None = None
    """The client that uses the session, as the surface identified it. None: this process."""
    pool: PoolWorkspace | None = None
    """The pool of the workspace, derived from `workspace`. None: a directory of this machine."""

    def __post_init__(self) -> None:
        self.pool = pool_workspace(self.workspace)
        if self.pool is None:
            self.workspace = os.path.abspath(os.path.expanduser(self.workspace))
        self.mode = Mode(self.mode)


class ResolvedPath(msgspec.Struct, frozen=True, kw_only=True):
    given: str
    """The path as the caller wrote it."""
    real: str
    """Absolute, with all links resolved. Components that do not exist are unchanged."""
    root: str
    """The workspace or extra root that contains the path."""
    relative: str
    """Relative to `root`; `.` is the root itself."""
    exists: bool
    protected: bool
    """The path leads to code that is executed automatically later (`.git`, shell start-up files,
    editor tasks).
    """
    writable: bool


OpenSession = Callable[[str | None, str], Session]
"""Open a session with an id, in a directory or in the default one. Raises a `ToolError`."""


class SettingsState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    version: str
    """Version of the active policy. Equal files have equal versions."""
    problem: str | None = None
    """Why the current files cannot be used. The previous settings stay active, and calls with
    effects are refused.
    """
    restart_for: tuple[str, ...] = ()
    """Changed parts of the settings that take effect only after a restart."""
