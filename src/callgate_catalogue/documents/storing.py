"""Tools that store files: `file_ingest` and `file_upload` outside the workspace, `file_put` in it.

Some models were trained on the names and parameters of `file_put` and `file_get`:

    notes.md, server:notes.md      as write_file and read_file
    client:notes.md, editor:...    only in the editor of the session's client
    document:NAME                  an ingested document, read-only

The workspace boundary and the rules apply to both.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from typing import Any

from callgate import (
    Preview,
    TextBlock,
    ToolContext,
    ToolExecutionError,
    ToolOutput,
    ToolValidationError,
)
from callgate.packs.files import (
    WriteFile,
    local_files,
    make_private_directory,
    refusals,
    shown,
    sync_directory,
    sync_file,
)
from callgate.packs.tools import Environment
from callgate_catalogue.documents.index import Index, opened, text_of
from callgate_catalogue.settings import Documents, directory_name

LARGEST = 20 * 1024 * 1024


def directory_of(documents: Documents, workspace: str) -> str:
    return os.path.join(documents.home, "documents", directory_name(workspace))


def _path(documents: Documents, workspace: str, name: str) -> str:
    """Return the path of a document."""
    return os.path.join(directory_of(documents, workspace), "files", checked_name(name))


async def ingest(input: dict[str, Any], context: ToolContext, documents: Documents) -> ToolOutput:
    content = input["content"].encode()
    return await _store(input["filename"], content, input.get("mimeType", ""), context, documents)


async def upload(input: dict[str, Any], context: ToolContext, documents: Documents) -> ToolOutput:
    path, encoded = input.get("path"), input.get("content")
    if (path is None) == (encoded is None):
        raise ToolValidationError("Exactly one of path and content is required.")
    if path is not None:
        content = context.workspace_files.read_bytes(path)
        name = input.get("filename", os.path.basename(path))
    else:
        if "filename" not in input:
            raise ToolValidationError("filename: content needs one.")
        content, name = _decoded(str(encoded)), input["filename"]
    return await _store(name, content, input.get("mimeType", ""), context, documents)


def checked_name(name: str) -> str:
    """Return the name if it cannot leave its directory on any file system."""
    plain = not any(char in '/\\:*?"<>|' or not char.isprintable() for char in name)
    if not plain or name.startswith(".") or len(name.encode("utf-8", "replace")) > 200:
        raise ToolValidationError(
            f"filename: {name[:80]!r} cannot be the name of a document.", reason="invalid_name"
        )
    return name


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ToolValidationError("content: it is not Base64.", reason="invalid_content") from None


async def _store(
    name: str, content: bytes, mime_type: str, context: ToolContext, documents: Documents
) -> ToolOutput:
    if len(content) > LARGEST:
        raise ToolValidationError(
            f"A document has at most {LARGEST:,} bytes; this has {len(content):,}.",
            reason="too_large",
        )
    path = _path(documents, context.workspace_path, name)
    directory = directory_of(documents, context.workspace_path)
    stop = context.cancel_event.is_set

    def work() -> tuple[bool, bool]:
        text = text_of(name, content, mime_type, stop)
        return _keep(path, name, content, text, directory), text is not None

    replaced, has_text = await asyncio.to_thread(work)
    done = "Replaced" if replaced else "Kept"
    more = "" if has_text else "; it has no searchable text"
    return ToolOutput(
        content=[TextBlock(f"{done} the document {name} ({len(content):,} bytes){more}")],
        value={"document": name, "bytes": len(content), "searchable": has_text},
        metadata={"replaced": replaced},
    )


def _keep(path: str, name: str, content: bytes, text: str | None, directory: str) -> bool:
    """Store a document; return whether it replaced one of that name."""
    # Outside the documents' directory, with a unique name: other writers may run concurrently.
    temporary = os.path.join(directory, f".{secrets.token_hex(8)}.tmp")
    sha256 = hashlib.sha256(content).digest()
    try:
        make_private_directory(os.path.dirname(path), synced=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                sync_file(fd)
            # One transaction for both: with two writers of one name, one wins file and index.
            with opened(directory) as index, index.changing():
                existed = os.path.exists(path)
                os.rename(temporary, path)
                sync_directory(os.path.dirname(path))
                index.put("documents", name, os.stat(path), time.time_ns(), sha256, text)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise ToolExecutionError(
            f"The document cannot be stored: {error.strerror}.", reason="not_kept"
        ) from error
    return existed


def catch_up(index: Index, directory: str, should_stop: Callable[[], bool]) -> None:
    """Add stored documents to a rebuilt index, and remove deleted ones."""
    stored = os.path.join(directory, "files")
    names = set(os.listdir(stored)) if os.path.isdir(stored) else set()
    known = index.known("documents").keys()
    for name in names - known:
        path = os.path.join(stored, name)
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)[:LARGEST]
        text = text_of(name, content, should_stop=should_stop)
        with index.changing():
            sha256 = hashlib.sha256(content).digest()
            index.put("documents", name, os.stat(path), time.time_ns(), sha256, text)
    if known - names:
        with index.changing():
            for name in known - names:
                index.drop("documents", name)


def read_document(name: str, context: ToolContext, documents: Documents) -> bytes:
    """Read a stored document."""
    try:
        with open(_path(documents, context.workspace_path, name), "rb") as file:
            return file.read()
    except OSError:
        raise ToolExecutionError(
            f"There is no document {name!r}.", reason="file_not_found"
        ) from None


LARGEST_PUT = 5 * 1024 * 1024
"""Maximum bytes of a write."""
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
            "An editor accepts only text, without permissions.", reason="invalid_path"
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
    """Return the change that the call would make."""
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
            raise ToolValidationError("An editor returns only text.", reason="invalid_path")
        text = _encoded(context.workspace_files.read_bytes(path), encoding, path)
    else:
        text = await context.environment.read_text(path)
    cut = text[:most]
    if encoding == "base64":
        cut = cut[: len(cut) // 4 * 4]  # keeps the content decodable
    more = len(text) - len(cut)
    mark = f"\n[truncated: {more:,} more characters; raise maxLength]" if more else ""
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
    """Split a path into location and name. `./client:x` is a file with a colon in its name."""
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
    if len(content) > LARGEST_PUT:
        raise ToolValidationError(
            f"content: {len(content):,} bytes; at most {LARGEST_PUT:,} are written.",
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
