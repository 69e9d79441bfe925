"""Mail: list, search, read, save attachments, send."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Mapping
from typing import Any

from callgate import ToolContext, ToolExecutionError, ToolOutput
from callgate.packs.files import off_loop
from callgate.packs.tools import Environment
from callgate_catalogue.google import mime
from callgate_catalogue.google.outputs import NOT_FOUND, listed, one_line, text_output
from callgate_catalogue.google.requests import Call, Google, path
from callgate_catalogue.web.html import plain
from callgate_catalogue.web.markdown import convert

_AT_ONCE = 8
"""Number of concurrent requests for the lines of a list."""
_PREVIEWED = 100_000
"""Characters of HTML."""
_SHOWN_HEADERS = ("From", "To", "Cc", "Reply-To", "Date", "Subject")


async def list_messages(call: Call) -> ToolOutput:
    return await _listed(call, {"labelIds": call.input["labelIds"]}, "There are no mails")


async def search_messages(call: Call) -> ToolOutput:
    return await _listed(call, {"q": call.input["query"]}, "No mail matches")


async def _listed(call: Call, params: Mapping[str, Any], nothing: str) -> ToolOutput:
    page = await call.google.pages(
        "gmail",
        "/users/me/messages",
        params,
        "messages",
        call.input["maxResults"],
        "maxResults",
        500,
    )
    slots = asyncio.Semaphore(_AT_ONCE)

    async def look(message_id: str) -> dict[str, Any] | None:
        async with slots:
            try:
                return await _summary(call.google, message_id)
            except ToolExecutionError as error:
                if error.reason == NOT_FOUND:  # deleted after the list request
                    return None
                raise

    try:
        async with asyncio.TaskGroup() as group:
            looks = [group.create_task(look(each["id"])) for each in page.items]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    found = [summary for each in looks if (summary := each.result()) is not None]
    lines = (
        f"{each['id']}  {each['date']}  {each['from']}  {each['subject']}"
        f"{'  (unread)' if each['unread'] else ''}\n    {each['snippet']}"
        for each in found
    )
    return listed(lines, found, nothing=nothing, more=page.more)


async def _summary(google: Google, message_id: str) -> dict[str, Any]:
    message = await google.get(
        "gmail",
        path("/users/me/messages/{id}", id=message_id),
        {"format": "metadata", "metadataHeaders": ["From", "To", "Subject", "Date"]},
    )
    headers = mime.headers_of(message.get("payload") or {})
    labels = message.get("labelIds") or []
    shown = {
        name: one_line(mime.decoded(headers.get(name, "")))
        for name in ("from", "to", "subject", "date")
    }
    return {
        "id": message["id"],
        "threadId": message.get("threadId"),
        **shown,
        "snippet": one_line(plain(message.get("snippet") or "")),
        "labelIds": labels,
        "unread": "UNREAD" in labels,
    }


async def read_message(call: Call) -> ToolOutput:
    message_id = call.input["messageId"]
    message = await _message(call.google, message_id)
    payload = message.get("payload") or {}
    contents = [
        (part, await _content(call.google, message_id, part)) for part in mime.shown_parts(payload)
    ]
    stop = call.context.cancel_event.is_set

    def texts_of() -> list[str]:
        return [mime.text_of(part, content, stop) for part, content in contents]

    texts = await asyncio.to_thread(texts_of)  # HTML may take a while
    headers = mime.headers_of(payload)
    shown = {
        name: mime.decoded(headers[name.lower()])
        for name in _SHOWN_HEADERS
        if name.lower() in headers
    }
    body = "\n\n".join(text.strip("\n") for text in texts)
    files = mime.attached(payload)
    lines = [f"{name}: {value}" for name, value in shown.items()]
    lines += ["", body]
    if files:
        lines += ["", "Attached (gmail_save_attachment saves one):"]
        lines += [
            f"  {number}. {part.filename or '(no name)'}  {part.media_type}  {part.size:,} bytes"
            for number, part in enumerate(files, 1)
        ]
    value = {
        "id": message["id"],
        "threadId": message.get("threadId"),
        "labelIds": message.get("labelIds") or [],
        "headers": shown,
        "body": body,
        "attachments": [
            {"filename": part.filename, "mimeType": part.media_type, "size": part.size}
            for part in files
        ],
    }
    return text_output("\n".join(lines), value)


async def _message(google: Google, message_id: str) -> dict[str, Any]:
    where = path("/users/me/messages/{id}", id=message_id)
    message: dict[str, Any] = await google.get("gmail", where, {"format": "full"})
    return message


async def _content(google: Google, message_id: str, part: mime.Part) -> bytes:
    """Return the content of a part; long parts need a request."""
    data = part.data
    if data is None and part.attachment_id is not None:
        where = path(
            "/users/me/messages/{message}/attachments/{id}",
            message=message_id,
            id=part.attachment_id,
        )
        data = (await google.get("gmail", where)).get("data")
    return mime.from_base64url(data or "")


async def save_attachment(call: Call) -> ToolOutput:
    message_id, wanted, where = (call.input[name] for name in ("messageId", "attachment", "path"))
    message = await _message(call.google, message_id)
    part = _chosen(mime.attached(message.get("payload") or {}), wanted)
    content = await _content(call.google, message_id, part)
    await off_loop(call.context.workspace_files.write_bytes, where, content)
    return text_output(
        f"Saved {one_line(part.filename)} to {where} ({len(content):,} bytes)",
        {"path": where, "bytes": len(content), "mimeType": part.media_type},
        files_modified=[where],
    )


def _chosen(files: list[mime.Part], wanted: str) -> mime.Part:
    for part in files:
        if part.filename == wanted:
            return part
    if wanted.isascii() and wanted.isdigit() and 0 < int(wanted) <= len(files):
        return files[int(wanted) - 1]
    known = ", ".join(repr(part.filename) for part in files) or "nothing"
    raise ToolExecutionError(
        f"The mail has no attachment {wanted!r}; attached is: {known}.", reason="no_attachment"
    )


async def send_message(call: Call) -> ToolOutput:
    input = call.input
    body: dict[str, Any] = {}
    reply: mime.Reply | None = None
    files = _files(input, call.context)
    if "replyToMessageId" in input:
        reader = call.google.with_scopes("gmail.readonly", "gmail.modify")
        reply, body["threadId"] = await _answered(reader, input["replyToMessageId"])
    mail = mime.compose(input, files, reply)
    body["raw"] = base64.urlsafe_b64encode(mail).decode().rstrip("=")
    sent = await call.google.send("POST", "gmail", "/users/me/messages/send", body)
    return text_output(
        f"Sent, as {sent['id']}", {name: sent.get(name) for name in ("id", "threadId", "labelIds")}
    )


def _files(input: Mapping[str, Any], context: ToolContext) -> list[mime.MailFile]:
    return [
        mime.MailFile(os.path.basename(each), context.workspace_files.read_bytes(each))
        for each in input.get("attachments", ())
    ]


async def _answered(google: Google, message_id: str) -> tuple[mime.Reply, str | None]:
    message = await google.get(
        "gmail",
        path("/users/me/messages/{id}", id=message_id),
        {"format": "metadata", "metadataHeaders": ["Message-ID", "References"]},
    )
    headers = mime.headers_of(message.get("payload") or {})
    references = " ".join(headers.get("references", "").split())
    return mime.Reply(headers.get("message-id", "").strip(), references), message.get("threadId")


def preview_send(input: dict[str, Any], environment: Environment, shared: object) -> str:
    """Return the mail as it would be sent."""
    lines = []
    for name in ("to", "cc", "bcc"):
        if name in input:
            everyone = ", ".join(map(str, mime.addresses(name, input[name])))
            lines.append(f"{name.capitalize()}: {everyone}")
    lines += [f"Subject: {input['subject']}", "", input["body"]]
    lines += [f"[attached: {each}]" for each in input.get("attachments", ())]
    if "html" in input:  # which may differ
        shown = convert(input["html"][:_PREVIEWED], "").markdown
        more = "" if len(input["html"]) <= _PREVIEWED else "\n[and more]"
        lines += ["[and as HTML, which most readers show instead:]", shown + more]
    return "\n".join(lines)
