"""One ended call as the audit log keeps it: one line of JSON, redacted, part of a chain."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from callgate.core.errors import ToolErrorClass
from callgate.core.events import COMPLETED, FAILED, INPUT_INVALID

_encoder = msgspec.json.Encoder()
_encode_into = _encoder.encode_into
_DELETE = 0x7F
_BEGINNING = b'{"id":"'


class CallRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line of the log, as it is written and read. Its texts are redacted by who fills it."""

    id: str
    ts: int
    """Milliseconds since 1970."""
    caller: str
    principal: str = ""
    """Who made the call."""
    tool: str
    decision: str
    """`deny` for what policy, a person or nobody's answer refused, else `allow`."""
    call_id: str
    session: str
    cwd: str
    args: str
    """Summary of the arguments."""
    args_hash: str | None = None
    result: str = ""
    """The beginning of what the caller was shown."""
    ms: float = 0.0
    """How long it ran, or was looked at if it did not run; without the wait for people."""
    waited_ms: float = 0.0
    """For people."""
    error_class: str | None = None
    reason: str | None = None
    side_effects: str | None = None
    capabilities: tuple[str, ...] = ()
    source: str | None = None
    policy: str | None = None
    """What decided, and where it stands."""
    provenance: tuple[str, ...] = ()
    """Where its destinations come from, a line each."""
    confirmation_id: str | None = None
    answered_by: str | None = None
    sandbox: str | None = None
    """What its commands ran in, or would have."""
    turn_id: str | None = None
    client: str | None = None
    """What the program behind the caller is called; it may be its own word."""
    external_id: str | None = None
    scope: Mapping[str, str] | None = None
    called: str | None = None
    """The id of the event with which it started; with `id`, its events can be made from this."""
    tool_use_id: str | None = None
    """The id in its events, where that is not `call_id`."""
    end: str | None = None
    """The type of the event with which it ended, where `error_class` does not tell it."""
    trace: str | None = None
    """The `traceparent` that its caller sent, where telemetry is on."""
    chain: str = ""
    n: int = 0
    """Its number in its chain, from 1; given by the log, as the fields around it are."""
    prev: str = ""
    """The hash of the line before it in the chain; of the last line in the file for the first."""
    seen: str = ""
    """The hash of the line of another process that stood last, if it was not ours."""
    file: int = 0
    """On a chain's first line in a file: the number of that file ..."""
    file_before: int = 0
    """... and of the file with the line before it; 0 for the first of all."""
    kept_from: int = 0
    """Files with a lower number were dropped, because there were more than are kept."""
    dropped_last: str = ""
    """The hash of the last line of the newest of these."""
    signature: str = ""
    """With the key of the log, of what the two fields before it say."""


class DropMark(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line that is no call: it says, as part of a chain, which files were dropped for their age.

    Its last fields are those of a `CallRecord`.
    """

    id: str
    ts: int
    dropped_files: int
    chain: str = ""
    n: int = 0
    prev: str = ""
    seen: str = ""
    file: int = 0
    file_before: int = 0
    kept_from: int = 0
    dropped_last: str = ""
    signature: str = ""


Line = CallRecord | DropMark


def implied_end(error_class: str | None) -> str:
    """The type of the event with which a call ends that ended like this, unless its line says
    another."""
    if error_class is None:
        return COMPLETED
    return INPUT_INVALID if error_class == ToolErrorClass.VALIDATION_ERROR else FAILED


def encode(record: Line) -> bytes:
    """The line of a record, without its end."""
    try:
        encoded = _encoder.encode(record)
    except UnicodeEncodeError:  # lone surrogates are written as the escapes they came from
        encoded = _encoder.encode(_plain(record) if isinstance(record, CallRecord) else record)
    return encoded if encoded.isascii() and b"\x7f" not in encoded else _escape(encoded)


def encode_into(record: Line, line: bytearray) -> None:
    """The same in place of what `line` holds: no memory is taken anew for one that is as long."""
    try:
        _encode_into(record, line)
    except UnicodeEncodeError:
        line[:] = encode(record)
    if not line.isascii() or _DELETE in line:
        line[:] = _escape(bytes(line))


def encoded_text(value: str) -> bytes:
    """A text as it stands in a line, with its quotes."""
    return _escape(_encoder.encode(_encodable(value)))


def after_remains(line: bytes) -> bytes:
    """The record in a line that begins with the remains of another, or the line itself.

    In a record every quote is escaped but those of its own members, so that a second beginning
    can only be that of a second record.
    """
    return line[max(line.rfind(_BEGINNING), 0) :]


def line_hash(line: bytes) -> str:
    return sha256(line).hexdigest()


_UNSEEN = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf"
)


def _escape(encoded: bytes) -> bytes:
    """Some readers end a line at, obey or hide characters that JSON leaves alone."""
    return _UNSEEN.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), encoded)


def _plain(record: CallRecord) -> CallRecord:
    fields: dict[str, Any] = {
        name: _encodable(getattr(record, name)) for name in record.__struct_fields__
    }
    return CallRecord(**{**fields, "scope": None})


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value
