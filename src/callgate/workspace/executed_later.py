"""Search for files that a run left behind and that a program executes later without approval.

    began = now()                      before the run
    left = search(roots, began, ...)   after it: protected names, git configuration and hooks
    disable(left)                      git configuration and hooks get another name

The sandbox refuses to create these files where it supervises a command's system calls
(`sandbox/processes/creations`). This search finds the rest: files from a git checkout, files that
won a race against the refusal, and all of them on a kernel without supervision. A file belongs to a
run if its inode changed since the run began; no program can set that time back. Changes by other
programs in the same period are found as well.

A directory that was moved or changed counts with its whole content, because a move preserves the
times of the files. A protected link counts if its target is new.

A repository is recognized by its content, at any depth and under any name. Its configuration is
read by git's rules (`git_settings`), also through links and through `.git` files. If the run
created the link, the age of the configuration does not matter. The whole tree is searched. If that
takes too long, or a directory cannot be read, the result reports it.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from callgate.core.commands import DISABLED, LeftBehind, sendable
from callgate.core.local import git_settings
from callgate.workspace.protected import ALLOWED, EXEMPT, NAMES, PAIRS, PIPELINES, SUFFIXES
from callgate.workspace.protected_places import OTHERS, REBASES, named_by, text_of

MOST_SECONDS = 30.0
"""Time limit for one search. 100,000 names take about half a second."""

_COARSE_CLOCK = 5
"""CLOCK_REALTIME_COARSE, which `time` does not define. The precise clock is some milliseconds ahead
of the times of new inodes."""
_CONFIGS = ("config", "config.worktree")
_NOT_ENTERED = frozenset({*OTHERS, ".git"})
_HARMLESS = frozenset({"requires"})
"""Files in each new repository of other systems that name no program."""
_GIT_DATA = frozenset({"objects", "refs", "logs", "lfs", "rr-cache", "reftable", "info"})
_FIRSTS = frozenset(pair.partition("/")[0] for pair in PAIRS)
_CHECKED_EVERY = 256


def now() -> int:
    """Return the time of the clock that the kernel uses for inodes, in nanoseconds."""
    clock = _COARSE_CLOCK if sys.platform == "linux" else time.CLOCK_REALTIME
    return time.clock_gettime_ns(clock)


def search(
    roots: Iterable[str],
    began: int,
    known: Sequence[str] = (),
    *,
    writable: Sequence[str] = (),
    clock: Callable[[], float] = time.monotonic,
) -> LeftBehind:
    """Search directories after a run. `known`: paths that it could not change. `writable`: further
    directories that it could write, which are searched for repositories that a root names.
    Blocks."""
    searched = tuple(dict.fromkeys(map(os.path.realpath, roots)))
    found = _Search(began, known, (*searched, *writable), clock)
    for root in searched:
        found.walk(root)
    return LeftBehind(
        files=tuple(sorted(found.files)),
        git=tuple((path, found.git[path]) for path in sorted(found.git)),
        pipelines=tuple(sorted(found.pipelines)),
        rebases=tuple(sorted(found.rebases.items())),
        unsearched=found.unsearched or found.unreadable(),
    )


def take_stock(
    roots: Iterable[str], began: int, known: Sequence[str] = (), writable: Sequence[str] = ()
) -> LeftBehind:
    """Search directories after a run, and disable the findings that git would execute. Blocks."""
    return disable(search(roots, began, known, writable=writable))


def disable(left: LeftBehind) -> LeftBehind:
    """Rename the git configuration and hooks that were found, so that git does not read them.

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
    def __init__(
        self,
        began: int,
        known: Sequence[str],
        writable: Sequence[str],
        clock: Callable[[], float],
    ) -> None:
        self._began = began
        self._writable = writable
        self._known = tuple(path.rstrip("/") for path in known)
        self._clock = clock
        self._deadline = clock() + MOST_SECONDS
        self._count = 0
        self._repositories: set[tuple[str, bool]] = set()
        self._unreadable: list[str] = []
        self.files: list[str] = []
        self.rebases: dict[str, tuple[str, ...]] = {}
        self.pipelines: list[str] = []
        self.git: dict[str, tuple[str, ...]] = {}
        self.unsearched = ""

    def walk(self, root: str) -> None:
        waiting = [(root, False)]
        while waiting and not self.unsearched:
            directory, is_exempt = waiting.pop()
            entries = {entry.name: entry for entry in self._entries(directory)}
            if _is_repository(entries):
                self._look_at_repository(directory)
            if ".git" in entries:
                self._look_at_git(entries[".git"])
            for name in OTHERS.keys() & entries.keys():
                self._look_at_other(entries[name])
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

    def unreadable(self) -> str:
        named = ", ".join(sorted(map(sendable, self._unreadable)))
        return f"{named} cannot be read" if named else ""

    def _add(self, entry: os.DirEntry[str], found: list[str]) -> None:
        """Add a directory as a whole if all of its content is new, else its new files."""
        if not entry.is_dir(follow_symlinks=False):
            if self._is_new(entry.path) or self._leads_to_new(entry.path):
                found.append(entry.path)
            return
        files = list(self._files(entry.path))
        new = [path for path, is_new in files if is_new]
        if new and len(new) == len(files):
            found.append(entry.path)
        else:
            found += new

    def _files(self, directory: str) -> Iterator[tuple[str, bool]]:
        """Yield the files below a directory, and whether each is new there."""
        is_new = self._is_new(directory)
        for entry in self._entries(directory):
            if entry.is_dir(follow_symlinks=False):
                yield from self._files(entry.path)
            elif "/".join(entry.path.split("/")[-2:]) not in ALLOWED:
                yield (
                    entry.path,
                    self._is_new(entry.path, moved=is_new) or self._leads_to_new(entry.path),
                )

    def _leads_to_new(self, link: str) -> bool:
        """Whether a path is a link to something that the run created or changed."""
        if not os.path.islink(link):
            return False
        target = os.path.realpath(link)
        if not any(_is_below(target, each) for each in self._writable):
            return False
        if not os.path.isdir(target):
            return self._is_new(target)
        waiting = [target]
        while waiting:
            for entry in self._entries(waiting.pop()):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif self._is_new(entry.path):
                    return True
        return False

    def _look_at_git(self, entry: os.DirEntry[str]) -> None:
        """Check a repository's own directory, a link to one, or a file that names one."""
        if entry.is_dir(follow_symlinks=False):
            self._look_at_repository(entry.path)
            return
        is_file = entry.is_file(follow_symlinks=False)
        target = named_by(entry.path) if is_file else os.path.realpath(entry.path)
        if target is not None:
            self._follow(entry.path, target, is_new=self._is_new(entry.path))

    def _follow(self, link: str, target: str, *, is_new: bool) -> None:
        """Check a repository that a file names. If the run could not write the repository, report
        the file: an earlier run may have left the repository there."""
        if any(_is_below(target, each) for each in self._writable):
            self._look_at_repository(target, is_new=is_new)
        elif is_new and _runs_programs(target):
            self.files.append(link)

    def _look_at_repository(self, directory: str, *, is_new: bool = False) -> None:
        """Check a repository. `is_new`: the run turned the directory into one, so the age of its
        files does not matter."""
        if (directory, is_new) in self._repositories:
            return
        self._repositories.add((directory, is_new))
        for name in _CONFIGS:
            path = os.path.join(directory, name)
            if not self._is_new(path, follow=True, moved=is_new):
                continue
            if names := git_settings.unsafe(text_of(path)):
                self.git[path] = tuple(names)
        for path, is_moved in self._files(os.path.join(directory, "hooks")):
            is_hook = not path.endswith((".sample", DISABLED))
            if is_hook and self._is_new(path, follow=True, moved=is_new or is_moved):
                self.git[path] = ()
        self._look_at_rebases(directory)
        common = os.path.join(directory, "commondir")
        if named := text_of(common).strip("\n"):
            target = os.path.realpath(os.path.join(directory, named))
            self._follow(common, target, is_new=is_new or self._is_new(common))
        for parent in ("modules", "worktrees"):
            self._look_below(os.path.join(directory, parent))

    def _look_at_rebases(self, directory: str) -> None:
        """Check for a rebase that the run began or changed, and did not finish."""
        for name in REBASES:
            state = os.path.join(directory, name)
            todo = os.path.join(state, "git-rebase-todo")
            if os.path.isdir(state) and (self._is_new(state) or self._is_new(todo)):
                lines = text_of(todo).splitlines() if os.path.realpath(todo) == todo else []
                self.rebases[state] = tuple(
                    line for line in lines if line.split(maxsplit=1)[:1] in (["x"], ["exec"])
                )

    def _look_at_other(self, entry: os.DirEntry[str]) -> None:
        """Check the files through which a repository of another system runs programs."""
        moved = self._is_new(entry.path)
        for name in OTHERS[entry.name]:
            path = os.path.join(entry.path, name)
            if name not in _HARMLESS and self._is_new(path, follow=True, moved=moved):
                self.files.append(path)

    def _look_below(self, directory: str) -> None:
        """Check repositories of submodules, whose names may have slashes, and of worktrees."""
        for entry in self._entries(directory):
            if not entry.is_dir(follow_symlinks=False) or entry.name in _GIT_DATA:
                continue
            names = {each.name for each in self._entries(entry.path)}
            if _is_repository(names) or not names.isdisjoint((*_CONFIGS, "HEAD", "commondir")):
                self._look_at_repository(entry.path)
            else:
                self._look_below(entry.path)

    def _is_new(self, path: str, *, follow: bool = False, moved: bool = False) -> bool:
        """Whether a path was created or changed since the run began. `follow`: or the target of a
        link. `moved`: or moved to this path, at any age."""
        if any(_is_below(path, each) for each in self._known):
            return False
        try:
            facts = os.lstat(path)
            if stat.S_ISLNK(facts.st_mode) and follow:
                facts = max(facts, os.stat(path), key=lambda each: each.st_ctime_ns)
        except OSError:
            return False
        return moved or facts.st_ctime_ns >= self._began

    def _entries(self, directory: str) -> list[os.DirEntry[str]]:
        self._count += 1
        if self._count % _CHECKED_EVERY == 0 and self._clock() > self._deadline:
            self.unsearched = f"the search takes longer than {MOST_SECONDS:g} s"
        if self.unsearched:
            return []
        try:
            with os.scandir(directory) as entries:
                return list(entries)
        except PermissionError:
            if _opens_by_name(directory):
                self._unreadable.append(directory)
            return []
        except OSError:  # gone, or a link
            return []


