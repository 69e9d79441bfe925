"""An agent's directories in the user's home, as mounted in the sandbox.

    sessions, logs        the user's files, writable; in mode `read` a copy
    scripts among them    new ones are renamed after the run
    logins                a copy; after the run its values are saved (`agent_logins`)
    private names         empty, or a copy; discarded after the run
    everything else       the user's files, read-only
    the directory itself  a new directory, so that the agent can replace files in it

A run therefore cannot change files that a later run executes or reads as settings. Missing settings
files stay missing during the run. The tables are in `known`.

If a process was killed, the next run saves its logins and removes its directories.
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
from callgate.core.errors import ToolError
from callgate.core.local.disk import make_private_directory
from callgate.core.sessions import Root
from callgate.dispatch.commands.launchers import WrappedRunning
from callgate.features.agents import agent_logins
from callgate.features.agents.known.values import Agent, AgentHome, Login
from callgate.sandbox.dry_runs.manifests import copy_tree, remove_tree
from callgate.sandbox.jails import Replacement, is_below

_log = logging.getLogger("callgate")

_PREFIX = "agent-home-"
_RECORD = "logins.json"
_MOST_COPIED = 64 * 1024 * 1024
"""Maximum size of the earlier sessions that a run in mode `read` can read, in bytes."""
_MOST_NAMES = 1_000
"""Maximum number of names in one directory of an agent: each is a mount."""
_NO_SETTINGS = {".json": "{}\n", ".jsonc": "{}\n"}
"""Contents of empty settings files. An empty file is not valid JSON, so an agent would fail."""


class _Copy(msgspec.Struct, frozen=True):
    """A login file of a run."""

    login: Login
    path: str
    """The copy."""
    target: str
    """The user's file."""
    before: str | None


class _Record(msgspec.Struct, frozen=True):
    """The work to do after a run, also if its process was killed."""

    copies: list[_Copy]
    persistent: list[str]
    """The user's directories that were writable during the run."""
    scripts: list[tuple[str, str]] = []
    """Directories of an agent, each with the pattern of script directories in it."""


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
        """Additional environment variables of the agent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Save the logins and remove the directories. Idempotent. Blocks."""
        if self._lock < 0:
            return
        try:
            _finish(self._scratch)
        finally:
            os.close(self._lock)
            self._lock = -1


