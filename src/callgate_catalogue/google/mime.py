"""Parse mails in Google's format, and write new ones. Pure."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.headerregistry import Address, BaseHeader, HeaderRegistry, UnstructuredHeader
from email.message import EmailMessage, Message
from email.policy import SMTP, Policy
from email.utils import getaddresses
from typing import Any, NamedTuple

from callgate import ToolExecutionError, ToolValidationError
from callgate_catalogue.web.html import Text, decode, tokens
from callgate_catalogue.web.markdown import convert, without_unseen

UNKNOWN = "application/octet-stream"


def guessed(*names: str) -> str:
    """Guess from the first name with a known ending.

    A guess for `x.tar.gz` is about the inner file, and a mail is sent as bytes: both count as
    ordinary files.
    """
    for name in names:
        kind, packed_as = mimetypes.guess_type(name)
        if kind and packed_as is None and not kind.startswith(("message/", "multipart/")):
            return kind
    return UNKNOWN


MAX_DEPTH = 50
MAX_HTML = 4 * 1024 * 1024
"""Characters of HTML that are converted to text."""
MAX_MAIL = 25 * 1024 * 1024
"""Bytes that Gmail accepts."""
_LONGEST_HEADER = 50_000
"""Characters of a header that are decoded; the time grows faster than the length."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ADDRESS = re.compile(r"[^\s@<>()\[\],;:\\\"]+@[^\W_](?:[\w.-]*[^\W_])?\Z")
_MESSAGE_ID = re.compile(r"<[!-;=?-~]{1,900}>")
_MOST_REFERENCES = 20
_LONGEST_STUB = 300
_MORE = 4
"""Factor by which another part is longer if the plain one is a stub."""
_LOOKED_AT = 128 * 1024
"""Characters of base64url, three bytes for each four."""


class Part(NamedTuple):
    """Leaf of a mail."""

    media_type: str
    charset: str
    filename: str
    data: str | None
    """base64url; Google has removed the mail's own encoding."""
    attachment_id: str | None
    size: int
    disposition: str = ""

    @property
    def is_attached(self) -> bool:
        return bool(self.filename) or self.disposition == "attachment" or not self.is_text

    @property
    def is_text(self) -> bool:
        return self.media_type in ("text/plain", "text/html")

    @property
    def is_blank(self) -> bool:
        """Return whether the part is empty; a long part never counts as empty."""
        return self.attachment_id is None and not from_base64url(self.data or "").strip()


def parts_of(payload: Mapping[str, Any], depth: int = 0) -> Iterator[Part]:
    """Return the leaves in order. A nested mail is one leaf without content."""
    inner = payload.get("parts") or []
    media_type = str(payload.get("mimeType") or "text/plain").lower()
    _check_depth(depth)
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
        charset=str(typed.get_content_charset() or ""),
        filename=decoded(str(payload.get("filename") or "")) or _named(media_type),
        data=body.get("data"),
        attachment_id=body.get("attachmentId"),
        size=int(body.get("size") or 0),
        disposition=headers.get("content-disposition", "").split(";")[0].strip().lower(),
    )


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ToolExecutionError("The mail is nested too deep to be read.", reason="too_deep")


def _named(media_type: str) -> str:
    return "message.eml" if media_type == "message/rfc822" else ""


