"""Paths in a workspace that a command must not change, with parts of git repositories.

File tools are checked name by name, at any depth (`protected`). A sandbox needs the paths in
advance, so they are searched: in the directories next to the root, except those with third-party
code. Version control must still work, so of a repository only the parts that make it run programs
are included.

Callgate's own directory is always included, even if it does not exist: no program may create it.
Private directories of MCP servers in callgate's home are skipped: the server controls their links.

Protected files of git repositories: a command must not choose programs that git runs later.

Inside a repository's own directory only the files that git writes during normal work are writable
(an allow list). Contents are not examined. With some of the other files a command could choose the
programs of the user's next `git status`.

    .git/config, hooks ...           existing entries that are not on the allow list
    _READ                            files that git would read, also where they are missing
    .git/worktrees/*/                the same files of other worktrees
    .git/modules/**/                 repositories of submodules
    include.path, core.hooksPath     files in the workspace that the configuration names; also the
                                     user's configuration
    core.worktree                    a submodule's files: its `.git` there, at any depth

A command may not change `.git/config`, so `git submodule init` cannot write its settings. The
declarations of `.gitmodules` are passed to commands as their git configuration instead, for this
repository alone. They may be untrusted; a command could set all of them itself, and git does not
trust them more in this form.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Iterator

from callgate.core.local.git_settings import settings
from callgate.workspace.protected import ALLOWED, EXEMPT, runs_here

REBASES = ("rebase-merge", "rebase-apply")
"""State of an unfinished rebase. git writes it, and its next `--continue` executes it."""

_DIRECTORIES = frozenset(
    {*REBASES, "objects", "refs", "reftable", "logs", "sequencer", "rr-cache", "lfs", "annex"}
)
_FILE = re.compile(
    r"(?:HEAD|[A-Z][A-Z_]*_HEAD|MERGE_[A-Z]+|BISECT_[A-Z_]+|NOTES_MERGE_[A-Z_]+|AUTO_MERGE"
    r"|SQUASH_MSG|[A-Z_]*EDITMSG|GITGUI_(?:MSG|BCK)|EDIT_DESCRIPTION|BRANCH_DESCRIPTION"
    r"|index(?:\.[\w.-]+)?|sharedindex\.[\w]+|next-index-\d+|packed-refs(?:\.new)?"
    r"|shallow(?:_\w+)?|gc\.(?:pid|log)|ADD_EDIT\.patch|addp-hunk-edit\.diff|description)"
    r"(?:\.lock)?"
)
_INFO = frozenset({"exclude", "refs", "sparse-checkout"})
_OF_A_WORKTREE = frozenset({"gitdir", "commondir", "locked"})
"""Files that git writes only when it creates a worktree: existing ones are protected."""


def git_writes(path: str) -> bool:
    """Whether git itself creates or changes this path, relative to a repository's directory."""
    top, _, below = path.partition("/")
    if top in ("modules", "worktrees"):
        return _in_another(below, in_worktree=top == "worktrees")
    if top == "info":
        return not below or re.sub(r"(\.lock|_\w{6})$", "", below) in _INFO
    if top in _DIRECTORIES:
        return True
    return not below and _FILE.fullmatch(top) is not None


def _in_another(path: str, *, in_worktree: bool) -> bool:
    """Whether a path is in the directory of a submodule, whose name may have slashes, or of a
    worktree."""
    names = path.split("/")
    if len(names) == 1:
        return not path or in_worktree  # another submodule is another repository
    if in_worktree and len(names) == 2 and names[1] in _OF_A_WORKTREE:
        return True
    return any(git_writes("/".join(names[at:])) for at in range(1, len(names)))


MOST_MODULES = 64
"""Maximum submodules of a repository; with more, commands can change none of them."""

OTHERS = {
    ".hg": ("hgrc", "hgrc-not-shared", "requires", "sharedpath"),
    ".jj": ("repo/config.toml", "workspace-config.toml"),
    ".bzr": ("branch/branch.conf",),
    ".svn": (),
}
_ONLY_IF_THERE = frozenset({"requires", "sharedpath"})
"""In other repositories an empty file means the same as a missing one."""
_READ = ("hooks", "config", "config.worktree", "commondir")
"""Files that make git run programs. A command cannot create them either."""
_OF_THE_USER = ("~/.gitconfig", "~/.config/git/config")
"""Their relative `core.hooksPath` is a directory of each repository."""
_SIGNS = ("HEAD", "config", "hooks", "objects", "refs")
_BARE = frozenset({"HEAD", "objects", "refs"})
_DEEPEST_MODULE = 6
_DEEPEST_INCLUDE = 10
_LARGEST_CONFIG = 1 << 20


def is_bare(directory: str, names: set[str]) -> bool:
    """Whether a directory with these entries is a repository itself, or was one. A command can move
    a part of a repository away and back later, but not its configuration."""
    if names >= _BARE:
        return True
    return "config" in names and "repositoryformatversion" in text_of(
        os.path.join(directory, "config")
    )


