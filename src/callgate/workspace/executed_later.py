"""Files that a run left in a directory and that some program executes later without a question.

    began = now()                      before the run
    left = search(roots, began, ...)   after it: protected names, git configuration and hooks
    disable(left)                      git configuration and hooks get another name

The sandbox refuses to create these files where it can see a command's calls (`sandbox/processes/
creations`). This search finds what it cannot refuse: what git checked out, what won a race against
the refusal, and everything on a kernel that shows us no calls. A file belongs to a run if its
inode changed since the run began; no program can set that time back. Changes of other programs in
the same time are found as well.

A repository is recognised by its content, at any depth and under any name. Its configuration is
read by git's rules (`git_settings`), also through links and through `.git` files. The whole tree is
searched. If that takes too long, the result says so: nothing is left out silently.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from callgate.core.commands import DISABLED, LeftBehind
from callgate.core.text import git_settings
from callgate.workspace.git.protected_repositories import named_by, text_of
from callgate.workspace.protected import ALLOWED, EXEMPT, NAMES, PAIRS, PIPELINES, SUFFIXES

MOST_SECONDS = 30.0
"""For one search. One of 100,000 names takes about half a second."""

_CONFIGS = ("config", "config.worktree")
_OTHER_REPOSITORIES = frozenset({".hg", ".svn", ".bzr", ".jj"})
_NOT_ENTERED = _OTHER_REPOSITORIES | {".git"}
_GIT_DATA = frozenset({"objects", "refs", "logs", "lfs", "rr-cache", "reftable", "info"})
_FIRSTS = frozenset(pair.partition("/")[0] for pair in PAIRS)
_CHECKED_EVERY = 256


def now() -> int:
    """The time by the clock that the kernel stamps inodes with, in nanoseconds."""
    clock = getattr(time, "CLOCK_REALTIME_COARSE", time.CLOCK_REALTIME)
    return time.clock_gettime_ns(clock)


def search(
    roots: Iterable[str],
    began: int,
    known: Sequence[str] = (),
    *,
    clock: Callable[[], float] = time.monotonic,
) -> LeftBehind:
    """Search directories after a run. `known`: paths that it could not change. Blocks."""
    found = _Search(began, known, clock)
    for root in dict.fromkeys(map(os.path.realpath, roots)):
        found.walk(root)
    return LeftBehind(
        files=tuple(sorted(found.files)),
        git=tuple((path, found.git[path]) for path in sorted(found.git)),
        pipelines=tuple(sorted(found.pipelines)),
        unsearched=found.unsearched,
    )


def take_stock(roots: Iterable[str], began: int, known: Sequence[str] = ()) -> LeftBehind:
    """Search directories after a run, and disable what git would run. Blocks."""
    return disable(search(roots, began, known))


def disable(left: LeftBehind) -> LeftBehind:
    """Give the git configuration and hooks that were found a name that git does not read.

    A repository without configuration works with git's defaults."""
    disabled = []
    for path, _ in left.git:
        try:
            os.rename(path, path + DISABLED)
        except OSError:
            continue
        disabled.append(path)
    return msgspec.structs.replace(left, disabled=tuple(disabled))


