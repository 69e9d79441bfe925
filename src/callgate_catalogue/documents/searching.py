"""`search`: find words in the files of the workspace and in ingested documents."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from callgate import TextBlock, ToolCancelled, ToolContext, ToolError, ToolOutput, WorkspaceFileAPI
from callgate.packs.files import READ, File, Tree, is_protected, local_files, readable, refusals
from callgate_catalogue.documents.index import (
    Hit,
    Index,
    Known,
    Origin,
    Passage,
    is_pdf,
    is_worth_reading,
    keeps_lines,
    opened,
    text_of,
)
from callgate_catalogue.documents.storing import catch_up, directory_of
from callgate_catalogue.settings import Documents, DocumentsTable

if TYPE_CHECKING:
    from callgate_catalogue.documents.meaning import SemanticHits

_AT_ONCE = 500
"""Files in one transaction, so other writers get a turn in between."""
_PDF = 10
"""Factor by which a PDF may exceed the size limit of other files."""


class Refreshed(NamedTuple):
    complete: bool
    """False if the time or the number of files exceeded the limit."""
    read: int
    """Number of files that were read."""


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
    """Update the index. `below` is a directory of the workspace with a trailing slash, or empty."""
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
    """Read a file if it changed; None if not. A file that is too large is recorded without text."""
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
    """Read a file relative to the walked directory, without following links. `Tree` checked it."""
    fd = files.wall.opener.step(file.dir_fd, file.name, READ)
    with os.fdopen(fd, "rb") as opened:
        return opened.read(most + 1)[:most]


class SearchRequest(NamedTuple):
    query: str
    origins: tuple[Origin, ...]
    below: str
    """A directory of the workspace with a trailing slash, or empty."""
    limit: int
    files: WorkspaceFileAPI
    directory: str
    """Directory of the index."""
    should_stop: Callable[[], bool]

    def may_show(self, origin: Origin, path: str) -> bool:
        """Return whether a file may be shown now: a rule may be newer than the index entry."""
        if origin == "documents":
            return True
        try:
            return not is_protected(path) and self.files.judged(path, "read") is not None
        except ToolError:  # denied or deleted
            return False


_WORDS: dict[str, tuple[Origin, ...]] = {
    "all": ("workspace", "documents"),
    "workspace": ("workspace",),
    "documents": ("documents",),
}
_MOST_JUDGED = 2_000
_FUSED = 50
"""Minimum number of hits by words and by meaning that are merged, or the limit of the request."""
_RANK = 60
"""Constant of reciprocal rank fusion, with its usual value: higher values flatten the ranks."""
_INCOMPLETE = "[not all files are in the index yet; search again to go on]"
Found = tuple[Hit, Passage]
FoundBy = Literal["words", "meaning", "both"]
_BY: dict[FoundBy, str] = {"words": "", "meaning": " [by its meaning]", "both": ""}


class _Words(NamedTuple):
    hits: list[Found]
    complete: bool
    read: int


async def search(input: dict[str, Any], context: ToolContext, documents: Documents) -> ToolOutput:
    files = local_files(context)
    origins, below = _scope(input.get("scope", "all"), files)
    request = SearchRequest(
        query=input["query"],
        origins=origins,
        below=below,
        limit=input.get("limit", 10),
        files=files,
        directory=directory_of(documents, context.workspace_path),
        should_stop=context.cancel_event.is_set,
    )
    if documents.open_embedder is None:
        return _words_output(await asyncio.to_thread(_by_words, request, documents, request.limit))
    most = max(request.limit, _FUSED)
    words = await asyncio.to_thread(_by_words, request, documents, most)
    from callgate_catalogue.documents.meaning import find  # lazy: heavy, only with embeddings  # noqa: PLC0415

    semantic = await find(request, documents, context, most)
    return _merged_output(words, semantic, request)


def _by_words(request: SearchRequest, documents: Documents, most: int) -> _Words:
    complete, read = True, 0
    with opened(request.directory) as index:
        if "documents" in request.origins:
            catch_up(index, request.directory, request.should_stop)
        if "workspace" in request.origins:
            complete, read = refresh(
                index, request.files, request.below, documents.table, request.should_stop
            )
        return _Words(_shown(index, request, most), complete, read)


def _words_output(words: _Words) -> ToolOutput:
    text = "\n".join(_line(*each) for each in words.hits) or "No document contains these words"
    if not words.complete:
        text += f"\n{_INCOMPLETE}"
    return ToolOutput(
        content=[TextBlock(text)],
        value=[_row(*each) for each in words.hits],
        metadata={"count": len(words.hits), "complete": words.complete, "read": words.read},
        truncated=not words.complete,
    )


def _merged_output(words: _Words, semantic: SemanticHits, request: SearchRequest) -> ToolOutput:
    hits = fused(words.hits, semantic.hits, request)
    lines = [_line(hit, part) + _BY[by] for hit, part, by in hits]
    lines = lines or ["No document contains these words or their meaning"]
    if not words.complete:
        lines.append(_INCOMPLETE)
    if semantic.problem is not None:
        extent = "incomplete" if semantic.hits or semantic.embedded else "not available"
        lines.append(f"[semantic search is {extent}: {semantic.problem}]")
    elif semantic.left:
        lines.append("[semantic search does not cover all passages yet; search again to continue]")
    elif semantic.full:
        lines.append("[there are more passages than max_passages: not all are found by meaning]")
    return ToolOutput(
        content=[TextBlock("\n".join(lines))],
        value=[{**_row(hit, part), "found_by": by} for hit, part, by in hits],
        metadata={
            "count": len(hits),
            "complete": words.complete,
            "read": words.read,
            "embedded": semantic.embedded,
            "all_embedded": not (semantic.left or semantic.full or semantic.problem),
        },
        truncated=not words.complete or semantic.left,
    )


def fused(
    words: Sequence[Found], semantic: Sequence[Found], request: SearchRequest
) -> list[tuple[Hit, Passage, FoundBy]]:
    """Merge both rankings by reciprocal ranks. A hit of both shows the passage with its words."""
    scores: dict[tuple[Origin, str], float] = {}
    for ranked in (words, semantic):
        for rank, (hit, _) in enumerate(ranked, 1):
            key = hit.origin, hit.path
            scores[key] = scores.get(key, 0.0) + 1 / (_RANK + rank)
    by_words = {(hit.origin, hit.path): (hit, part) for hit, part in words}
    by_meaning = {(hit.origin, hit.path): (hit, part) for hit, part in semantic}
    hits: list[tuple[Hit, Passage, FoundBy]] = []
    for key in sorted(scores, key=lambda each: -scores[each]):
        # A rule may have changed during the request for vectors.
        if len(hits) < request.limit and request.may_show(*key):
            hit, part = by_words.get(key) or by_meaning[key]
            by: FoundBy = "meaning"
            if key in by_words:
                by = "both" if key in by_meaning else "words"
            hits.append((hit, _with_line(hit, part), by))
    return hits


def _scope(scope: str, files: WorkspaceFileAPI) -> tuple[tuple[Origin, ...], str]:
    """Return the origins of a scope and its directory."""
    if scope in _WORDS:
        return _WORDS[scope], ""
    located = files.locate(scope)
    if not located.exists:
        raise refusals.missing(scope)
    called = files.called(located)
    if called.startswith("/"):
        raise refusals.wrong_type(scope, "is outside the workspace; only the workspace is searched")
    files.entries(scope)  # raises unless it is a readable directory
    return ("workspace",), "" if called == "." else f"{called}/"


def _shown(index: Index, request: SearchRequest, most: int) -> list[Found]:
    """Return the best visible hits."""
    shown: list[Found] = []
    for judged, hit in enumerate(index.search(request.query, request.origins, request.below)):
        if len(shown) >= most or judged >= _MOST_JUDGED:
            break
        if request.may_show(hit.origin, hit.path):
            shown.append((hit, _with_line(hit, index.passage(hit))))
    return shown


def _with_line(hit: Hit, part: Passage) -> Passage:
    return part if keeps_lines(hit.path) else part._replace(line=None)


def _row(hit: Hit, part: Passage) -> dict[str, Any]:
    return {"origin": hit.origin, "path": hit.path, "line": part.line, "snippet": part.snippet}


def _line(hit: Hit, part: Passage) -> str:
    if hit.origin == "documents":
        return f"document:{readable(hit.path)}: {part.snippet}"
    at = "" if part.line is None else f":{part.line}"
    return f"{readable(hit.path)}{at}: {part.snippet}"