def named_by(file: str) -> str | None:
    """Return the repository's own directory that a `.git` file names."""
    kind, _, path = text_of(file).partition(":")
    path = path.partition("\0")[0].strip()
    if kind != "gitdir" or not path:
        return None
    return os.path.realpath(os.path.join(os.path.dirname(file), path))


def of_git(directory: str, root: str) -> Iterator[str]:
    """Yield the protected paths of a repository's own directory. It may be incomplete, so that
    removing one file does not end the protection. `root` is the workspace."""
    if not any(os.path.lexists(os.path.join(directory, sign)) for sign in _SIGNS):
        return  # not a repository yet: `git init` must be able to create it
    yield from _git_entries(directory, _READ)
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
        yield from _git_entries(worktree, ("config.worktree", "commondir"))
    yield from configured.paths
    modules = os.path.join(directory, "modules")
    found = list(_modules(modules, _DEEPEST_MODULE))
    if len(found) > MOST_MODULES:
        yield modules
        return
    for module in found:
        yield from of_git(module, root)


def _git_entries(directory: str, always: tuple[str, ...]) -> Iterator[str]:
    """Yield existing entries that git does not write, and entries that must not be created. A bare
    repository may share its directory with unrelated files."""
    yield from (os.path.join(directory, name) for name in always)
    if ".git" not in directory.split("/"):
        return
    for prefix in ("", "info/"):
        for name in _names(os.path.join(directory, prefix)):
            known = name in ("modules", "worktrees", "info") or name in always
            if not known and not git_writes(prefix + name):
                yield os.path.join(directory, prefix + name)


def of_other(directory: str, kind: str) -> Iterator[str]:
    """Yield the protected paths of a repository of another system."""
    for name in OTHERS[kind]:
        path = os.path.join(directory, name)
        there = path if name in _ONLY_IF_THERE else os.path.dirname(path)
        if os.path.lexists(there):
            yield path


def _modules(directory: str, depth: int) -> Iterator[str]:
    """Yield submodules, whose names may have slashes. Their contents are checked with the
    submodule."""
    for path in _directories(directory):
        if os.path.lexists(os.path.join(path, "HEAD")) or os.path.lexists(
            os.path.join(path, "config")
        ):
            yield path
        elif depth > 1:
            yield from _modules(path, depth - 1)


def _names(directory: str) -> list[str]:
    """List all names except links, which cannot be protected against replacement."""
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
    """Paths in configuration files, and in the files that they include."""

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
        # git reads a value up to a NUL, which no path contains.
        value = os.path.expanduser(value.partition("\0")[0])
        return os.path.realpath(os.path.join(directory, value))

    def _keep(self, target: str) -> None:
        inside = os.path.relpath(target, self._root)
        if inside != "." and inside.split("/")[0] != "..":
            self.paths.append(os.path.join(self._given_root, inside))


def text_of(path: str) -> str:
    """Return the text of a regular file; empty if it is another kind of file or unreadable. Never
    blocks, although a command may have left a pipe there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8", errors="surrogateescape") as file:
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            return file.read(_LARGEST_CONFIG) if regular else ""
    except OSError:
        return ""


MOST = 256
"""Maximum submodules of one repository."""
_LONGEST = 1_000
_UPDATES = frozenset({"checkout", "rebase", "merge", "none"})
_UNFIT = re.compile(r'[\x00-\x1f"\\]')
"""Characters that would need more than quotes; such values are omitted."""


def declared(repository: str) -> str:
    """Return the declared submodules as git configuration; empty if there are none, or
    `.gitmodules` is unreadable."""
    found: dict[str, dict[str, str]] = {}
    for section, name, key, value in settings(text_of(f"{repository}/.gitmodules")):
        if section == "submodule" and len(found) < MOST:
            found.setdefault(name, {})[key] = value
    remote = _remote(repository) if found else ""
    lines: list[str] = []
    for name, values in found.items():
        url = _resolved(values.get("url", ""), remote)
        if url is None or not _is_plain(name) or ".." in name.split("/") or not _is_plain(url):
            continue
        lines += [f'[submodule "{name}"]', f'\turl = "{url}"']
        if values.get("update") in _UPDATES:
            lines.append(f"\tupdate = {values['update']}")
    return "".join(f"{line}\n" for line in lines)


def repository_of(directory: str, root: str) -> str | None:
    """Return the nearest directory with a repository, at or above this one and inside a root."""
    at = os.path.realpath(directory)
    while at == root or at.startswith(root.rstrip("/") + "/"):
        if os.path.isdir(f"{at}/.git") and not os.path.islink(f"{at}/.git"):
            return at
        at = os.path.dirname(at)
    return None


def _is_plain(text: str) -> bool:
    return 0 < len(text) <= _LONGEST and _UNFIT.search(text) is None and not text.startswith("-")


def _remote(repository: str) -> str:
    """Return the base of a relative address: the URL the repository was cloned from, or itself."""
    remotes, upstreams = dict[str, str](), dict[str, str]()
    for section, name, key, value in settings(text_of(f"{repository}/.git/config")):
        if (section, key) == ("remote", "url"):
            remotes.setdefault(name, value)
        elif (section, key) == ("branch", "remote"):
            upstreams[name] = value
    head = text_of(f"{repository}/.git/HEAD").strip()
    usual = next(iter(remotes)) if len(remotes) == 1 else "origin"
    return remotes.get(upstreams.get(head.removeprefix("ref: refs/heads/"), usual), repository)


def _resolved(url: str, remote: str) -> str | None:
    """Resolve an address by git's rules for a leading dot. None if it leads nowhere."""
    if not url.startswith(("./", "../")):
        return url or None
    if not remote.startswith("/") and ":" not in remote:
        return None  # a relative path itself: relative to where git happens to run
    base, between = remote.rstrip("/"), "/"
    while url.startswith(("./", "../")):
        if url.startswith("./"):
            url = url[2:]
            continue
        url = url[3:]
        base, separator, _ = base.rpartition("/") if "/" in base else base.rpartition(":")
        between = separator or between
        if not base and between != "/":
            return None
    return f"{base}{between}{url}".rstrip("/")


