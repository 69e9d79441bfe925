"""`file_ingest` and `file_upload`: documents that are kept beside the workspace, and searched."""

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

from callgate import TextBlock, ToolContext, ToolExecutionError, ToolOutput, ToolValidationError
from callgate.packs.files import make_private_directory, sync_directory, sync_file
from callgate_catalogue.documents.dependencies import Documents
from callgate_catalogue.documents.extraction import text_of
from callgate_catalogue.documents.index import Index, opened
from callgate_catalogue.workspace_names import directory_name

LARGEST = 20 * 1024 * 1024


def directory_of(documents: Documents, workspace: str) -> str:
    return os.path.join(documents.home, "documents", directory_name(workspace))


def _path(documents: Documents, workspace: str, name: str) -> str:
    """The file of a document."""
    return os.path.join(directory_of(documents, workspace), "files", checked_name(name))


async def ingest(input: dict[str, Any], context: ToolContext, documents: Documents) -> ToolOutput:
    content = input["content"].encode()
    return await _store(input["filename"], content, input.get("mimeType", ""), context, documents)


async def upload(input: dict[str, Any], context: ToolContext, documents: Documents) -> ToolOutput:
    path, encoded = input.get("path"), input.get("content")
    if (path is None) == (encoded is None):
        raise ToolValidationError("One of path and content must be given, and not both.")
    if path is not None:
        content = context.workspace_files.read_bytes(path)
        name = input.get("filename", os.path.basename(path))
    else:
        if "filename" not in input:
            raise ToolValidationError("filename: content needs one.")
        content, name = _decoded(str(encoded)), input["filename"]
    return await _store(name, content, input.get("mimeType", ""), context, documents)


def checked_name(name: str) -> str:
    """A name that stays in its directory, on any file system."""
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
    more = "" if has_text else "; there is no text in it that could be searched"
    return ToolOutput(
        content=[TextBlock(f"{done} the document {name} ({len(content):,} bytes){more}")],
        value={"document": name, "bytes": len(content), "searchable": has_text},
        metadata={"replaced": replaced},
    )


def _keep(path: str, name: str, content: bytes, text: str | None, directory: str) -> bool:
    """Whether there was one of that name."""
    # Not beside the documents, and of a name of its own: others may keep one meanwhile.
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
            # Both at once, so that of two with one name the same is kept and found.
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
            f"The document cannot be kept: {error.strerror}.", reason="not_kept"
        ) from error
    return existed


def catch_up(index: Index, directory: str, should_stop: Callable[[], bool]) -> None:
    """What was kept before an index was made anew is in it again, and what is gone no more."""
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
    """What was kept under a name."""
    try:
        with open(_path(documents, context.workspace_path, name), "rb") as file:
            return file.read()
    except OSError:
        raise ToolExecutionError(
            f"There is no document {name!r}.", reason="file_not_found"
        ) from None