def _protected(directory: str, names: Collection[str]) -> set[str]:
    """Return the protected names in a directory, except repositories."""
    found = NAMES.intersection(names)
    if any(suffix in "\0".join(names) for suffix in SUFFIXES):
        found |= {name for name in names if name.endswith(SUFFIXES)}
    here = os.path.basename(directory).lower()
    if here in _FIRSTS:
        found |= {name for name in names if f"{here}/{name.lower()}" in PAIRS}
    return set(found - _NOT_ENTERED)


def _is_repository(names: Collection[str]) -> bool:
    """Whether git may accept a directory with these names as a repository, or a part of one."""
    return ("objects" in names and "refs" in names) or ("HEAD" in names and "commondir" in names)


def _runs_programs(repository: str) -> bool:
    """Whether the configuration or the hooks of a repository make git run programs."""
    if any(git_settings.unsafe(text_of(os.path.join(repository, name))) for name in _CONFIGS):
        return True
    try:
        hooks = os.listdir(os.path.join(repository, "hooks"))
    except (FileNotFoundError, NotADirectoryError):
        hooks = []
    except OSError:
        return True
    return any(not name.endswith((".sample", DISABLED)) for name in hooks)


def _opens_by_name(directory: str) -> bool:
    """Whether files in our directory can be opened although it cannot be listed."""
    try:
        facts = os.lstat(directory)
    except OSError:
        return False
    return facts.st_uid == os.geteuid() and bool(facts.st_mode & stat.S_IXUSR)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
