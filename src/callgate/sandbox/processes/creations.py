"""Names that a command may create: all except names that a program executes without approval.

    path of a new name -> protected? -> git wrote it -> allowed, and reported after the run
                             | no          | no
                          allowed       refused with EPERM

`write_attempts` stops each call that could create a name, and asks `Creations.refuses`. Directories
may have any name, because an empty one executes nothing. Creations by git are allowed and reported
after the run (`workspace/executed_later`), because git has to check out the files of a commit. In a
repository's own directory the configuration is refused by its content (`git_settings`) and a hook
by its name, so that `git init` and `git clone` work.

A program can change its memory between our check and the kernel's, so an attacker can still create
a name. The search after the run finds it.

A path of another process is resolved by the kernel's rules. The kernel resolves `/proc/self` for
the calling process, so we would get another result. Paths are first looked up without magic
links, in one call; with a magic link, or a link at the end, name by name (`_walk`).

The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from callgate.core.local import git_settings
from callgate.sandbox import kernel

TYPE_CHECKING = False

if TYPE_CHECKING:
    from callgate.sandbox.orders import ProtectedNames
    from callgate.sandbox.processes.supervisor import Call


_AT_CWD = (-100, -100 & 0xFFFFFFFF)
_MOST_LINKS = 40
_NO_MAGIC_LINKS = 2
_WALKED = (errno.ELOOP, errno.ENOSYS, errno.EPERM, errno.ENOENT)
"""Errors after which a path is walked. ENOENT: `/proc/self` means us to the kernel."""
_HOW = struct.pack("=3Q", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY, 0, _NO_MAGIC_LINKS)


def operand(call: Call, directory: int | None, address: int | None) -> tuple[bytes, bytes]:
    """Return the base directory of a call's path, as a path for us, and the path itself.
    `directory` is a descriptor of the process; None: its working directory."""
    raw = call.text(address) if address else b""
    process = b"/proc/%d/" % call.pid
    if raw.startswith(b"/"):
        return process + b"root", raw.lstrip(b"/")
    number = _AT_CWD[0] if directory is None else directory & 0xFFFFFFFF
    return process + (b"cwd" if number in _AT_CWD else b"fd/%d" % number), raw


def location(pid: int, base: bytes, raw: bytes, *, follow: bool) -> bytes:
    """Return the path of a name that may not exist. `follow`: through a link at its end, too."""
    raw = raw.rstrip(b"/")
    head, tail = os.path.split(raw)
    if tail in (b"", b".", b".."):
        return _walk(pid, base, raw, follow=follow)
    if not head and not base.endswith(b"/root"):
        if follow and _is_link(base + b"/" + tail):
            return _walk(pid, base, raw, follow=True)
        return os.path.join(os.readlink(base), tail)
    try:
        descriptor = _open_directory(base, head or b".")
    except OSError as error:
        if error.errno not in _WALKED:
            raise
        return _walk(pid, base, raw, follow=follow)
    try:
        if follow and _is_link(tail, descriptor):
            return _walk(pid, base, raw, follow=True)
        return os.path.join(_path(descriptor), tail)
    finally:
        os.close(descriptor)


def _open_directory(base: bytes, head: bytes) -> int:
    descriptor = os.open(base, os.O_PATH | os.O_CLOEXEC)
    try:
        return kernel.call("openat2", descriptor, head, _HOW, len(_HOW))
    finally:
        os.close(descriptor)


def _walk(pid: int, base: bytes, raw: bytes, *, follow: bool) -> bytes:
    pending = raw.split(b"/")[::-1]
    at = os.open(base, os.O_PATH | os.O_CLOEXEC)
    links = 0
    try:
        while pending:
            name = pending.pop()
            if name in (b"", b"."):
                continue
            if name in (b"self", b"thread-self") and _path(at) == b"/proc":
                # Our own /proc: a process has another number in the /proc of another namespace, to
                # which this link does not lead.
                at = _replaced(at, os.open(b"/proc/%d" % pid, _STEP))
                continue
            target = None if name == b".." else _target(name, at)
            if target is None or (not pending and not follow):
                if not pending and name != b"..":
                    return os.path.join(_path(at), name)
                at = _replaced(at, os.open(name, _STEP, dir_fd=at))
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            here = _path(at)
            if here.startswith(b"/proc/"):  # a magic link of the named process
                at = _replaced(at, os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=at))
            else:
                if target.startswith(b"/"):
                    at = _replaced(at, os.open(b"/proc/%d/root" % pid, _STEP & ~os.O_NOFOLLOW))
                pending += target.split(b"/")[::-1]
        return _path(at)
    finally:
        os.close(at)


_STEP = os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new


def _target(name: bytes, directory: int) -> bytes | None:
    """Return the target of a link; None if it is not a link, or missing."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _is_link(name: bytes, directory: int | None = None) -> bool:
    try:
        os.readlink(name, dir_fd=directory)
    except OSError:
        return False
    return True