def open_view(
    agent: Agent,
    home: str,
    environ: Mapping[str, str],
    callgate_home: str,
    *,
    workspace: str,
    persists: bool,
) -> HomeView:
    """Prepare an agent's directories for one run. Blocks.

    `environ` is the agent's environment. `persists`: sessions and logs outlive the run.
    Raises `ToolError` for directories that cannot be protected.
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
        programs = (os.path.join(home, name) for name in agent.installed)
        roots = (*assembly.roots, *(Root(path) for path in programs if os.path.isdir(path)))
        assembly.write_record()
    except BaseException as error:
        remove_tree(scratch)
        os.close(lock)
        if isinstance(error, OSError):
            raise ToolError(f"The agent's directories cannot be prepared: {error}.") from error
        raise
    return HomeView(scratch, lock, roots, tuple(assembly.replacements), assembly.environment)


class ViewLauncher:
    """Starts an agent, and closes its view when all its processes have ended."""

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
        path = entry.location(home, environ)
        if path is None or (entry.optional and not os.path.isdir(path)):
            return
        make_private_directory(path)
        target = os.path.realpath(path)
        if is_below(self._workspace, target) or is_below(os.path.realpath(home), target):
            raise ToolError(
                f"{entry.variable or path} names {target}, which contains the workspace or your"
                " home. Choose a directory for the agent alone."
            )
        self.environment |= {
            name: os.path.normpath(os.path.join(target, below))
            for name, below in entry.variables.items()
            if not environ.get(name)
        }
        self.roots.append(Root(path, writable=True))
        is_own = not (entry.variable and environ.get(entry.variable))
        if entry.persistent == (".",) and self._persists:
            self.mount_persistent(target, target)
            return
        if self._persists:
            self._scripts += ((target, each) for each in entry.scripts)
        tree = self._new_directory()
        self.replacements.append(Replacement(target, tree, writable=True))
        _Directory(self, entry, target, tree, home if is_own else None).fill("")

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
        """Return an empty file or directory, to be mounted in place of missing settings."""
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
    """One directory of an agent: `target` is the user's directory, `tree` the run's."""

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
        """Add all names of a directory. `with_others`: also names that the table does not list."""
        names = {below.split("/")[0] for below in self._below(inside)}
        if with_others:
            names.update(_names(os.path.join(self._place, inside)))
        if len(names) > _MOST_NAMES:
            raise ToolError(
                f"{os.path.join(self._place, inside)} contains more than {_MOST_NAMES} names, so"
                " it cannot be protected in the sandbox. Remove files that the agent does not need."
            )
        for name in sorted(names):
            self._add(os.path.join(inside, name))

    def _below(self, inside: str) -> Iterator[str]:
        """Yield the listed names in a directory, relative to it."""
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
            raise ToolError(f"{path} is not a directory. Move or delete it.")
        os.makedirs(copy, 0o700)
        self._assembly.mount_persistent(path, os.path.realpath(path))
        for below in sorted(self._below(name)):
            self._separate(path, below)

    def _separate(self, path: str, below: str) -> None:
        """Mount a directory of the run over one in a persistent directory.

        The directories on the path are mounts as well: the agent cannot rename a mount.
        """
        real = os.path.realpath(path)
        names = below.split("/")
        for depth in range(1, len(names) + 1):
            step = os.path.join(real, *names[:depth])
            make_private_directory(step)
            if not stat.S_ISDIR(os.lstat(step).st_mode):
                raise ToolError(f"{step} is not a directory. Move or delete it.")
            shown = os.path.join(path, *names[:depth])
            if depth < len(names):
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
        """Mount a file or directory, and create the mount point in the run's tree."""
        if os.path.isdir(source):
            os.mkdir(copy, 0o700)
        else:
            os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._assembly.mount(path, source, writable=writable)


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern with `*` in its last part."""
    head, star, tail = pattern.partition("*")
    is_long_enough = len(name) > len(head) + len(tail)
    inside = name[len(head) : len(name) - len(tail)]
    is_one = name.startswith(head) and name.endswith(tail) and "/" not in inside
    return bool(star) and is_long_enough and is_one


def _copy_sessions(path: str, copy: str) -> None:
    """Copy the earlier sessions, unless they are too large."""
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


# --- after the run --------------------------------------------------------------------------


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
    for script_directory, pattern in record.scripts:
        for directory in _matching(script_directory, pattern.split("/")):
            _rename_scripts(directory, started)
    for each in _with_new_files(record.copies):
        directory = os.path.dirname(each.path)
        if os.path.realpath(directory) != directory:
            continue  # the run replaced the directory by a link
        try:
            agent_logins.save(each.login, each.before, agent_logins.text_of(each.path), each.target)
        except OSError as error:
            _log.warning("The login in %s was not saved: %s", each.target, error)
    remove_tree(scratch)


def _matching(directory: str, steps: Sequence[str]) -> Iterator[str]:
    """Yield the paths below a directory that match a pattern; the step `*` matches any name."""
    if not steps:
        yield directory
        return
    try:
        names = os.listdir(directory) if steps[0] == "*" else steps[:1]
    except OSError:  # the directory does not exist
        return
    for name in names:
        yield from _matching(os.path.join(directory, name), steps[1:])


def _remove_links(root: str, started: int) -> None:
    """Remove a run's links that point out of its sessions: an agent outside the sandbox would
    follow them. Hard links are impossible, because each directory is a separate mount."""
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
    """Rename the new files in a directory, so that no agent executes them."""
    for directory, _, files in os.walk(root):
        for name in files:
            path = os.path.join(directory, name)
            try:
                if not name.endswith(DISABLED) and os.lstat(path).st_ctime_ns >= started:
                    os.rename(path, path + DISABLED)
            except OSError as error:
                _log.warning("The script %s was not renamed: %s", path, error)


def _with_new_files(copies: list[_Copy]) -> Iterator[_Copy]:
    """Yield the copies and, for names with `*`, the files that the run added."""
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
            continue  # another process uses it, or has removed it
        finally:
            os.close(lock)
