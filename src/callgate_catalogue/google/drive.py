"""Files in Google Drive: list, search, read, download, create, update, delete."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from callgate import ImageBlock, ImageSource, ToolExecutionError, ToolOutput, ToolValidationError
from callgate.packs.files import off_loop
from callgate.packs.tools import Environment
from callgate_catalogue import pdfs
from callgate_catalogue.google.mime import UNKNOWN, guessed
from callgate_catalogue.google.outputs import given, listed, one_line, text_output
from callgate_catalogue.google.requests import MAX_DOWNLOAD, Answer, Call, Google, path

FIELDS = "id,name,mimeType,size,modifiedTime,webViewLink,parents"
FOLDER = "application/vnd.google-apps.folder"
_SHORTCUT = "application/vnd.google-apps.shortcut"
_NATIVE = "application/vnd.google-apps."
_EXPORTS = {
    "document": "text/markdown",
    "spreadsheet": "text/csv",
    "presentation": "text/plain",
    "drawing": "image/png",
    "script": "application/vnd.google-apps.script+json",
}
_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_TEXTS = frozenset(
    {
        "application/json",
        "application/xml",
        "application/javascript",
        "application/x-sh",
        "application/yaml",
        "application/toml",
        "application/sql",
        "image/svg+xml",
        "application/vnd.google-apps.script+json",
    }
)
MAX_PICTURE = 5 * 1024 * 1024
MAX_UPLOAD = 32 * 1024 * 1024
_ALL_DRIVES = {"supportsAllDrives": True}


async def list_files(call: Call) -> ToolOutput:
    folder = _literal(call.input["folderId"])
    return await _listed(call, f"{folder} in parents and trashed = false", "The folder is empty")


async def search_files(call: Call) -> ToolOutput:
    words = _literal(call.input["query"])
    query = f"(fullText contains {words} or name contains {words}) and trashed = false"
    return await _listed(call, query, "No file matches")


def _literal(text: str) -> str:
    """Quote a text for a Drive query, so that it cannot end the literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


async def _listed(call: Call, query: str, nothing: str) -> ToolOutput:
    params = {
        "q": query,
        "fields": f"files({FIELDS}),nextPageToken",
        # A full-text search has its own order.
        "orderBy": None if "fullText" in query else "modifiedTime desc",
        "includeItemsFromAllDrives": True,
        **_ALL_DRIVES,
    }
    page = await call.google.pages(
        "drive", "/files", params, "files", call.input["maxResults"], "pageSize", 1000
    )
    lines = (
        f"{each['id']}  {one_line(each.get('name', ''))}  {_kind(each)}"
        f"  {each.get('modifiedTime', '')}"
        for each in page.items
    )
    return listed(lines, page.items, nothing=nothing, more=page.more)


def _kind(file: Mapping[str, Any]) -> str:
    if file.get("mimeType") == FOLDER:
        return "folder"
    size = file.get("size")
    return str(file.get("mimeType", "")) + (f"  {int(size):,} bytes" if size else "")


async def _about(google: Google, file_id: str) -> dict[str, Any]:
    """Return the metadata of a file, or of a link's target."""
    for _ in range(2):
        file: dict[str, Any] = await google.get(
            "drive",
            path("/files/{id}", id=file_id),
            {"fields": f"{FIELDS},shortcutDetails", **_ALL_DRIVES},
        )
        if file.get("mimeType") != _SHORTCUT:
            return file
        file_id = (file.get("shortcutDetails") or {}).get("targetId") or file_id
    raise ToolExecutionError("The shortcut has no reachable target.", reason="no_content")


async def _fetched(google: Google, file: Mapping[str, Any], kind: str | None = None) -> Answer:
    """Return the content; documents of Google are exported to a common format."""
    media_type, where = str(file.get("mimeType", "")), path("/files/{id}", id=file["id"])
    if not media_type.startswith(_NATIVE):
        return await google.ask(
            "GET", "drive", where, {"alt": "media", **_ALL_DRIVES}, limit=MAX_DOWNLOAD
        )
    export = kind or _EXPORTS.get(media_type.removeprefix(_NATIVE))
    if export is None:
        kind_name = "folder: drive_list lists it" if media_type == FOLDER else media_type
        raise ToolExecutionError(
            f"{one_line(file.get('name', ''))} has no content to read, it is a {kind_name}.",
            reason="no_content",
        )
    return await google.ask(
        "GET", "drive", where + "/export", {"mimeType": export}, limit=MAX_DOWNLOAD
    )


async def read_file(call: Call) -> ToolOutput:
    file = await _about(call.google, call.input["fileId"])
    answer = await _fetched(call.google, file)
    kind = answer.content_type.partition(";")[0].strip().lower() or str(file.get("mimeType", ""))
    if kind in _PICTURES and len(answer.body) <= MAX_PICTURE:
        data = base64.b64encode(answer.body).decode()
        picture = ImageBlock(source=ImageSource(data=data), media_type=kind)
        return ToolOutput(content=[picture], value=file, metadata={"bytes": len(answer.body)})
    if kind == "application/pdf":
        text: str | None = await pdfs.text_of(answer.body, call.context)
    else:
        text = _text(answer, kind)
    if text is None:
        raise ToolExecutionError(
            f"{one_line(file.get('name', ''))} is no text ({kind}, {len(answer.body):,} bytes);"
            " drive_download saves it.",
            reason="not_text",
        )
    return text_output(text, {**file, "content": text})


