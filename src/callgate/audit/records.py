"""Records of the audit log and the files that hold them.

A record is one ended call: one redacted line of JSON, part of a hash chain.

    audit.jsonl            the current file
    audit.000012.jsonl     closed, newest first ... down to the oldest retained file
    audit.000012.index     index of its lines (`indexes`); may be missing
    audit.lock             shared by all writers; exclusive while one writer opens the log alone

A file has its number from the beginning: the current file has the next number after the closed
ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, BinaryIO

import msgspec

from callgate.core.errors import ToolErrorClass
from callgate.core.events import COMPLETED, FAILED, INPUT_INVALID

_encoder = msgspec.json.Encoder()
_encode_into = _encoder.encode_into
_DELETE = 0x7F
_BEGINNING = b'{"id":"'


class CallRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line of the log, as written and read. The creator of a record redacts its texts."""

    id: str
    ts: int
    """Milliseconds since 1970."""
    caller: str
    principal: str = ""
    """The principal that made the call."""
    tool: str
    decision: str
    """`deny` if policy, a person or a missing answer refused the call, else `allow`."""
    call_id: str
    session: str
    cwd: str
    args: str
    """Summary of the arguments."""
    args_hash: str | None = None
    result: str = ""
    """Beginning of the result that the caller received."""
    ms: float = 0.0
    """Duration of the work, or of the checks if it did not run; without the wait for people."""
    waited_ms: float = 0.0
    """Time that the call waited for answers of people; not part of `ms`."""
    error_class: str | None = None
    reason: str | None = None
    side_effects: str | None = None
    capabilities: tuple[str, ...] = ()
    source: str | None = None
    policy: str | None = None
    """Rule or default that decided, with its location."""
    provenance: tuple[str, ...] = ()
    """Sources of the destinations, one line each."""
    confirmation_id: str | None = None
    answered_by: str | None = None
    sandbox: str | None = None
    """The sandbox of its commands, also if they did not run."""
    changed: int = 0
    """Number of files that it changed, as far as callgate observed them."""
    turn_id: str | None = None
    client: str | None = None
    """Name of the program behind the caller, possibly as it reported it."""
    external_id: str | None = None
    scope: Mapping[str, str] | None = None
    called: str | None = None
    """Id of the event that started the call. With `id`, the events can be rebuilt from this record.
    """
    tool_use_id: str | None = None
    """The id in its events, if that differs from `call_id`."""
    end: str | None = None
    """The type of the event with which it ended, if `error_class` does not determine it."""
    trace: str | None = None
    """The `traceparent` of its caller, if telemetry is on."""
    chain: str = ""
    n: int = 0
    """Its number in its chain, from 1; set by the log, like the fields around it."""
    prev: str = ""
    """Hash of the previous line in the chain; for the first one, of the last line in the file."""
    seen: str = ""
    """Hash of the last line in the file, if another process wrote it."""
    file: int = 0
    """On a chain's first line in a file: the number of that file ..."""
    file_before: int = 0
    """... and of the file with the line before it; 0 for the first of all."""
    kept_from: int = 0
    """Lowest file number that remains; files with lower numbers were deleted."""
    dropped_last: str = ""
    """The hash of the last line in the newest deleted file."""
    signature: str = ""
    """Signature of the two fields above, with the key of the log."""


class DropMark(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Line without a call that names, in its chain, the files that were deleted for their age.

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
    """Encode the line of a record, without the newline."""
    try:
        encoded = _encoder.encode(record)
    except UnicodeEncodeError:  # lone surrogates are written as the escapes they came from
        encoded = _encoder.encode(_plain(record) if isinstance(record, CallRecord) else record)
    return encoded if encoded.isascii() and b"\x7f" not in encoded else _escape(encoded)


def encode_into(record: Line, line: bytearray) -> None:
    """Encode a record into `line`, whose memory is reused if it is long enough."""
    try:
        _encode_into(record, line)
    except UnicodeEncodeError:
        line[:] = encode(record)
    if not line.isascii() or _DELETE in line:
        line[:] = _escape(bytes(line))


def encoded_text(value: str) -> bytes:
    """Encode a text as in a line, with its quotes."""
    return _escape(_encoder.encode(_encodable(value)))


def after_remains(line: bytes) -> bytes:
    """Return the record in a line that begins with an incomplete other one, or the line itself.

    A record escapes every quote except those of its own members, so a second beginning can only be
    that of a second record.
    """
    return line[max(line.rfind(_BEGINNING), 0) :]


def line_hash(line: bytes) -> str:
    return sha256(line).hexdigest()


_UNSEEN = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf"
)


