"""`search`: words in the files of the workspace and in the ingested documents."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from callgate.core.content import TextBlock
from callgate.core.errors import ToolError
from callgate.core.tools import ToolContext, ToolOutput
from callgate.tools.documents.extraction import keeps_lines
from callgate.tools.documents.index import Hit, Index, Origin, Passage, opened
from callgate.tools.documents.refreshing import refresh
from callgate.tools.documents.storing import catch_up, directory_of
from callgate.tools.search import local_files
from callgate.tools.shares import Documents
from callgate.workspace import refusals
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.paths import readable
from callgate.workspace.protected import is_protected

_WORDS: dict[str, tuple[Origin, ...]] = {
    "all": ("workspace", "documents"),
    "workspace": ("workspace",),
    "documents": ("documents",),
}
_MOST_JUDGED = 2_000


class _Found(NamedTuple):
    hits: list[tuple[Hit, Passage]]
    complete: bool
    read: int


async def search(input: dict[str, Any], context: ToolContext, documents: Documents) -> ToolOutput:
    files = local_files(context)
    origins, below = _scope(input.get("scope", "all"), files)
    directory = directory_of(documents, context.workspace_path)
    limit = input.get("limit", 10)

    def work() -> _Found:
        complete, read = True, 0
        with opened(directory) as index:
            if "documents" in origins:
                catch_up(index, directory, context.cancel_event.is_set)
            if "workspace" in origins:
                complete, read = refresh(
                    index, files, below, documents.table, context.cancel_event.is_set
                )
            return _Found(
                _shown(index, input["query"], origins, below, files, limit), complete, read
            )

    found = await asyncio.to_thread(work)
    text = "\n".join(_line(*each) for each in found.hits) or "Nothing has these words in it"
    if not found.complete:
        text += "\n[not all files are in the index yet; search again to go on]"
    return ToolOutput(
        content=[TextBlock(text)],
        value=[
            {"origin": hit.origin, "path": hit.path, "line": part.line, "snippet": part.snippet}
            for hit, part in found.hits
        ],
        metadata={"count": len(found.hits), "complete": found.complete, "read": found.read},
        truncated=not found.complete,
    )


def _scope(scope: str, files: WorkspaceFileAPI) -> tuple[tuple[Origin, ...], str]:
    """Which files are meant: where they come from, and below which directory."""
    if scope in _WORDS:
        return _WORDS[scope], ""
    place = files.locate(scope)
    if not place.exists:
        raise refusals.missing(scope)
    called = files.called(place)
    if called.startswith("/"):
        raise refusals.wrong_type(scope, "lies outside the workspace, which alone is searched")
    files.entries(scope)  # a directory, and one that may be read
    return ("workspace",), "" if called == "." else f"{called}/"


def _shown(
    index: Index,
    query: str,
    origins: tuple[Origin, ...],
    below: str,
    files: WorkspaceFileAPI,
    limit: int,
) -> list[tuple[Hit, Passage]]:
    """The best that may be shown: a rule may have changed since a file was read."""
    shown: list[tuple[Hit, Passage]] = []
    for judged, hit in enumerate(index.search(query, origins, below)):
        if len(shown) >= limit or judged >= _MOST_JUDGED:
            break
        if hit.origin == "documents" or _may_be_read(files, hit.path):
            part = index.passage(hit)
            shown.append((hit, part if keeps_lines(hit.path) else part._replace(line=None)))
    return shown


def _may_be_read(files: WorkspaceFileAPI, path: str) -> bool:
    try:
        return not is_protected(path) and files.judged(path, "read") is not None
    except ToolError:  # denied, or gone
        return False


def _line(hit: Hit, part: Passage) -> str:
    if hit.origin == "documents":
        return f"document:{readable(hit.path)}: {part.snippet}"
    at = "" if part.line is None else f":{part.line}"
    return f"{readable(hit.path)}{at}: {part.snippet}"
