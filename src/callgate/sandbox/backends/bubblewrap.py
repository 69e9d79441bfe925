"""bubblewrap: namespaces where the system lets only that program make them.

`arguments` writes its command line for a jail and looks at nothing; `survey` looks at the paths
first, because bubblewrap must be told what is a directory and what is missing. `find` finds
the program and refuses one that is setuid: it would run as root what should have less.

What is missing of a protected path is there as long as the command (`placeholders`): bubblewrap
could cover it too, but would leave an empty file in its place.
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
    """Why it cannot be used."""


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What is where, of a jail's paths."""

    pinned: tuple[str, ...] = ()
    """Directories between a writable root and a protected path, outermost first."""
    read_only: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Protected paths that are not there, though the directories above them are."""
    missing_directories: tuple[str, ...] = ()
    """First components, not there either, of other protected paths."""
    opaque: tuple[str, ...] = ()
    hidden_directories: tuple[str, ...] = ()
    hidden_files: tuple[str, ...] = ()


def find(path: str | None = None) -> Found:
    """The system's own program, or the one at `path`.

    Not whatever PATH names first: that may be a directory of the workspace (a virtual
    environment, node_modules/.bin), where a command could leave a program for us to run bare.
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
    """The command in bubblewrap. A filter, which a jail always has, is read from descriptor 10."""
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
    for path in survey.pinned:
        line += ["--bind", path, path]
    for path in survey.read_only:
        line += ["--ro-bind", path, path]
    for path in (*survey.missing, *survey.missing_directories):
        line += ["--ro-bind-try", path, path]  # if we could not create it, nobody can
    for path in survey.hidden_files:
        line += ["--ro-bind", "/dev/null", path]
    for path in survey.hidden_directories:
        inside = [each for each in sorted(jail.revealed, key=_depth) if is_below(each, path)]
        line += ["--perms", "0711" if inside else "0000", "--tmpfs", path]
        for each in inside:
            line += ["--bind-try" if each in jail.writable else "--ro-bind-try", each, each]
        line += ["--remount-ro", path]
    line += ["--chdir", cwd, "--seccomp", str(INHERITED), "--", *command]
    return tuple(line)


def survey(jail: Jail) -> Survey:
    """Look at the protected and the hidden paths. Raises OSError (ELOOP) for a link on the way."""
    pinned: dict[str, None] = {}
    read_only: list[str] = []
    missing: list[str] = []
    missing_directories: list[str] = []
    for path in sorted(jail.protected, key=_depth):
        for step in _way(path, jail.writable):
            mode = _mode(step)
            if mode == 0 or placeholders.is_one(mode):  # which another command may remove
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
        if not below_any(path, jail.opaque) or below_any(path, shown)
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
    """Every place from below the innermost writable root down to the path."""
    root = max((root for root in roots if is_below(path, root)), key=len)
    names = path[len(root.rstrip("/")) + 1 :].split("/")
    return [os.path.join(root, *names[: count + 1]) for count in range(len(names))]


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _to_cover(path: str) -> int:
    """The mode of a hidden path; 0 if it needs no cover, which bubblewrap takes long for.

    What the system itself keeps from us it keeps from the command too, who is the same user
    without any capability; unless it is ours, for then its mode is ours to change.
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