def _escape(encoded: bytes) -> bytes:
    """Escape characters that some readers interpret or hide, and JSON does not escape."""
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


_CLOSED = re.compile(r"\.(\d{6,})\.jsonl\Z")
_TIME = re.compile(rb'\A\{"id":"[^"\\]*","ts":(\d{1,15})[,}]')
_LONGEST_LINE = 1024 * 1024


def closed_segments(path: str) -> list[str]:
    """Return the closed files of a log, oldest first."""
    directory, name = os.path.split(path)
    stem = name.removesuffix(".jsonl")
    try:
        names = os.listdir(directory or ".")
    except FileNotFoundError:
        return []
    found = [
        (int(number[1]), each)
        for each in names
        if each.startswith(stem + ".")
        and (number := _CLOSED.search(each)) is not None
        and each == f"{stem}.{number[1]}.jsonl"
    ]
    return [os.path.join(directory, each) for _, each in sorted(found)]


def all_segments(path: str) -> list[str]:
    """Return every file of a log, oldest first."""
    return closed_segments(path) + ([path] if os.path.exists(path) else [])


def open_segments(path: str) -> Iterator[tuple[str, int, BinaryIO]]:
    """Yield every file of a log with its number, oldest first, opened while the caller reads it.

    The list is complete although the log changes: the current file may be closed under a number,
    and old files may be deleted, before their turn.
    """
    last = 0
    while True:
        for segment in closed_segments(path):
            if number_of(segment) > last:
                last = number_of(segment)
                try:
                    file = open(segment, "rb")  # noqa: SIM115  # closed below
                except FileNotFoundError:  # deleted since the list was read
                    continue
                with file:
                    yield segment, last, file
        try:
            file = open(path, "rb")  # noqa: SIM115  # closed below
        except FileNotFoundError:  # there is none, or it is being closed
            if _newest(path) > last:
                continue
            return
        with file:
            if _newest(path) > last:
                continue
            yield path, last + 1, file
            return


def _newest(path: str) -> int:
    return max(map(number_of, closed_segments(path)), default=0)


def number_of(segment: str) -> int:
    """Return the number of a closed file."""
    number = _CLOSED.search(segment)
    assert number is not None, segment
    return int(number[1])


def segment_path(path: str, number: int) -> str:
    """Return the name of a closed file."""
    return f"{path.removesuffix('.jsonl')}.{number:06d}.jsonl"


def index_path(segment: str) -> str:
    """Return the path of the index of a closed file."""
    return segment.removesuffix(".jsonl") + ".index"


def first_time(segment: str) -> int:
    """Return the time of the first line of a file in milliseconds since 1970; 0 if unreadable."""
    try:
        with open(segment, "rb") as file:
            return _time_in(file.readline(_LONGEST_LINE))
    except OSError:
        return 0


def last_time(segment: str) -> int:
    """Return the time of the last line, or of the file if that line is not a record."""
    with open(segment, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LONGEST_LINE))
        lines = file.read().splitlines()
        changed = int(os.fstat(file.fileno()).st_mtime * 1000)
    return (_time_in(lines[-1]) if lines else 0) or changed


def _time_in(line: bytes) -> int:
    found = _TIME.search(line)
    return int(found[1]) if found is not None else 0


def lock_path(path: str) -> str:
    return path.removesuffix(".jsonl") + ".lock"


def old_segments(path: str, before_ms: int) -> dict[str, int]:
    """Return the closed files with only older lines, and their sizes; the oldest first."""
    found: dict[str, int] = {}
    for segment in closed_segments(path):
        try:
            size = os.stat(segment).st_size
            if size and last_time(segment) >= before_ms:
                break
        except FileNotFoundError:  # deleted since the list was read
            continue
        if size:
            found[segment] = size
    return found