def _text(answer: Answer, kind: str) -> str | None:
    """Decode a text; None if the content is not text."""
    if b"\0" in answer.body[:8192] and not answer.body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return None
    charset = answer.content_type.lower().partition("charset=")[2].strip(" \"'").partition(";")[0]
    is_known = kind.startswith("text/") or kind in _TEXTS
    try:
        return answer.body.decode("utf-8-sig")
    except UnicodeDecodeError:
        if not is_known:
            return None
    try:
        return answer.body.decode(charset or ("utf-16" if b"\0" in answer.body else "latin-1"))
    except (UnicodeDecodeError, LookupError):
        return answer.body.decode("utf-8", "replace")


async def download_file(call: Call) -> ToolOutput:
    where = call.input["path"]
    file = await _about(call.google, call.input["fileId"])
    content = (await _fetched(call.google, file, call.input.get("mimeType"))).body
    await off_loop(call.context.workspace_files.write_bytes, where, content)
    return text_output(
        f"Saved {one_line(file.get('name', ''))} to {where} ({len(content):,} bytes)",
        {**file, "path": where, "bytes": len(content)},
        files_modified=[where],
    )


async def create_file(call: Call) -> ToolOutput:
    input = call.input
    content = _content(call)
    guess = guessed(input["path"], input["name"]) if "path" in input else "text/plain"
    media_type = input.get("mimeType") or guess
    metadata: dict[str, Any] = {"name": input["name"], "mimeType": media_type}
    if "folderId" in input:
        metadata["parents"] = [input["folderId"]]
    params = {"fields": FIELDS, **_ALL_DRIVES}
    if content is None and media_type.startswith(_NATIVE):  # a folder, or an empty document
        created = await call.google.send("POST", "drive", "/files", metadata, params)
    else:
        body, kind = _multipart(metadata, content or b"", _sent_as(input, media_type))
        answer = await call.google.ask(
            "POST", "upload", "/files", {"uploadType": "multipart", **params}, body, kind
        )
        created = answer.json()
    return text_output(
        f"Created {one_line(created.get('name', ''))}, as {created['id']}{_link(created)}", created
    )


async def update_file(call: Call) -> ToolOutput:
    input = call.input
    content = _content(call)
    metadata = given(input, "name")
    if content is None and not metadata:
        raise ToolValidationError("Nothing would change: one of content, path and name is needed.")
    where = path("/files/{id}", id=input["fileId"])
    params = {"fields": FIELDS, **_ALL_DRIVES}
    changed: dict[str, Any] = {}
    if metadata:
        changed = await call.google.send("PATCH", "drive", where, metadata, params)
    if content is not None:
        # New content has its own type, so state the existing one.
        kind = input.get("mimeType") or changed.get("mimeType")
        if kind is None:
            kind = (await call.google.get("drive", where, params)).get("mimeType") or UNKNOWN
        sent_as = _sent_as(input, kind)
        answer = await call.google.ask(
            "PATCH", "upload", where, {"uploadType": "media", **params}, content, sent_as
        )
        changed = answer.json()
    return text_output(f"Updated {one_line(changed.get('name', ''))}{_link(changed)}", changed)


def _link(file: Mapping[str, Any]) -> str:
    return f"\n{file['webViewLink']}" if file.get("webViewLink") else ""


def _content(call: Call) -> bytes | None:
    """Return the new content of a file; None if the call has none."""
    input = call.input
    if "content" in input and "path" in input:
        raise ToolValidationError("content and path: only one of them can be the file's content.")
    if "mimeType" in input and not _is_media_type(input["mimeType"]):
        raise ToolValidationError(f"mimeType: {input['mimeType']!r} is none.")
    content: bytes | None = None
    if "path" in input:
        content = call.context.workspace_files.read_bytes(input["path"])
    elif "content" in input:
        content = input["content"].encode()
    if content is not None and len(content) > MAX_UPLOAD:
        raise ToolValidationError(f"The content is larger than {MAX_UPLOAD:,} bytes.")
    return content


def _sent_as(input: Mapping[str, Any], media_type: str) -> str:
    """Return the media type of the bytes; Google converts other types to its documents."""
    if not media_type.startswith(_NATIVE):
        return media_type
    if "path" in input:
        return guessed(input["path"])
    return "text/csv" if media_type == _NATIVE + "spreadsheet" else "text/plain"


def _is_media_type(text: str) -> bool:
    """Whether a text is a media type on one line, because it becomes a header."""
    return text.isascii() and text.isprintable() and "/" in text and len(text) < 256


def _multipart(metadata: Mapping[str, Any], content: bytes, sent_as: str) -> tuple[bytes, str]:
    boundary = f"callgate-{secrets.token_hex(16)}"
    pieces = (
        f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode(),
        msgspec.json.encode(metadata),
        f"\r\n--{boundary}\r\nContent-Type: {sent_as}\r\n\r\n".encode(),
        content,
        f"\r\n--{boundary}--\r\n".encode(),
    )
    return b"".join(pieces), f"multipart/related; boundary={boundary}"


async def delete_file(call: Call) -> ToolOutput:
    file_id, for_good = call.input["fileId"], call.input["permanent"]
    where = path("/files/{id}", id=file_id)
    if for_good:
        await call.google.send("DELETE", "drive", where, None, _ALL_DRIVES)
        return text_output(f"Deleted {file_id} permanently", {"id": file_id, "trashed": False})
    params = {"fields": FIELDS, **_ALL_DRIVES}
    file = await call.google.send("PATCH", "drive", where, {"trashed": True}, params)
    name = one_line(file.get("name", "")) or file_id
    return text_output(f"Moved {name} to the trash", {**file, "trashed": True})


def preview_delete(input: dict[str, Any], environment: Environment, shared: object) -> str:
    if input["permanent"]:
        return f"Delete the file {input['fileId']} permanently; it cannot be restored"
    return f"Move the file {input['fileId']} to the trash"
