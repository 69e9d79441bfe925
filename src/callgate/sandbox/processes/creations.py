"""Which names a command may create: none that some program executes later without a question.

    path of a new name -> protected? -> git wrote it -> allowed, and reported after the run
                             | no          | no
                          allowed       refused with EPERM

`write_attempts` stops each call that could create a name, and asks `Creations.refuses`. Directories
may be created under any name, because an empty one runs nothing. Not refused, but reported after
the run (`workspace/executed_later`), is all that git creates: it has to check out what a commit
contains. In a repository's own directory the configuration is refused by its content
(`git_settings`) and a hook by its name, so that `git init` and `git clone` work.

A program can change its memory between our look and the kernel's, so an attacker can create a
name all the same. The search after the run finds it.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import os
import stat

from callgate.core.text import git_settings

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from callgate.sandbox.orders import ProtectedNames

OPEN, LINK, SYMLINK, RENAME, NODE = "open", "link", "symlink", "rename", "node"

_CONFIGS = frozenset({b"config", b"config.worktree"})
_SIGNS = (b"HEAD", b"objects", b"refs", b"commondir")
"""Two of them make a directory one that git may take for a repository."""
_MAKES_REPOSITORY = frozenset({b"head", b"commondir"})
"""Without one of them git takes no directory for a repository. Small letters."""
_DATA = frozenset({b"refs", b"logs", b"objects", b"reftable", b"lfs"})
_OTHER_REPOSITORIES = frozenset({b".hg", b".svn", b".bzr", b".jj"})
_LARGEST_CONFIG = 1 << 20
_MOST_MOVED = 200_000
"""Names in a directory that is moved; one with more is not moved out of a place for packages."""


class Creations:
    """The rules of one command."""

    def __init__(self, rules: ProtectedNames, writable: list[bytes]) -> None:
        self._roots = sorted(rules["roots"], key=len, reverse=True)
        self._names = frozenset(rules["names"])
        self._pairs = frozenset(tuple(pair.split(b"/")) for pair in rules["pairs"])
        self._firsts = frozenset(first for first, _ in self._pairs)
        self._suffixes = tuple(rules["suffixes"])
        self._exempt = frozenset(rules["exempt"])
        self._allowed = frozenset(rules["allowed"])
        self._writable = [*writable, b"/tmp", b"/var/tmp", b"/dev/shm"]

    def refuses(self, path: bytes, kind: str, source: bytes | None, pid: int) -> bool:
        """Whether a process may not create this name. `source` is what it moves or links there."""
        root = next((each for each in self._roots if _is_below(path, each)), None)
        if root is None or path == root:
            return False
        inside = path[len(root.rstrip(b"/")) + 1 :]
        names = inside.lower().split(b"/")
        if kind == RENAME and source is not None and self._moves_out(source, root, names):
            return True
        if not self._is_of_interest(names):
            return False
        if b".git" in names:
            return self._in_git(names, kind, path, source)
        if names[-1] in _CONFIGS and _looks_like_repository(os.path.dirname(path)):
            return _configures(kind, source)
        if names[-1] in _MAKES_REPOSITORY and not os.path.lexists(path):
            return _is_unsafe(os.path.dirname(path))
        if not self._is_protected(names) and not self._makes_pair(names, kind, source):
            return False
        is_allowed = kind == OPEN and b"/".join(names[-2:]) in self._allowed
        return not is_allowed and not self._is_git(pid)

    def _is_of_interest(self, names: list[bytes]) -> bool:
        return (
            not self._names.isdisjoint(names)
            or not self._firsts.isdisjoint(names)
            or names[-1] in _CONFIGS
            or names[-1] in _MAKES_REPOSITORY
            or names[-1].endswith(self._suffixes)
        )

    def _is_protected(self, names: list[bytes]) -> bool:
        """Outside of directories for packages, which nothing executes by these names."""
        for at, name in enumerate(names):
            if name in self._exempt or name in _OTHER_REPOSITORIES:
                return False
            if name in self._names or tuple(names[at : at + 2]) in self._pairs:
                return True
        return names[-1].endswith(self._suffixes)

    def _makes_pair(self, names: list[bytes], kind: str, source: bytes | None) -> bool:
        """A directory that is moved to, or a link at, the first of two protected names."""
        if names[-1] not in self._firsts or not self._exempt.isdisjoint(names):
            return False
        if kind != RENAME or source is None:
            return kind == SYMLINK
        seconds = {second for first, second in self._pairs if first == names[-1]}
        return any(name.lower() in seconds for name in _listed(source))

    def _moves_out(self, source: bytes, root: bytes, names: list[bytes]) -> bool:
        """A directory out of a place for packages, with a protected name in it."""
        if not _is_below(source, root) or not self._exempt.isdisjoint(names):
            return False
        before = source[len(root.rstrip(b"/")) + 1 :].lower().split(b"/")
        if self._exempt.isdisjoint(before) or not os.path.isdir(source):
            return False
        count = 0
        for directory, directories, files in os.walk(source):
            for name in (*directories, *files):
                count += 1
                below = os.path.join(directory, name)[len(source) + 1 :].lower().split(b"/")
                if count > _MOST_MOVED or self._is_protected([*names, *below]):
                    return True
        return False

    def _in_git(self, names: list[bytes], kind: str, path: bytes, source: bytes | None) -> bool:
        at = len(names) - 1 - names[::-1].index(b".git")
        below = names[at + 1 :]
        if not below:
            is_moved = kind == RENAME and source is not None and os.path.isdir(source)
            return kind == SYMLINK or (is_moved and _is_unsafe(source or b""))
        if not _DATA.isdisjoint(below[:-1]):
            return False
        if below[-1] in _CONFIGS:
            return _configures(kind, source)
        if below[-1] == b"hooks":
            return kind == SYMLINK or (kind == RENAME and _has_hooks(source or b""))
        if b"hooks" in below:
            return kind == SYMLINK or not below[-1].endswith(b".sample")
        if kind == RENAME and source is not None and os.path.isdir(source):
            return _is_unsafe(source)
        return False

    def _is_git(self, pid: int) -> bool:
        """Whether it is the system's git, which no command can have replaced."""
        try:
            program = os.readlink(b"/proc/%d/exe" % pid)
        except OSError:
            return False
        is_ours = any(_is_below(program, each) for each in self._writable)
        return os.path.basename(program) == b"git" and not is_ours


