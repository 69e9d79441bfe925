"""Table of the document tools, and of file tools under names that some models were trained on."""

from __future__ import annotations

from functools import partial
from types import ModuleType

from callgate import Capability, SideEffects, ToolDefinition
from callgate.packs.tools import Pack, PackContext, PackTool, Row, factories
from callgate_catalogue.settings import Documents, DocumentsTable

_NAME = {
    "type": "string",
    "minLength": 1,
    "maxLength": 200,
    "description": "Name of the document; replaces an existing one.",
}
_MIME = {"type": "string", "minLength": 3, "maxLength": 100}

CATALOGUE: tuple[Row, ...] = (
    Row(
        ToolDefinition(
            name="search",
            description=(
                "Search the files of the workspace and the ingested documents for words; best hits"
                " first, each with its passage. For exact texts and"
                " regular expressions use search_text."
            ),
            input_schema={
                "type": "object",
                "properties": {
                    "query": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": 400,
                        "description": 'Words; "a phrase"; begin* for words with this beginning.',
                    },
                    "scope": {
                        "type": "string",
                        "minLength": 1,
                        "default": "all",
                        "description": (
                            "all, workspace, documents (the ingested ones), or a directory of the"
                            " workspace such as ./docs."
                        ),
                    },
                    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 10},
                },
                "required": ["query"],
            },
            side_effects=SideEffects.READ,
            capabilities=frozenset({Capability.READ_ONLY}),
            path_params=(),  # a scope is not always a path; if it is, the boundary checks it
            kind="search",
            source="builtin",
        ),
        lambda: _searching().search,
    ),
    Row(
        ToolDefinition(
            name="file_ingest",
            description="Store a text as a document that `search` finds.",
            input_schema={
                "type": "object",
                "properties": {
                    "content": {"type": "string", "minLength": 1},
                    "filename": _NAME,
                    "mimeType": _MIME,
                },
                "required": ["content", "filename"],
            },
            side_effects=SideEffects.WRITE,
            capabilities=frozenset({Capability.WRITES_FILES}),
            path_params=(),
            kind="other",
            source="builtin",
        ),
        lambda: _storing().ingest,
    ),
    Row(
        ToolDefinition(
            name="file_upload",
            description=(
                "Keep a copy of a file as a document that `search` finds, if there is text in it:"
                " a file of the workspace, or bytes in Base64."
            ),
            input_schema={
                "type": "object",
                "properties": {
                    "path": {
                        "type": "string",
                        "minLength": 1,
                        "description": "A file of the workspace.",
                    },
                    "content": {
                        "type": "string",
                        "minLength": 1,
                        "description": "Base64, instead of path.",
                    },
                    "filename": _NAME,
                    "mimeType": _MIME,
                },
            },
            side_effects=SideEffects.WRITE,
            capabilities=frozenset({Capability.WRITES_FILES}),
            path_params=("path",),
            kind="other",
            source="builtin",
        ),
        lambda: _storing().upload,
    ),
)

_PATH = {
    "type": "string",
    "minLength": 1,
    "description": "In the workspace; client: or editor: before it means the user's editor.",
}
_ENCODING = {"type": "string", "enum": ["utf8", "base64"], "default": "utf8"}

FILES: tuple[Row, ...] = (
    Row(
        ToolDefinition(
            name="file_put",
            description="Create a file or replace its whole content.",
            input_schema={
                "type": "object",
                "properties": {
                    "path": _PATH,
                    "content": {"type": "string"},
                    "encoding": _ENCODING,
                    "mimeType": {"type": "string", "maxLength": 100},
                    "permissions": {
                        "type": "string",
                        "pattern": "^0?[0-7]{3}$",
                        "description": "Octal, such as 644.",
                    },
                    "summary": {"type": "string", "maxLength": 2_000},
                },
                "required": ["path", "content"],
            },
            side_effects=SideEffects.WRITE,
            capabilities=frozenset({Capability.WRITES_FILES}),
            path_params=("path",),
            argument_aliases={"filename": "path"},
            kind="edit",
            source="builtin",
        ),
        lambda: _storing().put,
        lambda: _storing().put_preview,
    ),
    Row(
        ToolDefinition(
            name="file_get",
            description="Read a file of the workspace, or an ingested document (document:NAME).",
            input_schema={
                "type": "object",
                "properties": {
                    "path": _PATH,
                    "encoding": _ENCODING,
                    "maxLength": {"type": "integer", "minimum": 1, "maximum": 5_000_000},
                },
                "required": ["path"],
            },
            side_effects=SideEffects.READ,
            capabilities=frozenset({Capability.READ_ONLY}),
            path_params=("path",),
            argument_aliases={"filename": "path"},
            kind="read",
            source="builtin",
        ),
        lambda: _storing().get,
    ),
)
"""Hidden tools: write_file and read_file do the same."""


def _searching() -> ModuleType:
    from callgate_catalogue.documents import searching  # lazy: with the first call  # noqa: PLC0415

    return searching


def _storing() -> ModuleType:
    from callgate_catalogue.documents import storing  # lazy: with the first call  # noqa: PLC0415

    return storing


def pack(context: PackContext) -> Pack:
    table: DocumentsTable = context.settings
    embeddings = table.embeddings
    open_embedder = None if embeddings is None else partial(context.open_embedder, embeddings)
    documents = Documents(context.home, table, open_embedder)
    tools = [PackTool(factory=each) for each in factories(CATALOGUE, documents)]
    files = [PackTool(factory=each, listed=False) for each in factories(FILES, documents)]
    return Pack(tools=[*tools, *files])
