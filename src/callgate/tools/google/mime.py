"""Mails as Google has them, read; and new ones, written. Values in, values out."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.headerregistry import Address
from email.message import EmailMessage, Message
from email.policy import SMTP
from email.utils import getaddresses
from typing import Any, NamedTuple

from callgate.core.errors import ToolExecutionError, ToolValidationError
from callgate.tools.web.charsets import decode
from callgate.tools.web.markdown import convert, without_unseen

MAX_DEPTH = 50
MAX_HTML = 4 * 1024 * 1024
"""Characters of which a text is made."""
MAX_MAIL = 25 * 1024 * 1024
"""Bytes that Gmail takes."""
_LONGEST_HEADER = 50_000
"""Characters that are decoded, which takes longer the more there are."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ADDRESS = re.compile(r"[^\s@<>()\[\],;:\\\"]+@[^\W_](?:[\w.-]*[^\W_])?\Z")


class Part(NamedTuple):
    """A leaf of a mail."""

    media_type: str
    charset: str
    filename: str
    data: str | None
    """base64url, with what the mail's own encoding was taken off by Google."""
    attachment_id: str | None
    size: int
    disposition: str = ""

    @property
    def is_attached(self) -> bool:
        return bool(self.filename) or self.disposition == "attachment" or not self.is_text

    @property
    def is_text(self) -> bool:
        return self.media_type in ("text/plain", "text/html")


def parts_of(payload: Mapping[str, Any], depth: int = 0) -> Iterator[Part]:
    """The leaves, in order. Of a mail inside the mail only that it is there."""
    inner = payload.get("parts") or []
    media_type = str(payload.get("mimeType") or "text/plain").lower()
    if depth > MAX_DEPTH:
        raise ToolExecutionError("The mail is nested too deep to be read.", reason="too_deep")
    if inner and media_type != "message/rfc822":
        for each in inner:
            yield from parts_of(each, depth + 1)
        return
    if media_type.startswith("multipart/"):
        return
    headers = headers_of(payload)
    typed = Message()
    typed["content-type"] = headers.get("content-type") or media_type
    body = payload.get("body") or {}
    yield Part(
        media_type=media_type,
        charset=str(typed.get_content_charset() or "utf-8"),
        filename=decoded(str(payload.get("filename") or "")) or _named(media_type),
        data=body.get("data"),
        attachment_id=body.get("attachmentId"),
        size=int(body.get("size") or 0),
        disposition=headers.get("content-disposition", "").split(";")[0].strip().lower(),
    )


def _named(media_type: str) -> str:
    return "message.eml" if media_type == "message/rfc822" else ""


def headers_of(payload: Mapping[str, Any]) -> dict[str, str]:
    """By their names in small letters; of several with one name the first."""
    found: dict[str, str] = {}
    for each in payload.get("headers") or []:
        found.setdefault(str(each.get("name", "")).lower(), str(each.get("value", "")))
    return found


def decoded(text: str) -> str:
    """A header without `=?utf-8?q?...?=`."""
    try:
        shown = str(make_header(decode_header(text[:_LONGEST_HEADER])))
    except (HeaderParseError, LookupError, UnicodeError, ValueError):
        shown = text[:_LONGEST_HEADER]
    return without_unseen(_CONTROL.sub(" ", shown))


def from_base64url(data: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))
    except (binascii.Error, ValueError):
        raise ToolExecutionError(
            "Google's answer is not what it should be: no base64.", reason="google_answer"
        ) from None


def text_of(
    part: Part, content: bytes, should_stop: Callable[[], bool] = lambda: False
) -> str:
    # Not by Python's own codecs alone: some are no charsets, and a stranger chooses the name.
    text, _ = decode(content, f"text/plain; charset={part.charset}")
    if part.media_type == "text/html":
        return convert(text[:MAX_HTML], "", should_stop).markdown
    return without_unseen(text.replace("\r\n", "\n"))


def shown_parts(payload: Mapping[str, Any]) -> list[Part]:
    """The parts that are the mail's text: of alternatives the plain one."""
    texts = [each for each in parts_of(payload) if not each.is_attached]
    plain = [each for each in texts if each.media_type == "text/plain"]
    return plain or texts


def attached(payload: Mapping[str, Any]) -> list[Part]:
    return [each for each in parts_of(payload) if each.is_attached]


# Writing.


class File(NamedTuple):
    name: str
    content: bytes


class Reply(NamedTuple):
    """To which mail another one is an answer."""

    message_id: str
    references: str


def compose(
    input: Mapping[str, Any], files: Iterable[File] = (), reply: Reply | None = None
) -> bytes:
    """A mail as it goes out. `ToolValidationError` where a header could become two."""
    mail = EmailMessage(policy=SMTP)
    for header in ("to", "cc", "bcc"):
        if header in input:
            mail[header.capitalize()] = addresses(header, input[header])
    mail["Subject"] = _header("subject", input["subject"])
    if reply is not None and reply.message_id:
        mail["In-Reply-To"] = _header("Message-ID", reply.message_id)
        known = f"{reply.references} {reply.message_id}".split()
        mail["References"] = _header("References", " ".join(known[-20:]))
    mail.set_content(input["body"])
    if "html" in input:
        mail.add_alternative(input["html"], subtype="html")
    for file in files:
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        main, _, sub = kind.partition("/")
        mail.add_attachment(file.content, main, sub, filename=_header("attachment", file.name))
    data = mail.as_bytes()
    if len(data) > MAX_MAIL:
        raise ToolValidationError(f"The mail has {len(data):,} bytes; Gmail takes {MAX_MAIL:,}.")
    return data


def addresses(name: str, said: str | list[str]) -> tuple[Address, ...]:
    """Everyone who is named; each must be an address."""
    texts = [said] if isinstance(said, str) else said
    found: list[Address] = []
    try:
        everyone = getaddresses([_header(name, text) for text in texts])
    except RecursionError:  # of ((((...
        raise ToolValidationError(f"{name}: there is no mail address.") from None
    for display, address in everyone:
        # Python reads `a@b c` as a@bc: what is sent to must stand there as it is.
        if not _ADDRESS.match(address) or not any(address in text for text in texts):
            raise ToolValidationError(f"{name}: {(display or address)!r} is no mail address.")
        user, _, domain = address.rpartition("@")
        try:
            found.append(Address(display, user, domain))
        except (ValueError, HeaderParseError):
            raise ToolValidationError(f"{name}: {address!r} is no mail address.") from None
    if not found:
        raise ToolValidationError(f"{name}: there is no mail address.")
    return tuple(found)


def _header(name: str, text: str) -> str:
    """A line end in a header would be the beginning of another."""
    if _CONTROL.search(text):
        raise ToolValidationError(f"{name}: a header of a mail is one line of text.")
    return text
