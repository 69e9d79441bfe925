"""Bring an index up to date with the files of a workspace: what is new or changed is read."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from callgate import ToolCancelled, ToolError, WorkspaceFileAPI
from callgate.packs.files import READ, File, Tree, is_protected
from callgate.packs.settings import DocumentsTable
from callgate_catalogue.documents.extraction import is_pdf, is_worth_reading, text_of
from callgate_catalogue.documents.index import Index, Known

_AT_ONCE = 500
"""Files in one transaction: others can write in between."""
_PDF = 10
"""A PDF may be so many times larger than other files."""


class Refreshed(NamedTuple):
    complete: bool
    """False if time was up, or there is too much."""
    read: int
    """Files that were read."""


class _Changed(NamedTuple):
    path: str
    status: os.stat_result
    read_ns: int
    sha256: bytes
    text: str | None
    known: Known | None


def refresh(
    index: Index,
    files: WorkspaceFileAPI,
    below: str,
    table: DocumentsTable,
    should_stop: Callable[[], bool],
) -> Refreshed:
    """`below` is a directory of the workspace with a slash behind it, or nothing."""
    deadline = time.monotonic() + table.refresh_s
    known = index.known("workspace", below)
    tree = Tree(files, below or ".", should_stop=should_stop)
    seen: set[str] = set()
    changed: list[_Changed] = []
    complete, read = True, 0
    for file in tree:
        if len(seen) >= table.max_files or time.monotonic() > deadline:
            complete = False
            break
        if os.path.isabs(file.path) or is_protected(file.path):
            continue
        if not is_worth_reading(os.path.basename(file.path)):
            continue
        found = _look(file, files, known.get(file.path), table, should_stop)
        seen.add(file.path)
        if found is None:
            continue
        read += 1
        changed.append(found)
        if len(changed) >= _AT_ONCE:
            _save(index, changed)
            changed = []
    _save(index, changed)
    if complete and tree.complete:
        deleted = known.keys() - seen
        if deleted:
            with index.changing():
                for path in deleted:
                    index.drop("workspace", path)
    return Refreshed(complete and tree.complete, read)


def _save(index: Index, changed: list[_Changed]) -> None:
    if not changed:
        return
    with index.changing():
        for each in changed:
            if each.known is not None and each.known.sha256 == each.sha256:
                index.touch(each.known, each.status, each.read_ns)
            else:
                index.put("workspace", each.path, each.status, each.read_ns, each.sha256, each.text)


def _look(
    file: File,
    files: WorkspaceFileAPI,
    known: Known | None,
    table: DocumentsTable,
    should_stop: Callable[[], bool],
) -> _Changed | None:
    """What a file says, if it is not what it was. One too large is known by nothing but that."""
    if should_stop():
        raise ToolCancelled
    try:
        status = os.stat(file.name, dir_fd=file.dir_fd, follow_symlinks=False)
        if known is not None and known.is_current(status):
            return None
        read_ns = time.time_ns()
        most = table.max_bytes * (_PDF if is_pdf(file.path) else 1)
        content = b"" if status.st_size > most else _content(file, files, most)
    except OSError:
        return None
    sha256 = hashlib.sha256(content).digest()
    if known is not None and known.sha256 == sha256:
        return _Changed(file.path, status, read_ns, sha256, None, known)
    try:
        text = text_of(file.path, content, should_stop=should_stop) if content else None
    except ToolCancelled:
        raise
    except ToolError:
        text = None
    return _Changed(file.path, status, read_ns, sha256, text, known)


def _content(file: File, files: WorkspaceFileAPI, most: int) -> bytes:
    """Opened where the walk stands, without following a link; `Tree` had it judged."""
    fd = files.wall.opener.step(file.dir_fd, file.name, READ)
    with os.fdopen(fd, "rb") as opened:
        return opened.read(most + 1)[:most]
