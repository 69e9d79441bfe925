"""The policies in force: the user's, and each trusted workspace's own narrowing of it.

    a look at the files -> as before                 -> the book in force
                        -> changed                   -> a new book
                        -> changed, cannot be used   -> the old book, which refuses effects

A change counts with the next call. Nobody has to say that there was one.
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
from callgate.config.schema import Settings
from callgate.config.trust import is_trusted
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolPermissionDenied
from callgate.core.events import SETTINGS_REJECTED, SETTINGS_RELOADED, Event
from callgate.core.ids import ulid
from callgate.core.sessions import pool_workspace
from callgate.core.tools import ToolFactory
from callgate.policy.decide import Rulebook, refuse_effects
from callgate.policy.path_rules import PathRule, binding_processes
from callgate.policy.rules import Origin, Policy

if TYPE_CHECKING:
    from callgate.core.settings_state import SettingsState

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
    )
)
"""Parts of the settings that are read when they are used; of `tools` what is disabled, of
`sandbox` all but whether there is one."""
LOOK_EVERY_S = 0.005
"""One call asks for its book several times: it need not look at the files for each."""
_SETTLED_NS = 100_000_000
"""A file changed so recently may change again and look the same: its clock is that coarse."""


class _Files:
    """Files that are looked at together. Reading them is left to whoever sees a change."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths
        self._stamps: tuple[object, ...] = ()
        self.digest = b""

    def changed(self) -> bool:
        """Whether what they say is other than at the last look."""
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
    """What holds in each workspace, as the files say at that moment.

    Made from files that cannot be used, it raises `SettingsError`; later it keeps what it has,
    and its books refuse calls with effects until the files are right.
    """

    def __init__(
        self,
        home: Home,
        *,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called after the user's files were read anew, whether or not they could
        be used."""
        self._home = home
        self._changed = changed
        self._clock = clock
        self._files = _Files(home.settings, home.saved_rules)
        self._files.changed()
        self.settings: Settings
        self.settings, self._user = load_user(home)
        self._first_settings = self.settings
        self.problem: SettingsError | None = None
        """Why the user's files as they are now are not in force."""
        self._withheld: SettingsError | None = None
        self._narrowings: dict[str, _Narrowing] = {}
        self._books: dict[str, _Known] = {}

    def refresh(self) -> None:
        """Take over what changed in the user's files, now."""
        if not self._files.changed():
            return
        try:
            self.settings, self._user = load_user(self._home)
            self.problem = None
        except SettingsError as error:
            self.problem = error
        self._books.clear()  # none may go on for the rest of its `LOOK_EVERY_S`
        self._changed()

    def withhold(self, problem: SettingsError | None) -> None:
        """Refuse calls with effects for a reason that is not in the files; None: no more."""
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
        """Look at the files now: why what they say there is not in force."""
        self.refresh()
        return self.problem or self._withheld or self._narrowing(workspace).problem

    def state(self, workspace: str) -> SettingsState:
        """By what calls in a workspace are decided now."""
        from callgate.core.settings_state import SettingsState  # lazy: only for who asks  # noqa: PLC0415

        problem = self.look(workspace)
        return SettingsState(
            version=self.version(workspace),
            problem=None if problem is None else str(problem),
            restart_for=self.restart_for,
        )

    @property
    def restart_for(self) -> tuple[str, ...]:
        """Parts of the settings that have changed, and that only a start reads."""
        first, now = self._first_settings, self.settings
        changed = [
            name
            for name in Settings.__struct_fields__
            if name not in _LIVE and getattr(first, name) != getattr(now, name)
        ]
        if first.tools.load != now.tools.load:
            changed.append("tools.load")
        if (first.sandbox == "off") != (now.sandbox == "off"):  # what starts commands depends on it
            changed.append("sandbox")
        return tuple(changed)

    def version(self, workspace: str) -> str:
        """Of what holds there."""
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
        """What the workspace itself says. Where that cannot be used, what it said before. One of
        a pool says nothing: its files are the worker's."""
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
    """What tells a file from what it was; None where that cannot be told yet."""
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
    """Tells of settings that were read anew, or cannot be used."""
    if problem is None:
        type, payload = SETTINGS_RELOADED, dict[str, Any](restart_for=list(restart_for))
    else:
        type, payload = SETTINGS_REJECTED, dict[str, Any](problem=str(problem))
    return Event(
        id=ulid(), timestamp=time.time(), session_id="", type=type, actor="system", payload=payload
    )


class PathRules(msgspec.Struct, frozen=True):
    """The path rules that bind processes which serve many calls, as the files say when one
    starts."""

    home: Home
    tools: tuple[ToolFactory, ...]
    """The built-in ones."""

    def __call__(self, workspace: str, *names: str) -> tuple[PathRule, ...]:
        """`names`: of tools that the process runs, beside those of no special name."""
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