def _is_below(path: bytes, root: bytes) -> bool:
    return path == root or path.startswith(root.rstrip(b"/") + b"/")


def _looks_like_repository(directory: bytes) -> bool:
    return sum(os.path.lexists(os.path.join(directory, sign)) for sign in _SIGNS) > 1


def _configures(kind: str, source: bytes | None) -> bool:
    """git puts a whole file in the place of its configuration; no other way is allowed."""
    if kind not in (RENAME, LINK) or source is None:
        return True
    return bool(git_settings.unsafe(_text(source)))


def _is_unsafe(repository: bytes) -> bool:
    """Whether a directory that becomes a repository's own configures programs."""
    texts = (_text(os.path.join(repository, name)) for name in sorted(_CONFIGS))
    return any(map(git_settings.unsafe, texts)) or _has_hooks(os.path.join(repository, b"hooks"))


def _has_hooks(directory: bytes) -> bool:
    return any(not name.endswith(b".sample") for name in _listed(directory))


def _listed(directory: bytes) -> list[bytes]:
    """The names in a directory; none if there is none. One that cannot be read is an error, by
    which the call fails."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _text(path: bytes) -> str:
    """The content of a file; of one that is missing, nothing; of any other, what is refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError:
        return "="
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _LARGEST_CONFIG:
            return "="
        return os.read(descriptor, _LARGEST_CONFIG).decode("utf-8", "surrogateescape")
    except OSError:
        return "="
    finally:
        os.close(descriptor)