class _Search:
    def __init__(self, began: int, known: Sequence[str], clock: Callable[[], float]) -> None:
        self._began = began
        self._known = tuple(path.rstrip("/") for path in known)
        self._clock = clock
        self._deadline = clock() + MOST_SECONDS
        self._count = 0
        self._repositories: set[str] = set()
        self.files: list[str] = []
        self.pipelines: list[str] = []
        self.git: dict[str, tuple[str, ...]] = {}
        self.unsearched = ""

    def walk(self, root: str) -> None:
        waiting = [(root, False)]
        while waiting and not self.unsearched:
            directory, is_exempt = waiting.pop()
            entries = {entry.name: entry for entry in self._entries(directory)}
            if _is_repository(entries):
                self._look_at_repository(directory, root)
            if ".git" in entries:
                self._look_at_git(entries[".git"], root)
            protected = () if is_exempt else _protected(directory, entries)
            for name in protected:
                self._add(entries[name], self.files)
            for name in PIPELINES.intersection(entries):
                self._add(entries[name], self.pipelines)
            if os.path.basename(directory) == ".github" and "workflows" in entries:
                self._add(entries["workflows"], self.pipelines)
            for name, entry in entries.items():
                is_entered = name not in protected and name not in _NOT_ENTERED
                if is_entered and entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, is_exempt or name in EXEMPT))

    def _add(self, entry: os.DirEntry[str], found: list[str]) -> None:
        """A directory as a whole, if nothing in it is older than the run."""
        if not entry.is_dir(follow_symlinks=False):
            if self._is_new(entry.path):
                found.append(entry.path)
            return
        files = list(self._files(entry.path))
        new = [path for path in files if self._is_new(path)]
        if new and len(new) == len(files):
            found.append(entry.path)
        else:
            found += new

    def _files(self, directory: str) -> Iterator[str]:
        for entry in self._entries(directory):
            if entry.is_dir(follow_symlinks=False):
                yield from self._files(entry.path)
            elif "/".join(entry.path.split("/")[-2:]) not in ALLOWED:
                yield entry.path

    def _look_at_git(self, entry: os.DirEntry[str], root: str) -> None:
        """A repository's own directory, a link to one, or a file that names one."""
        target: str | None = os.path.realpath(entry.path)
        if entry.is_file(follow_symlinks=False):
            target = named_by(entry.path)
        if target is not None and os.path.isdir(target) and _is_below(target, root):
            self._look_at_repository(target, root)

    def _look_at_repository(self, directory: str, root: str) -> None:
        if directory in self._repositories:
            return
        self._repositories.add(directory)
        for name in _CONFIGS:
            path = os.path.join(directory, name)
            if self._is_new(path, follow=True) and (names := git_settings.unsafe(text_of(path))):
                self.git[path] = tuple(names)
        for path in self._files(os.path.join(directory, "hooks")):
            if not path.endswith((".sample", DISABLED)) and self._is_new(path, follow=True):
                self.git[path] = ()
        common = text_of(os.path.join(directory, "commondir")).strip("\n")
        target = os.path.realpath(os.path.join(directory, common))
        if common and os.path.isdir(target) and _is_below(target, root):
            self._look_at_repository(target, root)
        for parent in ("modules", "worktrees"):
            self._look_below(os.path.join(directory, parent), root)

    def _look_below(self, directory: str, root: str) -> None:
        """Repositories of submodules, whose names may have slashes, and of worktrees."""
        for entry in self._entries(directory):
            if not entry.is_dir(follow_symlinks=False) or entry.name in _GIT_DATA:
                continue
            names = {each.name for each in self._entries(entry.path)}
            if _is_repository(names) or not names.isdisjoint((*_CONFIGS, "HEAD", "commondir")):
                self._look_at_repository(entry.path, root)
            else:
                self._look_below(entry.path, root)

    def _is_new(self, path: str, *, follow: bool = False) -> bool:
        """Whether it was created or changed since the run began. `follow`: or what a link in its
        place leads to."""
        if any(_is_below(path, each) for each in self._known):
            return False
        try:
            facts = os.lstat(path)
            if stat.S_ISLNK(facts.st_mode) and follow:
                facts = max(facts, os.stat(path), key=lambda each: each.st_ctime_ns)
        except OSError:
            return False
        return facts.st_ctime_ns >= self._began

    def _entries(self, directory: str) -> list[os.DirEntry[str]]:
        self._count += 1
        if self._count % _CHECKED_EVERY == 0 and self._clock() > self._deadline:
            self.unsearched = f"the search takes longer than {MOST_SECONDS:g} s"
        if self.unsearched:
            return []
        try:
            with os.scandir(directory) as entries:
                return list(entries)
        except OSError:  # gone, a link, or closed to us: git cannot read it as our user either
            return []


def _protected(directory: str, names: Collection[str]) -> set[str]:
    """The protected names in a directory, but for repositories."""
    found = NAMES.intersection(names)
    if any(suffix in "\0".join(names) for suffix in SUFFIXES):
        found |= {name for name in names if name.endswith(SUFFIXES)}
    here = os.path.basename(directory).lower()
    if here in _FIRSTS:
        found |= {name for name in names if f"{here}/{name.lower()}" in PAIRS}
    return set(found - _NOT_ENTERED)


def _is_repository(names: Collection[str]) -> bool:
    """Whether git may take a directory with these names for a repository, or for a part of one."""
    return ("objects" in names and "refs" in names) or ("HEAD" in names and "commondir" in names)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
