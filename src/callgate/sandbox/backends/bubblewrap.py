"""bubblewrap: namespaces on systems that permit them only to that program.

`survey` examines the paths of a jail, because bubblewrap needs to know directories and missing
paths. `arguments` then builds the command line without file access. `find` returns the program,
and refuses a setuid one, which would run commands as root.

Missing protected paths exist for the duration of the command (`placeholders`): bubblewrap could
cover them too, but would leave an empty file in their place.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Sequence

import msgspec

from callgate.sandbox.backends import placeholders
from callgate.sandbox.backends.restrict import INHERITED
from callgate.sandbox.jails import Jail, Network, below_any, is_below

_TMP = "/tmp"  # noqa: S108 the place itself, to put another one on it
_SYSTEM = "/usr/bin:/bin:/usr/local/bin:/run/current-system/sw/bin"


class Found(msgspec.Struct, frozen=True):
    path: str | None
    problem: str | None = None
    """The reason for which it is unusable."""


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of a jail, sorted by their present state on this machine."""

    pinned: tuple[str, ...] = ()
    """Directories between a writable root and a protected path, outermost first."""
    read_only: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Missing protected paths in existing directories."""
    missing_directories: tuple[str, ...] = ()
    """First missing components of other protected paths."""
    opaque: tuple[str, ...] = ()
    hidden_directories: tuple[str, ...] = ()
    hidden_files: tuple[str, ...] = ()


def find(path: str | None = None) -> Found:
    """Return the system's own program, or the one at `path`.

    The search ignores PATH, which may contain a directory of the workspace (a virtual environment,
    node_modules/.bin). A command could put a program there that we would run unsandboxed.
    """
    program = shutil.which(path or "bwrap", path=_SYSTEM)
    if program is None:
        return Found(None, "bubblewrap is not installed")
    if os.stat(program).st_mode & (stat.S_ISUID | stat.S_ISGID):
        return Found(program, "bubblewrap is setuid")
    return Found(program)


def arguments(
    program: str, jail: Jail, survey: Survey, cwd: str, command: Sequence[str]
) -> tuple[str, ...]:
    """Return the command line. A jail always has a filter, which is read from descriptor 10."""
    line = [
        program,
        "--unshare-user",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
    ]
    if jail.network is not Network.ALL:
        line.append("--unshare-net")
    sources = dict(jail.replacements)
    readable = sorted(set(jail.readable) - set(jail.writable), key=_depth)
    covered = [path for path in readable if below_any(path, (*survey.opaque, *sources))]
    for path in readable:
        if path not in covered:
            line += ["--ro-bind-try", path, path]
    if "/" in jail.writable:
        line += ["--bind", "/", "/", "--ro-bind-try", "/sys", "/sys"]
    line += ["--dev", "/dev", "--proc", "/proc", "--remount-ro", "/proc"]
    if jail.fresh_tmp:
        line += ["--tmpfs", _TMP]
        for path in sorted(jail.readable, key=_depth):
            if path != _TMP and is_below(path, _TMP):
                line += ["--ro-bind-try", path, path]
    for path in survey.opaque:
        line += ["--perms", "0755", "--tmpfs", path]
    for path in sorted({*covered, *jail.writable} - {"/"}, key=_depth):
        bind = "--bind-try" if path in jail.writable else "--ro-bind-try"
        line += [bind, sources.get(path, path), path]
    for path, target in jail.links:
        line += ["--symlink", target, path]
    for path in survey.opaque:
        line += ["--remount-ro", path]
    line += _cover(jail, survey, in_revealed=False)
    line += _cover(jail, survey, in_revealed=True)
    line += ["--chdir", cwd, "--seccomp", str(INHERITED), "--", *command]
    return tuple(line)


def _cover(jail: Jail, survey: Survey, *, in_revealed: bool) -> list[str]:
    """Protect and hide paths. Paths in revealed directories come last: the hidden directory around
    them would cover them, and no mount is possible on hidden paths."""

    def chosen(paths: Iterable[str]) -> list[str]:
        return [path for path in paths if below_any(path, jail.revealed) is in_revealed]

    line: list[str] = []
    for path in chosen(survey.pinned):
        line += ["--bind", path, path]
    for path in chosen(survey.read_only):
        line += ["--ro-bind", path, path]
    for path in chosen((*survey.missing, *survey.missing_directories)):
        line += ["--ro-bind-try", path, path]  # a path that we cannot create, no command can
    for path in chosen(survey.hidden_files):
        line += ["--ro-bind", "/dev/null", path]
    hidden = chosen(survey.hidden_directories)
    for path in hidden:
        if any(_is_in(path, each) for each in hidden):
            continue
        inside = [each for each in sorted(jail.revealed, key=_depth) if _is_in(each, path)]
        line += ["--perms", "0711" if inside else "0000", "--tmpfs", path]
        for each in inside:
            line += ["--bind-try" if each in jail.writable else "--ro-bind-try", each, each]
        line += ["--remount-ro", path]
    return line


def _is_in(path: str, directory: str) -> bool:
    return path != directory and is_below(path, directory)


def survey(jail: Jail) -> Survey:
    """Examine the protected and hidden paths. Raises `OSError` (ELOOP) for a link on the way."""
    pinned: dict[str, None] = {}
    read_only: list[str] = []
    missing: list[str] = []
    missing_directories: list[str] = []
    for path in sorted(jail.protected, key=_depth):
        for step in _way(path, jail.writable):
            mode = _mode(step)
            if mode == 0 or placeholders.is_one(mode):  # another command may remove it
                (missing if step == path else missing_directories).append(step)
            elif stat.S_ISLNK(mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), step)
            elif step == path or not stat.S_ISDIR(mode):
                read_only.append(step)
            else:
                pinned[step] = None
                continue
            break
    shown = [path for path in (*jail.readable, *jail.writable) if path != "/"]
    hidden = [
        (path, _to_cover(path))
        for path in jail.hidden
        if not below_any(path, jail.opaque)
        or below_any(path, shown)
        or any(is_below(each, path) for each in shown)
    ]
    return Survey(
        opaque=tuple(path for path in jail.opaque if stat.S_ISDIR(_mode(path))),
        pinned=tuple(pinned),
        read_only=tuple(dict.fromkeys(read_only)),
        missing=tuple(dict.fromkeys(missing)),
        missing_directories=tuple(dict.fromkeys(missing_directories)),
        hidden_directories=tuple(path for path, mode in hidden if stat.S_ISDIR(mode)),
        hidden_files=tuple(path for path, mode in hidden if mode and not stat.S_ISDIR(mode)),
    )


def _way(path: str, roots: Iterable[str]) -> list[str]:
    """Return every path from below the innermost writable root down to `path`."""
    root = max((root for root in roots if is_below(path, root)), key=len)
    names = path[len(root.rstrip("/")) + 1 :].split("/")
    return [os.path.join(root, *names[: count + 1]) for count in range(len(names))]


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _to_cover(path: str) -> int:
    """Return the mode of a hidden path; 0 if it needs no cover, because covers are slow.

    A path that the system hides from us is also hidden from the command, which is the same user
    without capabilities. An exception is a path that we own, because its mode could be changed.
    """
    try:
        facts = os.lstat(path)
    except OSError:
        return 0
    ways = (os.R_OK, os.W_OK, os.X_OK)
    if facts.st_uid == os.geteuid() or any(os.access(path, way) for way in ways):
        return facts.st_mode
    return 0


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path
