"""What `git submodule init` would write to a repository's configuration, without writing it.

A command may not change `.git/config`. git takes the same settings from elsewhere: what
`.gitmodules` declares is given to commands as configuration of their own, for this repository
alone, and `git submodule init` and `update --init` find nothing left to write.

What stands in `.gitmodules` may be a stranger's. A command could say all of it by itself, and git
trusts none of it more for coming from here.
"""

from __future__ import annotations

import os
import re

from callgate.core.text.git_settings import settings
from callgate.workspace.git.protected_repositories import text_of

MOST = 256
"""Submodules of one repository."""
_LONGEST = 1_000
_UPDATES = frozenset({"checkout", "rebase", "merge", "none"})
_UNFIT = re.compile(r'[\x00-\x1f"\\]')
"""What would need more than quotes around it: not worth the risk."""


def declared(repository: str) -> str:
    """As a git configuration; empty where `.gitmodules` declares nothing, or none can be read."""
    found: dict[str, dict[str, str]] = {}
    for section, name, key, value in settings(text_of(f"{repository}/.gitmodules")):
        if section == "submodule" and len(found) < MOST:
            found.setdefault(name, {})[key] = value
    remote = _remote(repository) if found else ""
    lines: list[str] = []
    for name, said in found.items():
        url = _resolved(said.get("url", ""), remote)
        if url is None or not _is_plain(name) or ".." in name.split("/") or not _is_plain(url):
            continue
        lines += [f'[submodule "{name}"]', f'\turl = "{url}"']
        if said.get("update") in _UPDATES:
            lines.append(f"\tupdate = {said['update']}")
    return "".join(f"{line}\n" for line in lines)


def repository_of(directory: str, root: str) -> str | None:
    """The directory at or above one, and in a root, that has a repository of its own."""
    at = os.path.realpath(directory)
    while at == root or at.startswith(root.rstrip("/") + "/"):
        if os.path.isdir(f"{at}/.git") and not os.path.islink(f"{at}/.git"):
            return at
        at = os.path.dirname(at)
    return None


def _is_plain(text: str) -> bool:
    return 0 < len(text) <= _LONGEST and _UNFIT.search(text) is None and not text.startswith("-")


def _remote(repository: str) -> str:
    """What a relative address is relative to: where the repository was cloned from, or itself."""
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
    """By git's rules for addresses that begin with a dot. None where they lead nowhere."""
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
