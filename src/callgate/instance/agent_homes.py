"""The directories of an agent in the user's home, as the agent finds them in the sandbox.

    sessions, logs        the user's own, writable; in modes `read` and `none` a copy
    scripts among them    those of the run get another name after it
    logins                a copy; after the run its values are saved (`agent_logins`)
    private names         empty, or a copy; discarded after the run
    everything else       the user's own, read-only
    the directory itself  a new one of the run, so that the agent can replace files in it

So nothing that a later run executes or reads as settings can be changed from inside. Settings that
are missing are missing during the run, too. The table is in `known_agents`.

What a killed process left behind is removed by the next one, which saves its logins first.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import msgspec

from callgate.core.commands import DISABLED, Command, Exit, Launcher, OnOutput, Running
from callgate.core.directories import make_private_directory
from callgate.core.errors import ToolError
from callgate.core.sessions import Root
from callgate.dispatch.commands.wrapped_running import WrappedRunning
from callgate.instance import agent_logins
from callgate.instance.known_agents import AgentHome, KnownAgent, Login
from callgate.sandbox.dry_runs.copies import copy_tree, remove_tree
from callgate.sandbox.jails import Replacement, is_below

_log = logging.getLogger("callgate")

_PREFIX = "agent-home-"
_RECORD = "logins.json"
_MOST_COPIED = 64 * 1024 * 1024
"""Bytes of earlier sessions that a run in mode `read` sees."""
_MOST_NAMES = 1_000
"""Names in one directory of an agent: each is a mount."""
_NO_SETTINGS = {".json": "{}\n", ".jsonc": "{}\n"}
"""Agents fail on settings that are not JSON. Elsewhere an empty file has no settings."""


class _Copy(msgspec.Struct, frozen=True):
    """A login file of a run."""

    login: Login
    path: str
    """The copy."""
    target: str
    """The user's file."""
    before: str | None


class _Record(msgspec.Struct, frozen=True):
    """What is left to do after a run, also if its process was killed."""

    copies: list[_Copy]
    persistent: list[str]
    """Directories of the user's that the run could write."""
    scripts: list[tuple[str, str]] = []
    """Patterns of directories in them."""


