"""The built-in search tools: find_files by name, search_text by content."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolCancelled, ToolExecutionError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.workspace.excerpts import show
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.paths import readable

if TYPE_CHECKING:
    from callgate.workspace.search import Match

T = TypeVar("T")

MOST_RESULTS = 10_000
"""Maximum results that are collected; results beyond the limit go into an artifact."""
_SHOWN_LINE = 400
_NAMED = 5

_PATH = {
    "type": "string",
    "minLength": 1,
    "default": ".",
    "description": "Directory to search, relative to the workspace; or a single file.",
}


class Aside:
    """Work in a thread that stops with its call."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._running = False

    async def run(self, context: ToolContext, work: Callable[[Callable[[], bool]], T]) -> T:
        """Do the work, which checks repeatedly whether to stop."""
        if context.cancel_event.is_set():
            raise ToolCancelled
        self._running = True
        try:
            return await asyncio.to_thread(
                work, lambda: self._stopped.is_set() or context.cancel_event.is_set()
            )
        finally:
            self._running = False
            self._stopped.set()

    def stop(self) -> bool:
        """Stop the work. Returns whether there was any."""
        self._stopped.set()
        return self._running


class FindFiles:
    definition = ToolDefinition(
        name="find_files",
        description=(
            "Find files by a glob pattern, such as *.py or src/**/test_*.ts. Files in"
            " .gitignore are skipped, unless the search starts in them."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "pattern": {
                    "type": "string",
                    "minLength": 1,
                    "description": (
                        "Glob: * ? [ab] {a,b}, and ** for any directories. Without a slash it"
                        " matches the file's name only."
                    ),
                },
                "path": _PATH,
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MOST_RESULTS,
                    "default": 1_000,
                },
            },
            "required": ["pattern"],
        },
        side_effects=SideEffects.READ,
        capabilities=frozenset({Capability.READ_ONLY}),
        path_params=("path",),
        kind="search",
        source="builtin",
    )

    def __init__(self) -> None:
        self._aside = Aside()

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        files, limit = local_files(context), input.get("limit", 1_000)

        def work(should_stop: Callable[[], bool]) -> ToolOutput:
            from callgate.workspace.search import find  # lazy: with the first search  # noqa: PLC0415

            found = find(
                files,
                input["pattern"],
                input.get("path", "."),
                MOST_RESULTS,
                should_stop=should_stop,
            )
            listed = show(
                [readable(path) for path in found.paths],
                limit,
                context.artifact,
                name="files.txt",
                complete=found.complete,
                unit="files",
            )
            return ToolOutput(
                content=[TextBlock(listed.text or "No file matches")],
                value=found.paths[:limit],
                metadata={"count": len(found.paths), "complete": found.complete},
                truncated=listed.truncated,
            )

        return await self._aside.run(context, work)

    async def cancel(self) -> bool:
        return self._aside.stop()


class SearchText:
    definition = ToolDefinition(
        name="search_text",
        description=(
            "Search the lines of text files for a regular expression (Python's). Files in"
            " .gitignore are skipped, unless the search starts in them."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "minLength": 1, "description": "What to look for."},
                "path": _PATH,
                "glob": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Search files that match, such as *.py or src/**/*.ts.",
                },
                "ignore_case": {"type": "boolean", "default": False},
                "context": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": 20,
                    "default": 0,
                    "description": "Lines to show before and after each match.",
                },
                "limit": {"type": "integer", "minimum": 1, "maximum": MOST_RESULTS, "default": 200},
            },
            "required": ["pattern"],
        },
        side_effects=SideEffects.READ,
        capabilities=frozenset({Capability.READ_ONLY}),
        path_params=("path",),
        kind="search",
        source="builtin",
    )

    def __init__(self) -> None:
        self._aside = Aside()

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        return await self._aside.run(
            context, partial(_search_text, local_files(context), input, context)
        )

    async def cancel(self) -> bool:
        return self._aside.stop()


def _search_text(
    files: WorkspaceFileAPI,
    input: dict[str, Any],
    context: ToolContext,
    should_stop: Callable[[], bool],
) -> ToolOutput:
    from callgate.workspace.search import MAX_FILE, search  # lazy: with the first search  # noqa: PLC0415

    limit = input.get("limit", 200)
    found = search(
        files,
        input["pattern"],
        input.get("path", "."),
        glob=input.get("glob"),
        ignore_case=input.get("ignore_case", False),
        context=input.get("context", 0),
        limit=MOST_RESULTS,
        should_stop=should_stop,
    )
    lines = list(_rendered(found.matches))
    wanted = len(list(_rendered(found.matches[:limit])))
    listed = show(lines, wanted, context.artifact, name="matches.txt", complete=found.complete)
    text = listed.text or "No line matches"
    if found.too_large:
        text += f"\n[not searched, larger than {MAX_FILE:,} bytes: {_some(found.too_large)}]"
    return ToolOutput(
        content=[TextBlock(text)],
        value=[
            {"path": match.path, "line": match.line, "text": match.text}
            for match in found.matches[:limit]
        ],
        metadata={
            "count": len(found.matches),
            "complete": found.complete,
            "files_searched": found.files_searched,
        },
        truncated=listed.truncated,
    )


def _rendered(matches: Sequence[Match]) -> Iterator[str]:
    """Yield `path:line:text` for a match, `path-line-text` for context, `--` for omissions."""
    lines: dict[tuple[str, int], tuple[str, str]] = {}
    for match in matches:
        around = enumerate([*match.before, match.text, *match.after], -len(match.before))
        for step, text in around:
            at = (match.path, match.line + step)
            if step == 0 or at not in lines:
                lines[at] = (":" if step == 0 else "-", text)
    has_context = any(mark == "-" for mark, _ in lines.values())
    before: tuple[str, int] | None = None
    for (path, line), (mark, text) in lines.items():
        if has_context and before is not None and before != (path, line - 1):
            yield "--"
        before = (path, line)
        cut = text if len(text) <= _SHOWN_LINE else text[:_SHOWN_LINE] + "…"
        yield f"{readable(path)}{mark}{line}{mark}{cut}"


def _some(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(map(readable, paths[:_NAMED])) + more


def local_files(context: ToolContext) -> WorkspaceFileAPI:
    """Return the workspace as a directory of this machine, which a search needs."""
    files = context.workspace_files
    if not isinstance(files, WorkspaceFileAPI):
        raise ToolExecutionError("This workspace cannot be searched", reason="not_local")
    return files