def headers_of(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers by lower-case name; the first of several with one name."""
    found: dict[str, str] = {}
    for each in payload.get("headers") or []:
        found.setdefault(str(each.get("name", "")).lower(), str(each.get("value", "")))
    return found


def decoded(text: str) -> str:
    """Decode `=?utf-8?q?...?=` in a header."""
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
            "Google's answer is invalid: not base64.", reason="google_answer"
        ) from None


def text_of(part: Part, content: bytes, should_stop: Callable[[], bool] = lambda: False) -> str:
    text = _decoded(content, part.charset)
    if part.media_type == "text/html":
        return convert(text[:MAX_HTML], "", should_stop).markdown
    return without_unseen(text.replace("\r\n", "\n"))


def _decoded(content: bytes, charset: str) -> str:
    """Decode a text. Google sends UTF-8, under headers that still name the original charset."""
    if b"\x1b" not in content:  # ISO-2022-JP is also ASCII, and switches its letters with escapes
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            pass
    # Not only Python's codecs: some are no charsets, and the sender chooses the name.
    return decode(content, f"text/plain; charset={charset}")[0]


def shown_parts(payload: Mapping[str, Any], depth: int = 0) -> list[Part]:
    """Return the parts with the mail's text, in order.

    The plain part represents alternatives, unless it is only a stub.
    """
    inner = payload.get("parts") or []
    if not str(payload.get("mimeType")).lower().startswith("multipart/") or not inner:
        return [each for each in parts_of(payload) if not each.is_attached and not each.is_blank]
    _check_depth(depth)
    found = [shown_parts(each, depth + 1) for each in inner]
    if str(payload["mimeType"]).lower() == "multipart/alternative":
        found = [each for each in found if each]
        plain = [each for each in found if all(part.media_type == "text/plain" for part in each)]
        if plain and not _is_stub(plain[0], found[-1]):
            return plain[0]
        return found[-1] if found else []
    return [part for each in found for part in each]


def _is_stub(plain: list[Part], other: list[Part]) -> bool:
    """Return whether the plain text only points to the other part, as some senders write it."""
    length = sum(map(_length, plain))
    return length < _LONGEST_STUB and sum(map(_length, other)) > _MORE * length


def _length(part: Part) -> int:
    """Return the approximate number of visible letters in the beginning of a part."""
    text = _decoded(from_base64url((part.data or "")[:_LOOKED_AT]), part.charset)
    if part.media_type == "text/html":
        text = "".join(token.text for token in tokens(text) if isinstance(token, Text))
    return len("".join(text.split()))


def attached(payload: Mapping[str, Any]) -> list[Part]:
    return [each for each in parts_of(payload) if each.is_attached]


# Writing.


class MailFile(NamedTuple):
    name: str
    content: bytes


class Reply(NamedTuple):
    """The mail that another one answers."""

    message_id: str
    references: str


class _MessageIds(UnstructuredHeader, BaseHeader):
    """Header like `<a@b> <c@d>`. Python would encode a long id and make it invalid."""

    def fold(self, *, policy: Policy) -> str:
        ids = f"{policy.linesep} ".join(str(self).split())
        return f"{self.name}: {ids}{policy.linesep}"


_HEADERS = HeaderRegistry()
for _name in ("in-reply-to", "references"):
    _HEADERS.map_to_type(_name, _MessageIds)
_PLAIN = SMTP.clone(header_factory=_HEADERS)
_WIDE = _PLAIN.clone(utf8=True)
"""Policy for addresses outside of ASCII."""


def compose(
    input: Mapping[str, Any], files: Iterable[MailFile] = (), reply: Reply | None = None
) -> bytes:
    """Return the mail to send. Raises `ToolValidationError` if a header could become two."""
    to = {name: addresses(name, input[name]) for name in ("to", "cc", "bcc") if name in input}
    is_plain = all(each.addr_spec.isascii() for everyone in to.values() for each in everyone)
    mail = EmailMessage(policy=_PLAIN if is_plain else _WIDE)
    for name, everyone in to.items():
        mail[name.capitalize()] = everyone
    mail["Subject"] = _header("subject", input["subject"])
    answered = _MESSAGE_ID.findall(reply.message_id) if reply is not None else []
    if reply is not None and answered:
        known = _MESSAGE_ID.findall(reply.references) + answered
        mail["In-Reply-To"] = answered[0]
        # Preserve the first, the id of the thread, when others are dropped.
        mail["References"] = " ".join(known[:1] + known[1:][-_MOST_REFERENCES:])
    mail.set_content(input["body"])
    if "html" in input:
        mail.add_alternative(input["html"], subtype="html")
    for file in files:
        main, _, sub = guessed(file.name).partition("/")
        mail.add_attachment(file.content, main, sub, filename=_header("attachment", file.name))
    data = mail.as_bytes()
    if len(data) > MAX_MAIL:
        raise ToolValidationError(f"The mail has {len(data):,} bytes; Gmail takes {MAX_MAIL:,}.")
    return data


def addresses(name: str, values: str | list[str]) -> tuple[Address, ...]:
    """Return all named recipients; each must be an address."""
    texts = [values] if isinstance(values, str) else values
    found: list[Address] = []
    try:
        everyone = getaddresses([_header(name, text) for text in texts])
    except RecursionError:  # from ((((...
        raise ToolValidationError(f"{name}: there is no mail address.") from None
    for display, address in everyone:
        # Python reads `a@b c` as a@bc: the recipient must occur literally.
        if not _ADDRESS.match(address) or not any(address in text for text in texts):
            wrong = display or address or ", ".join(texts)
            raise ToolValidationError(
                f"{name}: {wrong!r} is not a mail address; separate several by commas, and quote a"
                " name that contains a comma."
            )
        user, _, domain = address.rpartition("@")
        try:
            found.append(Address(display, user, _looked_up(domain)))
        except (ValueError, HeaderParseError):
            raise ToolValidationError(f"{name}: {address!r} is not a mail address.") from None
    if not found:
        raise ToolValidationError(f"{name}: there is no mail address.")
    return tuple(found)


def _looked_up(domain: str) -> str:
    """Return a domain in the ASCII form of host names."""
    if domain.isascii():
        return domain
    spelled = domain.encode("idna")
    if spelled.decode("idna") != domain.lower():
        # Python maps ß to ss, an older rule: that is another domain today.
        raise ValueError(domain)
    return spelled.decode()


def _header(name: str, text: str) -> str:
    """Refuse line ends in a header, which would begin another header."""
    if _CONTROL.search(text):
        raise ToolValidationError(f"{name}: a header of a mail is one line of text.")
    return text
