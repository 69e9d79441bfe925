"""What of the machine a command does not see, beside what is named as hidden.

    opaque directories    homes and other people's data: empty, but for what is shown in them
    private places        what the system keeps from other users, it keeps from commands too

So a secret is out of sight at a place that nobody thought of, if it lies in a home or if only we
may read it. `unseen` finds in a command's words and errors what is there but out of its sight.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator

from callgate.sandbox.jails import Jail, below_any, is_below

DATA = (
    "/home",
    "/root",
    "/Users",
    "/mnt",
    "/media",
    "/srv",
    "/lost+found",
    "/var/mail",
    "/var/spool",
    "/var/backups",
    "/var/lib/private",
    "/run/user",
    "/run/secrets",
    "/run/credentials",
    "/run/media",
    "/run/screen",
)
"""Directories of which a tool needs nothing, unless it is shown."""

_PRIVATE_IN = {
    "/": 1,
    "/etc": 3,
    "/opt": 2,
    "/usr/local": 2,
    "/var/lib": 2,
    "/var/cache": 2,
    "/var/log": 2,
    "/run": 1,
}
"""Where to look for what is not for everyone, and how deep."""
_MOST_PRIVATE = 500
_FRESH_S = 600.0
_MOST_LINKS = 40
_LONGEST_TEXT = 64 * 1024
_MOST_WORDS, _MOST_NAMED = 200, 5
_PATH = re.compile(r"(?:~|\$HOME|\$\{HOME\})?/[^\s'\"`;|&<>()\[\]{}:,*?$\\]*")


def opaque(directories: Iterable[str], visible: Iterable[str]) -> tuple[str, ...]:
    """The outermost of these directories, without those that a visible path covers."""
    shown = [path for path in visible if path != "/"]
    real = {os.path.realpath(path) for path in directories if os.path.isdir(path)} - {"/"}
    wanted = {path for path in real if not below_any(path, shown)}
    return tuple(sorted(p for p in wanted if not below_any(p, wanted - {p})))


def links(
    paths: Iterable[str], inside: Iterable[str], visible: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """The symbolic links on the way to paths, each with its target: those in some directories,
    but not in what is visible there, which has them already."""
    roots, shown = tuple(inside), [path for path in visible if path != "/"]
    found = {link for path in paths for link in _links(path, _MOST_LINKS)}
    return tuple(
        sorted((at, to) for at, to in found if below_any(at, roots) and not below_any(at, shown))
    )


def _links(path: str, most: int) -> Iterator[tuple[str, str]]:
    step = "/"
    for name in path.strip("/").split("/"):
        step = os.path.join(step, name)
        if os.path.islink(step) and most:
            target = os.readlink(step)
            yield step, target
            following = os.path.normpath(os.path.join(os.path.dirname(step), target))
            yield from _links(following, most - 1)
            step = os.path.realpath(step)


def private_paths() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Directories and files of the system that are for us and not for everyone."""
    return _private_paths(int(time.monotonic() / _FRESH_S))


@functools.lru_cache(maxsize=1)
def _private_paths(moment: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    groups = {os.getegid(), *os.getgroups()}
    directories: list[str] = []
    files: list[str] = []
    for root, depth in _PRIVATE_IN.items():
        for entry in _private(root, depth, os.geteuid(), groups):
            (directories if entry.is_dir(follow_symlinks=False) else files).append(entry.path)
    return tuple(directories[:_MOST_PRIVATE]), tuple(files[:_MOST_PRIVATE])


def _private(root: str, depth: int, user: int, groups: set[int]) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(root) as entries:
            found = list(entries)
    except OSError:
        return
    for entry in found:
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        is_directory = stat.S_ISDIR(facts.st_mode)
        if not is_directory and not stat.S_ISREG(facts.st_mode):
            continue
        needed = 0o5 if is_directory else 0o4
        if facts.st_mode & needed != needed:
            if facts.st_uid == user or facts.st_gid in groups:
                yield entry
        elif is_directory and depth > 1:
            yield from _private(entry.path, depth - 1, user, groups)


# --- what a command missed ------------------------------------------------------------------


def unseen(jail: Jail, home: str, text: str) -> tuple[str, ...]:
    """Paths in a text that are there, and that a command in this jail does not see."""
    named: dict[str, None] = {}
    for match in itertools.islice(_PATH.finditer(text[-_LONGEST_TEXT:]), _MOST_WORDS):
        word = match.group().rstrip("./")
        path = re.sub(r"^(?:~|\$HOME|\$\{HOME\})", lambda _: home, word)
        if path and is_out_of_sight(jail, path):
            named[path] = None
            if len(named) == _MOST_NAMED:
                break
    return tuple(named)


def is_out_of_sight(jail: Jail, path: str) -> bool:
    """Whether something is there, and is not there for a command."""
    real = os.path.realpath(path)
    visible = [root for root in (*jail.readable, *jail.writable) if root != "/"]
    if below_any(real, jail.hidden):
        return os.path.lexists(real)
    if not below_any(real, jail.opaque) or below_any(real, visible):
        return False
    return os.path.lexists(real) and not any(is_below(root, real) for root in visible)
