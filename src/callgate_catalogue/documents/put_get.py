"""`file_put` and `file_get`: files by the names and parameters that some models were taught.

    notes.md, server:notes.md      as write_file and read_file
    client:notes.md, editor:...    only in the editor of the session's client
    document:NAME                  a document that was ingested; for reading

The wall and the rules stand before all of them.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from callgate import Preview, TextBlock, ToolContext, ToolOutput, ToolValidationError
from callgate.packs.files import WriteFile, local_files, refusals, shown
from callgate.packs.tools import Environment
from callgate_catalogue.documents.dependencies import Documents
from callgate_catalogue.documents.storing import read_document

LARGEST = 5 * 1024 * 1024
"""Bytes that are written."""
USUAL_LENGTH = 100_000
_CLIENT = ("client", "editor")
_PREFIXES = (*_CLIENT, "server", "document")


async def put(input: dict[str, Any], context: ToolContext, documents: Documents) -> ToolOutput:
    where, path = _split(input["path"])
    content = _bytes(input)
    if where == "document":
        raise ToolValidationError("path: file_ingest is for documents.", reason="invalid_path")
    as_text = input.get("encoding", "utf8") == "utf8" and "permissions" not in input
    if where in _CLIENT and not as_text:
        raise ToolValidationError(
            "An editor takes text alone, and knows no permissions.", reason="invalid_path"
        )
    if where in _CLIENT and context.environment.writes_disk:
        raise _no_client(where)
    if as_text:
        return await WriteFile().execute({"path": path, "content": input["content"]}, context)
    files = local_files(context)
    mode = int(input["permissions"], 8) if "permissions" in input else None
    existed = files.exists(path)
    with files.wall.spot(path) as spot:
        files.replace(spot, path, content, mode=mode)
    done = "Replaced" if existed else "Created"
    return ToolOutput(
        content=[TextBlock(f"{done} {shown(path)} ({len(content):,} bytes)")],
        files_modified=[files.called(files.locate(path))],
        metadata={"created": not existed, "bytes": len(content)},
    )


async def put_preview(
    input: dict[str, Any], environment: Environment, documents: Documents
) -> Preview | str:
    """The change that allowing the call would make."""
    _, path = _split(input["path"])
    if input.get("encoding", "utf8") == "utf8":
        return await WriteFile().preview({"path": path, "content": input["content"]}, environment)
    return f"Write {len(_bytes(input)):,} bytes to {shown(path)}"


async def get(input: dict[str, Any], context: ToolContext, documents: Documents) -> ToolOutput:
    where, path = _split(input["path"])
    encoding, most = input.get("encoding", "utf8"), input.get("maxLength", USUAL_LENGTH)
    if where in _CLIENT and context.environment.reads_disk:
        raise _no_client(where)
    if where == "document":
        content = read_document(path, context, documents)
        text = _encoded(content, encoding, path)
    elif encoding == "base64":
        if where in _CLIENT:
            raise ToolValidationError("An editor gives text alone.", reason="invalid_path")
        text = _encoded(context.workspace_files.read_bytes(path), encoding, path)
    else:
        text = await context.environment.read_text(path)
    cut = text[:most]
    if encoding == "base64":
        cut = cut[: len(cut) // 4 * 4]  # so that it can be decoded all the same
    more = len(text) - len(cut)
    mark = f"\n[truncated: {more:,} more characters; maxLength says how many]" if more else ""
    return ToolOutput(
        content=[TextBlock(cut + mark)],
        value={
            "path": input["path"],
            "content": cut,
            "encoding": encoding,
            "length": len(text),
            "truncated": bool(more),
        },
        truncated=bool(more),
    )


def _split(path: str) -> tuple[str, str]:
    """Where a path counts, and the path. `./client:x` is a file with a colon in its name."""
    where, colon, name = path.partition(":")
    if not colon or where not in _PREFIXES:
        return "server", path
    if not name:
        raise ToolValidationError(f"path: {path!r} names no file.", reason="invalid_path")
    return where, name


def _bytes(input: dict[str, Any]) -> bytes:
    text = input["content"]
    if input.get("encoding", "utf8") == "utf8":
        content = text.encode()
    else:
        try:
            content = base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            raise ToolValidationError(
                "content: it is not Base64.", reason="invalid_content"
            ) from None
    if len(content) > LARGEST:
        raise ToolValidationError(
            f"content: {len(content):,} bytes; at most {LARGEST:,} are written.",
            reason="too_large",
        )
    return bytes(content)


def _encoded(content: bytes, encoding: str, path: str) -> str:
    if encoding == "base64":
        return base64.b64encode(content).decode()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise refusals.not_text(path) from None


def _no_client(where: str) -> ToolValidationError:
    return ToolValidationError(
        f"path: no client of this session offers its files, so {where}: leads nowhere; leave it"
        " out for a file of the workspace.",
        reason="no_client",
    )
