"""`search`: words in the files of the workspace and in the ingested documents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from callgate import TextBlock, ToolContext, ToolOutput, WorkspaceFileAPI
from callgate.packs.files import local_files, readable, refusals
from callgate_catalogue.documents.dependencies import Documents
from callgate_catalogue.documents.extraction import keeps_lines
from callgate_catalogue.documents.index import Hit, Index, Origin, Passage, opened
from callgate_catalogue.documents.refreshing import refresh
from callgate_catalogue.documents.search_request import SearchRequest
from callgate_catalogue.documents.storing import catch_up, directory_of

if TYPE_CHECKING:
    from callgate_catalogue.documents.meaning import SemanticHits

_WORDS: dict[str, tuple[Origin, ...]] = {
    "all": ("workspace", "documents"),
    "workspace": ("workspace",),
    "documents": ("documents",),
}
_MOST_JUDGED = 2_000
_FUSED = 50
"""Of what words find and of what meaning finds, the first so many are put together, or more where
more are asked for."""
_RANK = 60
"""How little the first places count more than those after them; the usual number."""
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
    text = "\n".join(_line(*each) for each in words.hits) or "Nothing has these words in it"
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
    lines = lines or ["Nothing has these words in it, or means them"]
    if not words.complete:
        lines.append(_INCOMPLETE)
    if semantic.problem is not None:
        extent = "not everything" if semantic.hits or semantic.embedded else "nothing"
        lines.append(f"[{extent} was looked for by its meaning: {semantic.problem}]")
    elif semantic.left:
        lines.append("[not all passages can be found by their meaning yet; search again to go on]")
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
    """The best of both, by reciprocal ranks; what words found is shown with its words."""
    scores: dict[tuple[Origin, str], float] = {}
    for ranked in (words, semantic):
        for rank, (hit, _) in enumerate(ranked, 1):
            key = hit.origin, hit.path
            scores[key] = scores.get(key, 0.0) + 1 / (_RANK + rank)
    by_words = {(hit.origin, hit.path): (hit, part) for hit, part in words}
    by_meaning = {(hit.origin, hit.path): (hit, part) for hit, part in semantic}
    hits: list[tuple[Hit, Passage, FoundBy]] = []
    for key in sorted(scores, key=lambda each: -scores[each]):
        # To ask for vectors takes time, in which a rule may have come.
        if len(hits) < request.limit and request.may_show(*key):
            hit, part = by_words.get(key) or by_meaning[key]
            by: FoundBy = "meaning"
            if key in by_words:
                by = "both" if key in by_meaning else "words"
            hits.append((hit, _with_line(hit, part), by))
    return hits


def _scope(scope: str, files: WorkspaceFileAPI) -> tuple[tuple[Origin, ...], str]:
    """Which files are meant: where they come from, and below which directory."""
    if scope in _WORDS:
        return _WORDS[scope], ""
    located = files.locate(scope)
    if not located.exists:
        raise refusals.missing(scope)
    called = files.called(located)
    if called.startswith("/"):
        raise refusals.wrong_type(scope, "lies outside the workspace, which alone is searched")
    files.entries(scope)  # a directory, and one that may be read
    return ("workspace",), "" if called == "." else f"{called}/"


def _shown(index: Index, request: SearchRequest, most: int) -> list[Found]:
    """The best that may be shown."""
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
