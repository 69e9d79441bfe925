"""The policies in force: the user's, and the narrowing by each trusted workspace.

    check of the files -> unchanged                -> the present book
                       -> changed                  -> a new book
                       -> changed, but unusable    -> the old book, which refuses effects

A change takes effect with the next call, without a notification.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from callgate.config.home import Home, workspace_settings
from callgate.config.load import SettingsError, load_user, load_workspace
from callgate.config.schema import TABLES, Settings
from callgate.config.trust import is_trusted
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolPermissionDenied
from callgate.core.events import SETTINGS_REJECTED, SETTINGS_RELOADED, Event
from callgate.core.ids import ulid
from callgate.core.sessions import pool_workspace
from callgate.core.tools import ToolFactory
from callgate.policy.decide import PathRule, Rulebook, binding_processes
from callgate.policy.decisions import refuse_effects
from callgate.policy.rules import Origin, Policy

if TYPE_CHECKING:
    from callgate.core.sessions import SettingsState

_LIVE = frozenset(
    (
        "policy",
        "tools",
        "sandbox",
        "workspace",
        "agent",
        "model",
        "models",
        "instance",
        "secrets",
        "notify",
        "hooks",
        "mcp",
    )
)
"""Parts of the settings that are read when they are used: in `tools` the disabled ones, in
`sandbox` all but its existence.
"""
LOOK_EVERY_S = 0.005
"""Minimum time between checks of the files: one call uses its book several times."""
_SETTLED_NS = 100_000_000
"""A file changed more recently may change again with the same timestamp, which is that coarse."""


class _Files:
    """Files that are checked together. The caller reads them after a change."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths
        self._stamps: tuple[object, ...] = ()
        self.digest = b""

    def changed(self) -> bool:
        """Whether their content differs from the last check."""
        now = time.time_ns()
        stamps = tuple(_stamp(path, now) for path in self._paths)
        if stamps == self._stamps and None not in stamps:
            return False
        self._stamps = stamps
        before, self.digest = self.digest, _digest(self._paths)
        return before != self.digest


class _Narrowing(NamedTuple):
    files: _Files
    policy: Policy | None
    problem: SettingsError | None


class _Known(NamedTuple):
    looked_at: float
    book: Rulebook
    made_from: tuple[object, ...]