DEPTH = 6
"""Maximum levels of directories to search, including the root."""
MOST_DIRECTORIES = 2_000
MOST_LINKS = 2_000
"""Maximum names in one protected directory that are checked for links."""

_OURS = ".callgate"


def protected_places(root: str, private: str | None = None) -> tuple[str, ...]:
    """Return absolute paths below a root, sorted. A protected link is replaced by its target, if
    that is below the root, because a link itself cannot be protected; links of repositories and
    of callgate remain. A `private` directory in the root is skipped."""
    if private is not None:
        inside = os.path.relpath(os.path.realpath(private), os.path.realpath(root))
        private = os.path.join(root, inside)
    found = {os.path.join(root, _OURS, "settings.toml"), *_found(root, private)}
    if os.path.join(root, _OURS) in found:
        found.discard(os.path.join(root, _OURS, "settings.toml"))
    return tuple(sorted(found))


def _found(root: str, private: str | None) -> Iterator[str]:
    waiting = deque([("", 1)])
    looked_at = 0
    while waiting and looked_at < MOST_DIRECTORIES:
        directory, level = waiting.popleft()
        looked_at += 1
        entries = _entries(os.path.join(root, directory))
        here = os.path.join(root, directory)
        if is_bare(here, {entry.name for entry in entries}):
            yield from of_git(here, root)
        for entry in entries:
            if entry.path == private:
                continue
            inside = os.path.join(directory, entry.name)
            is_directory = entry.is_dir(follow_symlinks=False)
            if entry.name == ".git" and is_directory:
                yield from of_git(entry.path, root)
            elif entry.name in OTHERS and is_directory:
                yield from of_other(entry.path, entry.name)
            elif entry.name == ".git" and entry.is_file(follow_symlinks=False):
                yield entry.path
                yield from _elsewhere(entry.path, root)
            elif is_directory and (missing := _allowed_in(entry)):
                yield from _around(entry.path, missing)
            elif runs_here(inside):
                if not entry.is_symlink() or entry.name in (".git", _OURS):
                    yield entry.path
                yield from _targets(entry, root, private)
            elif is_directory and level < DEPTH and entry.name not in EXEMPT:
                waiting.append((inside, level + 1))


def _allowed_in(entry: os.DirEntry[str]) -> set[str]:
    """Return files that may be created in a protected directory, and do not exist yet."""
    names = {
        file for name, _, file in (path.partition("/") for path in ALLOWED) if name == entry.name
    }
    return {name for name in names if not os.path.lexists(os.path.join(entry.path, name))}


def _around(directory: str, missing: set[str]) -> Iterator[str]:
    """Yield the content of a directory, but not the directory: files may be created in it. Each
    creation is checked separately (`sandbox/processes/creations`)."""
    for entry in _entries(directory):
        if entry.name not in missing and not entry.is_symlink():
            yield entry.path


def _targets(entry: os.DirEntry[str], root: str, private: str | None) -> Iterator[str]:
    """Yield the target of a protected link, and the links in a protected directory."""
    waiting, looked_at = [entry], 0
    real = os.path.realpath(root)
    while waiting and looked_at < MOST_LINKS:
        each = waiting.pop()
        looked_at += 1
        if each.is_dir(follow_symlinks=False):
            waiting += (below for below in _entries(each.path) if below.path != private)
        elif each.is_symlink() and each.name not in (".git", _OURS):
            target = os.path.realpath(each.path)
            if target.startswith(real.rstrip("/") + "/") and os.path.exists(target):
                yield os.path.join(root, os.path.relpath(target, real))


def _elsewhere(file: str, root: str) -> Iterator[str]:
    """Yield the paths of the repository that a `.git` file names, at any depth in the workspace."""
    named = named_by(file)
    real = os.path.realpath(root)
    if named is not None and named.startswith(real.rstrip("/") + "/"):
        yield from of_git(os.path.join(root, os.path.relpath(named, real)), root)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:  # unreadable for us, or gone: a command could not change it either
        return []
