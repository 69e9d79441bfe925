"""Start of an instance: its directory, its sockets, its log file, the notification of systemd.

    socket   the one that systemd passed, the named one, or the usual one
HTTP     the first of the given addresses that can be bound, or none

A peer proposes the directory in which it works; callgate decides:

    none named                             the first served directory
    within a served directory              the named one
    trusted (`trust.json`), or in one      the named one
    of a pool (`pool:build/app`)           on the pool's workers: no directory here
    any other                              refused

All links in a path are resolved first.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from callgate.config.home import Home
from callgate.config.instance_records import usual_socket
from callgate.config.load import SettingsError
from callgate.config.trust import is_within_trusted, trusted
from callgate.core.errors import ToolPermissionDenied
from callgate.core.local.disk import make_private_directory
from callgate.core.sessions import Mode, Session, pool_workspace
from callgate.instance.wiring.runtime import Wired
from callgate.policy.rules import is_within
from callgate.socket.listening import (
    USUAL_HOST,
    USUAL_PORT,
    Address,
    CannotListen,
    Listener,
    fitting,
    handed_over,
    listen,
)


class CannotServe(Exception):
    """An instance cannot, or must not, start here; `str` is safe to show."""


USUAL_HTTP = (Address(USUAL_HOST, USUAL_PORT), Address(USUAL_HOST, 0))
"""The usual port, or any free port."""
_LOGIN_EVERY_S = 2.0


class Endpoints(NamedTuple):
    """The addresses of an instance."""

    socket: str | None = None
    """None: the one that systemd passed, or `run/callgate.sock` in the home."""
    http: Sequence[Address] = ()
    """Tried in order; empty: no HTTP."""


def listen_local(path: str | None, home: str, roots: Sequence[str]) -> Listener:
    """Return the socket of an instance. Raises `CannotServe`."""
    try:
        listener = handed_over() if path is None else None
        if listener is None:
            listener = listen(path or fitting(usual_socket(home)))
    except CannotListen as error:
        raise CannotServe(str(error)) from error
    directory = os.path.realpath(os.path.dirname(listener.path))
    if any(is_within(root, directory) for root in roots):
        listener.close()
        raise CannotServe(
            f"{directory} contains a workspace, so the socket there cannot be hidden from "
            "commands: put it into a separate directory"
        )
    return listener


def notify_ready() -> None:
    """Notify systemd, if it waits for that. Raises `OSError` if the notification fails."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.connect(address)
        notify.sendall(b"READY=1")


LOG = "serve.log"
"""Name in the home of the log of a background instance."""
LARGEST = 1024 * 1024
"""Maximum bytes of a log file; one previous file is retained."""


def rotate(path: str, largest: int = LARGEST) -> None:
    """Start a new log file if stdout and stderr go to this file and it is large."""
    try:
        status, ours = os.stat(path, follow_symlinks=False), os.fstat(2)
        if not os.path.samestat(status, ours) or status.st_size <= largest:
            return
        os.replace(path, f"{path}.1")
        write_to(path)
    except OSError:  # disk full, or too many open files: try later
        return


def write_to(path: str) -> None:
    """Redirect stdout and stderr to a file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)


_MOST_VISITED = 10_000
_EMPTY = "empty"

Path = str | os.PathLike[str]


def login_directory() -> str | None:
    """Return the directory that exists only while the user is logged in; None if unknown."""
    path = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return path if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() else None


async def until_logout(directory: str) -> None:
    """Wait until `login_directory` was removed or replaced."""
    before = os.stat(directory)
    while _is_still(directory, before):  # noqa: ASYNC110 - the operating system sends no event
        await asyncio.sleep(_LOGIN_EVERY_S)


def _is_still(directory: str, before: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(directory), before)
    except OSError:
        return False


def served_roots(paths: Path | Iterable[Path]) -> list[str]:
    """Return the resolved directories to serve; default: the current one. Raises `CannotServe`."""
    if isinstance(paths, str | os.PathLike):  # iterating over a str would yield "/" first
        paths = (paths,)
    roots = [os.path.realpath(os.path.expanduser(each)) for each in paths] or [os.getcwd()]
    for root in roots:
        if not os.path.isdir(root):
            raise CannotServe(f"{root} is not a directory")
    return roots


def trusted_roots(home: Home) -> list[str]:
    """Return the trusted directories that exist, or else an empty directory of the home.

    Raises `SettingsError`.
    """
    roots = [each for each in trusted(home) if os.path.isdir(each)]
    if not roots:
        home.make()
        roots = [empty_directory(home)]
        make_private_directory(roots[0])
    return roots


def empty_directory(home: Home) -> str:
    """Return the directory of callers that name none, if no directory is trusted."""
    return os.path.join(os.path.realpath(home.path), _EMPTY)


def peer_directory(cwd: str | None, roots: Sequence[str], is_trusted: Callable[[str], bool]) -> str:
    """Return the directory for a peer that names `cwd`. Raises `ToolPermissionDenied`."""
    if cwd is not None and not os.path.isabs(cwd):
        raise ToolPermissionDenied("clientInfo.cwd must be absolute.", reason="cwd_relative")
    if cwd is not None and "\0" in cwd:
        raise ToolPermissionDenied("clientInfo.cwd is not a path.", reason="cwd_invalid")
    real = roots[0] if cwd is None else os.path.realpath(cwd)
    if not any(is_within(real, root) for root in roots) and not is_trusted(real):
        raise ToolPermissionDenied(
            f"callgate does not serve {real}, so no call runs there. To allow calls there: "
            f"callgate trust {shlex.quote(real)}",
            reason="workspace_not_served",
        )
    if not os.path.isdir(real):
        raise ToolPermissionDenied(f"{real} is not a directory.", reason="workspace_gone")
    return real


class ServedDirectories:
    def __init__(
        self, wired: Wired, roots: Sequence[str], mode: Mode, *, only_trusted: bool = False
    ) -> None:
        """`roots` come from `served_roots`; sessions start in `mode`. `only_trusted`: a root is
        served while it is trusted.
        """
        self.roots = tuple(roots)
        self.untrusted_roots = () if only_trusted else self.roots
        """Roots that are served without trust."""
        self.mode = mode
        self._wired = wired
        self._visited: set[str] = set()
        self._listeners: list[Callable[[str], None]] = []

    def on_first_session(self, listener: Callable[[str], None]) -> None:
        """Call a function with each directory, at the first session in it."""
        self._listeners.append(listener)

    def open_session(self, cwd: str | None, id: str) -> Session:
        """Open a session in the directory of a peer. Raises `ToolPermissionDenied`."""
        if cwd is not None and pool_workspace(cwd) is not None:
            return Session(workspace=cwd, mode=self.mode, id=id)
        try:
            directory = peer_directory(
                self.roots[0] if cwd is None else cwd, self.untrusted_roots, self._admits
            )
            session = self._wired.session(directory, self.mode)
        except SettingsError as error:
            raise ToolPermissionDenied(str(error), reason="settings_invalid") from error
        except OSError as error:
            raise ToolPermissionDenied(
                f"{cwd or self.roots[0]} cannot be used: {error.strerror or error}",
                reason="workspace_gone",
            ) from error
        session.id = id
        self._visit(directory)
        return session

    def _admits(self, directory: str) -> bool:
        home = self._wired.home
        return directory == empty_directory(home) or is_within_trusted(home, directory)

    def _visit(self, directory: str) -> None:
        if directory in self._visited:
            return
        if len(self._visited) >= _MOST_VISITED:
            self._visited.clear()
        self._visited.add(directory)
        for listener in self._listeners:
            listener(directory)