class PolicyBook:
    """The policy for each workspace, according to the present files.

    The constructor raises `SettingsError` for unusable files. Later the book retains the last
    usable settings, and refuses calls with effects until the files are valid.
    """

    def __init__(
        self,
        home: Home,
        *,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called after the user's files were reloaded, even if they are unusable."""
        self._home = home
        self._changed = changed
        self._clock = clock
        self._files = _Files(home.settings, home.saved_rules)
        self._files.changed()
        self.settings: Settings
        self.settings, self._user = load_user(home)
        self._first_settings = self.settings
        self.problem: SettingsError | None = None
        """Why the present files of the user are not in force."""
        self._withheld: SettingsError | None = None
        self._narrowings: dict[str, _Narrowing] = {}
        self._books: dict[str, _Known] = {}

    def refresh(self) -> None:
        """Apply changes of the user's files now."""
        if not self._files.changed():
            return
        try:
            self.settings, self._user = load_user(self._home)
            self.problem = None
        except SettingsError as error:
            self.problem = error
        self._books.clear()  # none may be used for the rest of its `LOOK_EVERY_S`
        self._changed()

    def withhold(self, problem: SettingsError | None) -> None:
        """Refuse calls with effects for a reason outside the files; None ends this."""
        if self._withheld is not problem:
            self._withheld = problem
            self._books.clear()

    def check_workspace(self, workspace: str) -> None:
        """Raise `SettingsError` now rather than at the first call."""
        known = self._narrowing(workspace)
        if known.problem is not None:
            raise known.problem

    def __call__(self, workspace: str) -> Rulebook:
        known, now = None, self._clock()
        if workspace in self._books:
            known = self._books[workspace]
            if now - known.looked_at < LOOK_EVERY_S:
                return known.book
        self.refresh()
        narrowing = self._narrowing(workspace)
        if narrowing.problem is not None and narrowing.policy is None:  # it may deny anything
            raise ToolPermissionDenied(
                f"The workspace's settings cannot be used: {narrowing.problem}",
                reason="settings_invalid",
            )
        made_from = (self._files.digest, narrowing, self._withheld)
        if known is not None and known.made_from == made_from:
            book = known.book
        else:
            book = self._load(workspace, narrowing)
        self._books[workspace] = _Known(now, book, made_from)
        return book

    def look(self, workspace: str) -> SettingsError | None:
        """Check the files now. Return why their content is not in force, if it is not."""
        self.refresh()
        return self.problem or self._withheld or self._narrowing(workspace).problem

    def state(self, workspace: str) -> SettingsState:
        """Return the state of the settings for calls in a workspace."""
        from callgate.core.sessions import SettingsState  # lazy: rarely used  # noqa: PLC0415

        problem = self.look(workspace)
        return SettingsState(
            version=self.version(workspace),
            problem=None if problem is None else str(problem),
            restart_for=self.restart_for,
        )

    @property
    def restart_for(self) -> tuple[str, ...]:
        """Changed parts of the settings that take effect only after a restart."""
        first, now = self._first_settings, self.settings
        changed = [
            name
            for name in Settings.__struct_fields__
            if name not in _LIVE and name != "parts" and getattr(first, name) != getattr(now, name)
        ]
        changed += [
            name for name in TABLES if name not in _LIVE and first.table(name) != now.table(name)
        ]
        if first.tools.load != now.tools.load:
            changed.append("tools.load")
        if (first.sandbox == "off") != (now.sandbox == "off"):  # determines the launcher
            changed.append("sandbox")
        return tuple(changed)

    def version(self, workspace: str) -> str:
        """Return the version of the policy for a workspace."""
        known = self._narrowings.get(workspace)
        narrowed = b"" if known is None or known.policy is None else known.files.digest
        return hashlib.sha256(self._files.digest + narrowed).hexdigest()[:12]

    def _load(self, workspace: str, narrowing: _Narrowing) -> Rulebook:
        problem = self.problem or self._withheld or narrowing.problem
        refusal = None
        if problem is not None:
            refusal = refuse_effects(problem.problem, Origin(problem.file, problem.line))
        real = workspace if pool_workspace(workspace) else os.path.realpath(workspace)
        return Rulebook(self._user, narrowing.policy, real, refusal)

    def _narrowing(self, workspace: str) -> _Narrowing:
        """Return the narrowing of a workspace; if its files are unusable, the previous one.

        A pool workspace has none: its files are on the worker.
        """
        known = self._narrowings.get(workspace)
        if known is None and pool_workspace(workspace) is not None:
            known = self._narrowings[workspace] = _Narrowing(_Files(), None, None)
        if known is not None:
            files = known.files
        else:
            files = _Files(self._home.trust, workspace_settings(workspace))
        if not files.changed() and known is not None:
            return known
        try:
            policy = load_workspace(workspace) if is_trusted(self._home, workspace) else None
            narrowing = _Narrowing(files, policy, None)
        except SettingsError as error:
            narrowing = _Narrowing(files, None if known is None else known.policy, error)
        self._narrowings[workspace] = narrowing
        return narrowing


def _stamp(path: str, now: int) -> tuple[int, ...] | None:
    """Return values that identify a version of a file, or None if it changed too recently."""
    try:
        found = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    if now - max(found.st_mtime_ns, found.st_ctime_ns) < _SETTLED_NS:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(paths: tuple[str, ...]) -> bytes:
    digest = hashlib.sha256()
    for path in paths:
        try:
            with open(path, "rb") as file:
                content = hashlib.sha256(file.read()).digest()
        except OSError as error:
            content = str(error.errno).encode()
        digest.update(content + b"\0")
    return digest.digest()


def reload_event(problem: SettingsError | None, restart_for: Iterable[str]) -> Event:
    """Return the event for reloaded or unusable settings."""
    if problem is None:
        type, payload = SETTINGS_RELOADED, dict[str, Any](restart_for=list(restart_for))
    else:
        type, payload = SETTINGS_REJECTED, dict[str, Any](problem=str(problem))
    return Event(
        id=ulid(), timestamp=time.time(), session_id="", type=type, actor="system", payload=payload
    )


class PathRules(msgspec.Struct, frozen=True):
    """The path rules for processes that serve many calls, read when such a process starts."""

    home: Home
    tools: tuple[ToolFactory, ...]
    """The built-in tools."""

    def __call__(self, workspace: str, *names: str) -> tuple[PathRule, ...]:
        """`names` are the names of the tools that the process runs."""
        definitions = (factory().definition for factory in self.tools)
        files = {
            name: definition.side_effects or SideEffects.EXECUTE
            for definition in definitions
            if definition.path_params and not definition.sandboxed
            for name in (definition.name, *definition.aliases)
        }
        try:
            book = PolicyBook(self.home)(workspace)
        except SettingsError as error:
            raise ToolPermissionDenied(
                f"The settings cannot be used: {error}", reason="settings_invalid"
            ) from None
        return binding_processes(book, book.directory or workspace, files, names)
