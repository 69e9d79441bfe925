"""`file_put` and `file_get`: a table. Nobody is told of them.

Models that were taught these names call them; the others are not told of them, because write_file
and read_file do the same.
"""

from __future__ import annotations

from types import ModuleType

from callgate import Capability, SideEffects, ToolDefinition
from callgate.packs.tools import Row

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
        lambda: _put_get().put,
        lambda: _put_get().put_preview,
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
        lambda: _put_get().get,
    ),
)


def _put_get() -> ModuleType:
    from callgate_catalogue.documents import put_get  # lazy: with the first call  # noqa: PLC0415

    return put_get