def _path(descriptor: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % descriptor)


OPEN, LINK, SYMLINK, RENAME, NODE = "open", "link", "symlink", "rename", "node"

_CONFIGS = frozenset({b"config", b"config.worktree"})
_SIGNS = (b"HEAD", b"objects", b"refs", b"commondir")
"""Two of them make a directory a possible repository for git."""
_MAKES_REPOSITORY = frozenset({b"head", b"commondir"})
"""Without one of them git accepts no directory as a repository. Lower case."""
_DATA = frozenset({b"refs", b"logs", b"objects", b"reftable", b"lfs"})
_OTHER_REPOSITORIES = frozenset({b".hg", b".svn", b".bzr", b".jj"})
_LARGEST_CONFIG = 1 << 20
_MOST_MOVED = 200_000
"""Maximum names in a directory that may be moved out of a package directory."""


class Creations:
    """The rules of one command."""

    def __init__(self, rules: ProtectedNames, writable: list[bytes]) -> None:
        self._private = frozenset(rules["private"])
        self._roots = sorted({*rules["roots"], *self._private}, key=len, reverse=True)
        self._names = frozenset(rules["names"])
        self._pairs = frozenset(tuple(pair.split(b"/")) for pair in rules["pairs"])
        self._firsts = frozenset(first for first, _ in self._pairs)
        self._suffixes = tuple(rules["suffixes"])
        self._exempt = frozenset(rules["exempt"])
        self._allowed = frozenset(rules["allowed"])
        self._writable = [*writable, b"/tmp", b"/var/tmp", b"/dev/shm"]

    def refuses(self, path: bytes, kind: str, source: bytes | None, pid: int) -> bool:
        """Whether a process may not create this name. `source` is the path that it moves or links
        to it."""
        root = next((each for each in self._roots if _is_below(path, each)), None)
        if root is None or path == root or root in self._private:
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
        """Whether a name is protected. Names in package directories are not, because no program
        executes them."""
        for at, name in enumerate(names):
            if name in self._exempt or name in _OTHER_REPOSITORIES:
                return False
            if name in self._names or tuple(names[at : at + 2]) in self._pairs:
                return True
        return names[-1].endswith(self._suffixes)

    def _makes_pair(self, names: list[bytes], kind: str, source: bytes | None) -> bool:
        """Whether a moved directory, or a link, would create both names of a protected pair."""
        if names[-1] not in self._firsts or not self._exempt.isdisjoint(names):
            return False
        if kind != RENAME or source is None:
            return kind == SYMLINK
        seconds = {second for first, second in self._pairs if first == names[-1]}
        return any(name.lower() in seconds for name in _listed(source))

    def _moves_out(self, source: bytes, root: bytes, names: list[bytes]) -> bool:
        """Whether a directory with a protected name is moved out of a package directory."""
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
        """Whether a process is the system's git, which no command can have replaced."""
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
    """Whether a change of a git configuration is refused. git replaces the whole file; other ways
    are refused."""
    if kind not in (RENAME, LINK) or source is None:
        return True
    return bool(git_settings.unsafe(_text(source)))


def _is_unsafe(repository: bytes) -> bool:
    """Whether a repository's own directory would configure programs."""
    texts = (_text(os.path.join(repository, name)) for name in sorted(_CONFIGS))
    return any(map(git_settings.unsafe, texts)) or _has_hooks(os.path.join(repository, b"hooks"))


def _has_hooks(directory: bytes) -> bool:
    return any(not name.endswith(b".sample") for name in _listed(directory))


def _listed(directory: bytes) -> list[bytes]:
    """Return the names in a directory; none if it is missing. An unreadable one is an error, which
    fails the call."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _text(path: bytes) -> str:
    """Return the content of a file; empty if it is missing, and a refused text otherwise."""
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
