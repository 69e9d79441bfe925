"""What git writes itself in a repository's own directory while people work: an allow list.

Everything else there (`config`, `hooks`, `info/attributes`, whatever a later version of git may
read) can say which programs git runs, and is none of a command's business. Pure.

`modules` and `worktrees` hold directories of the same kind, one for each submodule or worktree.
"""

from __future__ import annotations

import re

REBASES = ("rebase-merge", "rebase-apply")
"""The state of an unfinished rebase. git writes it, and its next `--continue` does what it says."""

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
"""Written when a worktree is made, and never afterwards: those that exist are kept as they are."""


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
    """In the directory of a submodule, whose name may have slashes, or of a worktree."""
    names = path.split("/")
    if len(names) == 1:
        return not path or in_worktree  # another submodule is another repository
    if in_worktree and len(names) == 2 and names[1] in _OF_A_WORKTREE:
        return True
    return any(git_writes("/".join(names[at:])) for at in range(1, len(names)))
