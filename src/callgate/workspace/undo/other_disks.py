"""Hard links to removed files of a workspace on another file system than the home.

    HOME/undo/open/NAME/links -> /mnt/data/.callgate-undo-UID/NAME

The directory is the first one from the mount point (not `/`) down to the parent of the workspace in
which the user may create it. If there is none, removed files are copied.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence

from callgate.core.local.preimage_store import LINKS
from callgate.workspace.paths import opening

NAME = ".callgate-undo-"


def prepare(directory: str, workspace: str, roots: Sequence[str]) -> None:
    """Create the directory for hard links of one command, if its workspace is on another file
    system than `directory`. The command may write to `roots`, so that it is in none of them."""
    try:
        device = os.stat(workspace).st_dev
        if device == os.stat(directory).st_dev:
            return
    except OSError:
        return
    for above in _outermost_first(os.path.realpath(workspace), device):
        ours = os.path.join(above, f"{NAME}{os.geteuid()}")
        if any(f"{ours}/".startswith(root.rstrip("/") + "/") for root in roots):
            continue
        links = os.path.join(ours, os.path.basename(directory))
        try:
            with opening():
                if not _is_private(ours):
                    continue
                os.mkdir(links, 0o700)
                os.symlink(links, os.path.join(directory, os.fsdecode(LINKS)))
        except OSError:
            continue
        return


def _outermost_first(workspace: str, device: int) -> list[str]:
    found: list[str] = []
    directory = workspace
    while (directory := os.path.dirname(directory)) != "/":
        try:
            if os.stat(directory).st_dev != device:
                break
        except OSError:
            break
        found.insert(0, directory)
    return found


def _is_private(path: str) -> bool:
    """Whether a directory is ours alone. Creates it."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    facts = os.lstat(path)
    is_ours = facts.st_uid == os.geteuid() and not facts.st_mode & 0o077
    return stat.S_ISDIR(facts.st_mode) and is_ours


def remove(directory: str) -> None:
    """Remove the directory of a command, with its hard links. Idempotent."""
    for links in directories(directory):
        shutil.rmtree(links, ignore_errors=True)
        if os.path.basename(os.path.dirname(links)).startswith(NAME):
            try:
                os.rmdir(os.path.dirname(links))
            except OSError:
                continue  # another command uses it


def directories(directory: str) -> Iterator[str]:
    """Yield the directories with the stored files of a command, its own directory last."""
    try:
        yield os.readlink(os.path.join(directory, os.fsdecode(LINKS)))
    except OSError:
        pass
    yield directory
