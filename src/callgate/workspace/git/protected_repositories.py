"""What of a repository a command must leave as it is, so that version control runs no program of
the command's later: all but what git itself writes (`git_layout`).

Nothing is judged by what it says: a command that could change one of these files, or create it
where it is missing, would choose what the next `git status` of its user runs.

    .git/config, hooks ...           whatever is there and is not on the allow list
    _READ                            what git would read, also where it is missing
    .git/worktrees/*/                the same, of other worktrees
    .git/modules/**/                 repositories themselves, of submodules
    include.path, core.hooksPath     what the configuration names, if it is in the workspace; also
                                     that of the user
    core.worktree                    a submodule's files: its `.git` there, at whatever depth
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from callgate.core.text.git_settings import settings
from callgate.workspace.git.layout import git_writes

MOST_MODULES = 64
"""A repository with more submodules is kept from changing any of them."""

OTHERS = {
    ".hg": ("hgrc", "hgrc-not-shared", "requires", "sharedpath"),
    ".jj": ("repo/config.toml", "workspace-config.toml"),
    ".bzr": ("branch/branch.conf",),
    ".svn": (),
}
_ONLY_IF_THERE = frozenset({"requires", "sharedpath"})
"""Elsewhere an empty file says as little as a missing one."""
_READ = ("hooks", "config", "config.worktree", "commondir")
"""What makes git run programs. A command cannot create them either."""
_OF_THE_USER = ("~/.gitconfig", "~/.config/git/config")
"""Their relative `core.hooksPath` is a directory of each repository."""
_SIGNS = ("HEAD", "config", "hooks", "objects", "refs")
_BARE = frozenset({"HEAD", "objects", "refs"})
_DEEPEST_MODULE = 6
_DEEPEST_INCLUDE = 10
_LARGEST_CONFIG = 1 << 20


def is_bare(directory: str, names: set[str]) -> bool:
    """Whether a directory with these entries is a repository itself, or was one: a command can
    take a part of it away and bring it back later, but not its configuration."""
    if names >= _BARE:
        return True
    return "config" in names and "repositoryformatversion" in text_of(
        os.path.join(directory, "config")
    )


def named_by(file: str) -> str | None:
    """The repository's own directory that a `.git` which is a file names."""
    kind, _, path = text_of(file).partition(":")
    path = path.partition("\0")[0].strip()
    if kind != "gitdir" or not path:
        return None
    return os.path.realpath(os.path.join(os.path.dirname(file), path))


def of_git(directory: str, root: str) -> Iterator[str]:
    """Of the repository whose own directory this is. It need not be whole: taking one file away
    must not make it none. `root` is the workspace, beyond which nothing can be changed anyway."""
    if not any(os.path.lexists(os.path.join(directory, sign)) for sign in _SIGNS):
        return  # not one yet: `git init` must be able to make it
    yield from _entries(directory, _READ)
    info = os.path.join(directory, "info")
    yield os.path.join(info, "attributes") if _is_directory(info) else info
    top = os.path.dirname(directory) if os.path.basename(directory) == ".git" else directory
    configured = _Configured(top, root)
    for name in ("config", "config.worktree"):
        configured.read(os.path.join(directory, name))
    of_user = _Configured(top, root)
    for path in _OF_THE_USER:
        of_user.read(os.path.expanduser(path))
    yield from (path for path in of_user.paths if _is_directory(os.path.dirname(path)))
    for worktree in _directories(os.path.join(directory, "worktrees")):
        yield from _entries(worktree, ("config.worktree", "commondir"))
    yield from configured.paths
    modules = os.path.join(directory, "modules")
    found = list(_modules(modules, _DEEPEST_MODULE))
    if len(found) > MOST_MODULES:
        yield modules
        return
    for module in found:
        yield from of_git(module, root)


def _entries(directory: str, always: tuple[str, ...]) -> Iterator[str]:
    """What is there and git does not write, and what must not come there. A bare repository may
    share its directory with other things, which are nobody's but its user's."""
    yield from (os.path.join(directory, name) for name in always)
    if ".git" not in directory.split("/"):
        return
    for prefix in ("", "info/"):
        for name in _names(os.path.join(directory, prefix)):
            known = name in ("modules", "worktrees", "info") or name in always
            if not known and not git_writes(prefix + name):
                yield os.path.join(directory, prefix + name)


def of_other(directory: str, kind: str) -> Iterator[str]:
    """Of a repository that is none of git's."""
    for name in OTHERS[kind]:
        path = os.path.join(directory, name)
        there = path if name in _ONLY_IF_THERE else os.path.dirname(path)
        if os.path.lexists(there):
            yield path


def _modules(directory: str, depth: int) -> Iterator[str]:
    """A submodule's name may have slashes. What is in a module is looked at with the module."""
    for path in _directories(directory):
        if os.path.lexists(os.path.join(path, "HEAD")) or os.path.lexists(
            os.path.join(path, "config")
        ):
            yield path
        elif depth > 1:
            yield from _modules(path, depth - 1)


def _names(directory: str) -> list[str]:
    """All but links, which cannot be kept in their place."""
    try:
        with os.scandir(directory) as entries:
            return sorted(each.name for each in entries if not each.is_symlink())
    except OSError:
        return []


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _directories(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(each.path for each in entries if each.is_dir(follow_symlinks=False))
    except OSError:
        return []


class _Configured:
    """What configuration files name, the files that they include among it."""

    def __init__(self, top: str, root: str) -> None:
        self._top = top
        self._root = os.path.realpath(root)
        self._given_root = root
        self._seen: set[str] = set()
        self.paths: list[str] = []

    def read(self, path: str, depth: int = _DEEPEST_INCLUDE) -> None:
        if path in self._seen or depth == 0:
            return
        self._seen.add(path)
        for section, _, name, value in settings(text_of(path)):
            if section in ("include", "includeif") and name == "path":
                target = self._resolved(value, os.path.dirname(path))
                self._keep(target)
                self.read(target, depth - 1)
            elif (section, name) == ("core", "hookspath"):
                self._keep(self._resolved(value, self._top))
            elif (section, name) == ("core", "worktree"):
                link = os.path.join(self._resolved(value, os.path.dirname(path)), ".git")
                if os.path.isfile(link) and not os.path.islink(link):
                    self._keep(link)

    def _resolved(self, value: str, directory: str) -> str:
        # git reads a value up to a NUL, which no path has.
        value = os.path.expanduser(value.partition("\0")[0])
        return os.path.realpath(os.path.join(directory, value))

    def _keep(self, target: str) -> None:
        inside = os.path.relpath(target, self._root)
        if inside != "." and inside.split("/")[0] != "..":
            self.paths.append(os.path.join(self._given_root, inside))


def text_of(path: str) -> str:
    """What a file says, or nothing: a command may have left a pipe there, and we do not wait."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8", errors="surrogateescape") as file:
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            return file.read(_LARGEST_CONFIG) if regular else ""
    except OSError:
        return ""