class HomeView:
    """The directories of one run. `close` saves its logins and removes the rest."""

    def __init__(
        self,
        scratch: str = "",
        lock: int = -1,
        roots: tuple[Root, ...] = (),
        replacements: tuple[Replacement, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._scratch, self._lock = scratch, lock
        self.roots, self.replacements = roots, replacements
        self.environment = environment or {}
        """Variables that the agent needs in addition."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent. Blocks."""
        if self._lock < 0:
            return
        try:
            _finish(self._scratch)
        finally:
            os.close(self._lock)
            self._lock = -1


def open_view(
    agent: KnownAgent,
    home: str,
    environ: Mapping[str, str],
    callgate_home: str,
    *,
    workspace: str,
    persists: bool,
) -> HomeView:
    """Prepare an agent's directories for one run. Blocks.

    `environ` is the environment that the agent gets. `persists`: sessions and logs outlive the run.
    Raises a `ToolError` for directories that cannot be protected.
    """
    if not agent.homes:
        return HomeView()
    parent = os.path.join(callgate_home, "run")
    make_private_directory(parent)
    _sweep(parent)
    scratch = tempfile.mkdtemp(prefix=_PREFIX, dir=os.path.realpath(parent))
    lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assembly = _Assembly(scratch, os.path.realpath(workspace), persists)
        for entry in agent.homes:
            assembly.add(entry, home, environ)
        programs = (os.path.join(home, name) for name in agent.programs)
        roots = (*assembly.roots, *(Root(path) for path in programs if os.path.isdir(path)))
        assembly.write_record()
    except BaseException as error:
        remove_tree(scratch)
        os.close(lock)
        if isinstance(error, OSError):
            raise ToolError(f"The agent's directories cannot be prepared: {error}.") from error
        raise
    return HomeView(scratch, lock, roots, tuple(assembly.replacements), assembly.environment)


def location(entry: AgentHome, home: str, environ: Mapping[str, str]) -> str | None:
    """The path of an agent's directory; None: the agent has none."""
    given = environ.get(entry.variable) if entry.variable else None
    if given:
        return os.path.normpath(os.path.join(os.path.abspath(given), entry.below))
    return os.path.join(home, entry.path) if entry.path else None


class ViewLauncher:
    """Starts an agent, and closes its view when nothing of it runs any more."""

    def __init__(self, launcher: Launcher, view: HomeView) -> None:
        self._launcher, self._view = launcher, view

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        try:
            return _ViewRunning(await self._launcher.start(command, on_output), self._view)
        except BaseException:
            await asyncio.to_thread(self._view.close)
            raise


class _ViewRunning(WrappedRunning):
    def __init__(self, running: Running, view: HomeView) -> None:
        super().__init__(running)
        self._view = view

    async def wait(self) -> Exit:
        ended = await super().wait()
        await asyncio.to_thread(self._view.close)
        return ended


# --- one run --------------------------------------------------------------------------------


class _Assembly:
    """Collects the mounts of a run, directory by directory."""

    def __init__(self, scratch: str, workspace: str, persists: bool) -> None:
        self._scratch, self._workspace, self._persists = scratch, workspace, persists
        self._count = 0
        self._copies: list[_Copy] = []
        self._persistent: list[str] = []
        self._scripts: list[tuple[str, str]] = []
        self.roots: list[Root] = []
        self.replacements: list[Replacement] = []
        self.environment: dict[str, str] = {}

    def add(self, entry: AgentHome, home: str, environ: Mapping[str, str]) -> None:
        path = location(entry, home, environ)
        if path is None or (entry.optional and not os.path.isdir(path)):
            return
        make_private_directory(path)
        place = os.path.realpath(path)
        if is_below(self._workspace, place) or is_below(os.path.realpath(home), place):
            raise ToolError(
                f"{entry.variable or path} names {place}, which holds the workspace or your home."
                " Choose a directory for the agent alone."
            )
        self.environment |= {
            name: os.path.normpath(os.path.join(place, below))
            for name, below in entry.variables.items()
            if not environ.get(name)
        }
        self.roots.append(Root(path, writable=True))
        is_own = not (entry.variable and environ.get(entry.variable))
        if entry.persistent == (".",) and self._persists:
            self.mount_persistent(place, place)
            return
        if self._persists:
            self._scripts += ((place, each) for each in entry.scripts)
        tree = self._new_directory()
        self.replacements.append(Replacement(place, tree, writable=True))
        _Directory(self, entry, place, tree, home if is_own else None).fill("")

    def _new_directory(self) -> str:
        self._count += 1
        path = os.path.join(self._scratch, str(self._count))
        os.mkdir(path, 0o700)
        return path

    def mount(self, path: str, source: str, *, writable: bool) -> None:
        self.replacements.append(Replacement(path, source, writable))

    def mount_persistent(self, path: str, source: str) -> None:
        self._persistent.append(source)
        self.mount(path, source, writable=True)

    def mount_private(self, path: str) -> None:
        self.mount(path, self._new_directory(), writable=True)

    def missing(self, name: str, *, as_directory: bool) -> str:
        """Something that says as little as nothing, to be mounted where settings are missing."""
        if as_directory:
            return self._new_directory()
        content = _NO_SETTINGS.get(os.path.splitext(name)[1], "")
        path = os.path.join(self._new_directory(), "empty")
        with open(path, "x", encoding="utf-8") as file:
            file.write(content)
        return path

    def copy_login(self, login: Login, source: str, path: str) -> None:
        text = agent_logins.text_of(os.path.realpath(source))
        if text is not None:
            with open(path, "x", encoding="utf-8", opener=_private) as file:
                file.write(text)
        self._copies.append(_Copy(login, path, source, text))

    @property
    def persists(self) -> bool:
        return self._persists

    def write_record(self) -> None:
        with open(os.path.join(self._scratch, _RECORD), "xb", opener=_private) as file:
            record = _Record(self._copies, self._persistent, self._scripts)
            file.write(msgspec.json.encode(record))


class _Directory:
    """One directory of an agent: `place` is the user's, `tree` the one of the run."""

    def __init__(
        self, assembly: _Assembly, entry: AgentHome, place: str, tree: str, home: str | None
    ) -> None:
        self._assembly, self._entry = assembly, entry
        self._place, self._tree, self._home = place, tree, home
        self._logins = {each.file: each for each in entry.logins}
        self._configuration = {name.rstrip("/"): name for name in entry.configuration}
        self._listed = {
            *entry.persistent, *entry.persistent_files, *entry.private, *self._logins,
            *self._configuration,
        }  # fmt: skip

    def fill(self, inside: str, *, with_others: bool = True) -> None:
        """Add all names of a directory. `with_others`: also those that the table does not list."""
        names = {below.split("/")[0] for below in self._below(inside)}
        if with_others:
            names.update(_names(os.path.join(self._place, inside)))
        if len(names) > _MOST_NAMES:
            raise ToolError(
                f"{os.path.join(self._place, inside)} holds more than {_MOST_NAMES} names, so it"
                " cannot be protected in the sandbox. Remove what the agent no longer needs."
            )
        for name in sorted(names):
            self._add(os.path.join(inside, name))

    def _below(self, inside: str) -> Iterator[str]:
        """The listed names in a directory, relative to it."""
        prefix = f"{inside}/" if inside else ""
        return (name[len(prefix) :] for name in self._listed if name.startswith(prefix))

    def _add(self, name: str) -> None:
        path, copy = os.path.join(self._place, name), os.path.join(self._tree, name)
        if name in self._entry.persistent:
            self._add_persistent(name, path, copy)
        elif name in self._entry.persistent_files:
            self._add_persistent_file(path, copy)
        elif (login := self._login(name)) is not None:
            outside = self._home is not None and login.outside
            source = os.path.join(self._home or "", login.outside) if outside else path
            self._assembly.copy_login(login, source, copy)
        elif name in self._entry.private:
            self._add_private(name, path, copy)
        elif any(self._below(name)):
            os.mkdir(copy, 0o700)
            self.fill(name, with_others=os.path.isdir(path))
        elif os.path.exists(path):
            self._mount_on(copy, path, os.path.realpath(path), writable=False)
        elif name in self._configuration:
            as_directory = self._configuration[name].endswith("/")
            source = self._assembly.missing(name, as_directory=as_directory)
            self._mount_on(copy, path, source, writable=False)

    def _login(self, name: str) -> Login | None:
        if name in self._logins:
            return self._logins[name]
        return next((each for each in self._logins.values() if _matches(name, each.file)), None)

    def _add_persistent(self, name: str, path: str, copy: str) -> None:
        if not self._assembly.persists:
            _copy_sessions(path, copy)
            return
        make_private_directory(os.path.realpath(path))
        if not os.path.isdir(path):
            raise ToolError(f"{path} is not a directory. Move it away.")
        os.makedirs(copy, 0o700)
        self._assembly.mount_persistent(path, os.path.realpath(path))
        for below in sorted(self._below(name)):
            self._separate(path, below)

    def _separate(self, path: str, below: str) -> None:
        """Put a directory of the run on one in a persistent directory. Those between them are
        mounts as well, since mounts cannot be renamed."""
        real = os.path.realpath(path)
        parts = below.split("/")
        for depth in range(1, len(parts) + 1):
            step = os.path.join(real, *parts[:depth])
            make_private_directory(step)
            if not stat.S_ISDIR(os.lstat(step).st_mode):
                raise ToolError(f"{step} is not a directory. Move it away.")
            shown = os.path.join(path, *parts[:depth])
            if depth < len(parts):
                self._assembly.mount(shown, step, writable=True)
            else:
                self._assembly.mount_private(shown)

    def _add_persistent_file(self, path: str, copy: str) -> None:
        real = os.path.realpath(path)
        if self._assembly.persists and not os.path.lexists(real):
            os.close(os.open(real, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if not os.path.isfile(real):
            return
        if self._assembly.persists:
            self._mount_on(copy, path, real, writable=True)
        else:
            _copy_file(real, copy)

    def _add_private(self, name: str, path: str, copy: str) -> None:
        if os.path.isfile(path):
            _copy_file(os.path.realpath(path), copy)
        elif os.path.isdir(path) or any(self._below(name)):
            os.mkdir(copy, 0o700)
            self.fill(name, with_others=False)

    def _mount_on(self, copy: str, path: str, source: str, *, writable: bool) -> None:
        """Mount a file or directory; the tree of the run has a place for it."""
        if os.path.isdir(source):
            os.mkdir(copy, 0o700)
        else:
            os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._assembly.mount(path, source, writable=writable)


def _matches(name: str, pattern: str) -> bool:
    """Whether a name is one of those that a `*` in the last part of a path stands for."""
    head, star, tail = pattern.partition("*")
    is_long_enough = len(name) > len(head) + len(tail)
    inside = name[len(head) : len(name) - len(tail)]
    is_one = name.startswith(head) and name.endswith(tail) and "/" not in inside
    return bool(star) and is_long_enough and is_one


def _copy_sessions(path: str, copy: str) -> None:
    """Show earlier sessions, unless they are too large."""
    real = os.path.realpath(path)
    if os.path.isdir(real):
        try:
            copy_tree(real, copy, _MOST_COPIED)
        except OSError:
            remove_tree(copy)
    os.makedirs(copy, 0o700, exist_ok=True)


def _copy_file(path: str, copy: str) -> None:
    if os.path.getsize(path) <= _MOST_COPIED:
        shutil.copyfile(path, copy)
        os.chmod(copy, 0o600)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


# --- afterwards -----------------------------------------------------------------------------


def _finish(scratch: str) -> None:
    """Save the logins of a run, and remove its directories."""
    try:
        with open(os.path.join(scratch, _RECORD), "rb") as file:
            record = msgspec.json.decode(file.read(), type=_Record)
            started = os.fstat(file.fileno()).st_ctime_ns
    except (OSError, ValueError, RecursionError):
        record, started = _Record([], []), 0
    for directory in record.persistent:
        _remove_links(directory, started)
    for place, pattern in record.scripts:
        for directory in _matching(place, pattern.split("/")):
            _rename_scripts(directory, started)
    for each in _with_new_files(record.copies):
        directory = os.path.dirname(each.path)
        if os.path.realpath(directory) != directory:
            continue  # the run put a link in its place
        try:
            agent_logins.save(each.login, each.before, agent_logins.text_of(each.path), each.target)
        except OSError as error:
            _log.warning("The login in %s was not saved: %s", each.target, error)
    remove_tree(scratch)


def _matching(directory: str, steps: Sequence[str]) -> Iterator[str]:
    """Yield the paths below a directory that a pattern names; the step `*` is any name."""
    if not steps:
        yield directory
        return
    try:
        names = os.listdir(directory) if steps[0] == "*" else steps[:1]
    except OSError:  # nothing is there
        return
    for name in names:
        yield from _matching(os.path.join(directory, name), steps[1:])


def _remove_links(root: str, started: int) -> None:
    """Remove the links of a run that lead out of its sessions: an agent outside would write there.
    Hard links cannot: each directory is a mount of its own."""
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = os.path.join(directory, name)
            try:
                status = os.lstat(path)
                is_new = stat.S_ISLNK(status.st_mode) and status.st_ctime_ns >= started
                if is_new and not is_below(os.path.realpath(path), root):
                    os.unlink(path)
            except OSError as error:
                _log.warning("The link %s was not removed: %s", path, error)


def _rename_scripts(root: str, started: int) -> None:
    """Give the new files in a directory a name by which no agent executes them."""
    for directory, _, files in os.walk(root):
        for name in files:
            path = os.path.join(directory, name)
            try:
                if not name.endswith(DISABLED) and os.lstat(path).st_ctime_ns >= started:
                    os.rename(path, path + DISABLED)
            except OSError as error:
                _log.warning("The script %s was not renamed: %s", path, error)


def _with_new_files(copies: list[_Copy]) -> Iterator[_Copy]:
    """The copies, and for names with `*` the files that the run added."""
    known = {each.path for each in copies}
    for each in copies:
        yield each
        if "*" not in each.login.file:
            continue
        pattern = os.path.basename(each.login.file)
        directory, beside = os.path.dirname(each.path), os.path.dirname(each.target)
        for name in _names(directory):
            path = os.path.join(directory, name)
            if path not in known and _matches(name, pattern):
                known.add(path)
                yield _Copy(each.login, path, os.path.join(beside, name), None)


def _sweep(parent: str) -> None:
    """Finish the runs of processes that were killed."""
    for name in os.listdir(parent):
        if not name.startswith(_PREFIX):
            continue
        scratch = os.path.join(parent, name)
        try:
            lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _finish(scratch)
        except OSError:
            continue  # someone uses it, or has removed it
        finally:
            os.close(lock)
