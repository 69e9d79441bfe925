"""Documents in a model's text, and the prose around them, complete or while it arrives.

Space, fences, tags around calls and a last semicolon may surround a document; everything else is
prose. Text in quotation marks is a quotation, never a document. A bracket in prose is skipped; but
after an unreadable document of calls nothing more is read, because its end would be a guess, and
the following text may be part of it.

A fence or tag that only wraps a document is not prose; a fenced example in an answer is. `Prose`
returns a prefix of the text that `said` returns: up to the first character that could begin a
document, a fence or a tag, because its meaning depends on later text.

`read_quickly` reads a document in exactly the documented form in one pass, which covers most
replies. The full reader handles all other documents. It finds the same calls and reports errors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from types import GenericAlias
from typing import Annotated, Any, NamedTuple

import msgspec

from callgate.protocol.strict_json import MAX_DIGITS, MAX_KEYS
from callgate.protocol.toolcalls.mend import read
from callgate.protocol.toolcalls.values import MAX_ID, Broken, Document, FoundCall, Note, Shortcut

_TAG = r"</?(?:tool_?calls?|function_?calls?|json)>"
WRAPPING = re.compile(
    rf"[\s\ufeff]+|;|(?<!`)```(?!`)(?P<label>[A-Za-z0-9_+-]*)|{_TAG}", re.IGNORECASE
)
"""Text that may surround a document without meaning."""
_CLOSING = re.compile(rf"(?:{WRAPPING.pattern.replace('P<label>', ':')})*", re.IGNORECASE)
_PROSE_END = re.compile(
    rf"(?:(?<!`)(?P<fence>```)(?!`)[A-Za-z0-9_+-]{{0,32}}|{_TAG})\Z", re.IGNORECASE
)
_LONGEST = 36
_SPACE = re.compile(r"[\s\ufeff]*")
_DOUBTFUL = re.compile(r"[{\[`<]")
_NOT_FIRST = frozenset("{[`<;")


def prose_between(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return the prose between documents, without the wrappers of the documents."""
    passages = [_unwrapped(text[start:end], start > 0, end < len(text)) for start, end in spans]
    return "\n".join(part for part in passages if part)


def _unwrapped(part: str, follows: bool, precedes: bool) -> str:
    """Return one stretch of prose, which may follow a document and precede one."""
    start = (_CLOSING if follows else _SPACE).match(part)
    assert start is not None
    part = part[start.end() :].rstrip()
    for _ in range(2 if precedes else 0):  # a tag and a fence
        opening = _PROSE_END.search(part, max(len(part) - _LONGEST, 0))
        # The second of two fences closes the first, and opens none.
        if opening is None or (opening["fence"] and part.count("```") % 2 == 0):
            break
        part = part[: opening.start()].rstrip()
    return part


class Prose:
    """The prose at the beginning of a reply, as it arrives."""

    def __init__(self) -> None:
        self.over = False
        """Whether the following text may be something other than prose."""
        self._begun = False
        self._space: list[str] = []
        """Blanks that become visible only before more text."""

    def feed(self, piece: str) -> str:
        """Add the next piece of the reply. Returns the prose that becomes visible."""
        doubt = _DOUBTFUL.search(piece)
        if doubt is not None:
            self.over = True
            piece = piece[: doubt.start()]
        if not self._begun:
            space = _SPACE.match(piece)
            assert space is not None
            piece = piece[space.end() :]
            if not piece:
                return ""
            self._begun = True
            if piece[0] in _NOT_FIRST:
                self.over = True
                return ""
        words = piece.rstrip()
        if not words:
            self._space.append(piece)
            return ""
        shown = "".join(self._space) + words
        self._space = [piece[len(words) :]]
        return shown


# A bracket that JSON, or tolerated text, can follow; most brackets in prose cannot.
_OPENING = re.compile(
    r"""\{(?=[\s\ufeff]*(?:["'“‘}A-Za-z_$/#,`]|\Z))"""
    r"""|\[(?=[\s\ufeff]*(?:["'“‘\]{\[0-9tfnNTFI/#,`-]|\Z))"""
)
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|\\.|[\[{]|[\]}]', re.DOTALL)
_START = re.compile(
    r"""\{[\s\ufeff]*(?:["'“‘}]|[A-Za-z_$][\w$-]*[\s\ufeff]*[:=])|\[[\s\ufeff]*[{\]]"""
)
"""Possible beginnings of a JSON document."""
_CALL_TAG = re.compile(r"<(?:tool_?calls?|function_?calls?)>", re.IGNORECASE)
_WRAPPER = re.compile(rf"(?:```[A-Za-z0-9_+-]*|{_CALL_TAG.pattern})\s*\Z", re.IGNORECASE)
_NEAR = 64
_LABELS = ("", "json")
MOST_TRIES = 10_000
"""Maximum brackets that are examined; the text after them counts as prose."""
_QUOTES = "\"'“‘„«\\"
_MEANT = re.compile(r"tool_?calls", re.IGNORECASE)


class Outside(NamedTuple):
    """Text around the documents."""

    start: int
    end: int
    prose: int | None = None
    """Start of disallowed text."""
    label: int | None = None
    """Position of a fence label other than json."""


Piece = Document | Broken | Outside


def unfenced(text: str) -> str:
    """Return the text without its fence, by the rule of the format."""
    inner = text.strip().strip("\ufeff").strip()
    if inner.startswith("```json"):
        inner = inner[7:]
    elif inner.startswith("```"):
        inner = inner[3:]
    return inner.removesuffix("```").strip()


def document_start(text: str) -> int | None:
    """Return the start of a reply's document, readable or not: at its very beginning, or after a
    tag around calls. None for prose."""
    tag = _CALL_TAG.search(text)
    for start in (0, len(text) if tag is None else tag.end()):
        at = surroundings(text, start, len(text)).prose
        if at is not None and _START.match(text, at):
            return at
    return None


def attempt_start(text: str) -> int | None:
    """Return the start of a reply's document, even if no part of it is JSON: `{broken json`. A word
    in braces before more words is not a document."""
    start = document_start(text)
    if start is not None:
        return start
    opening = surroundings(text, 0, len(text))
    at = opening.prose
    if at is None or opening.label is not None or not text.startswith("{", at):
        return None
    is_last = surroundings(text, _skip(text, at, 0), len(text)).prose is None
    return at if is_last or _is_json_fenced(text) else None


def is_attempt(text: str) -> bool:
    """Whether a reply is an attempt at a document of calls: it begins as the format requires."""
    return _is_json_fenced(text) or attempt_start(text) is not None


def _is_json_fenced(text: str) -> bool:
    return text.strip().strip("\ufeff").strip().startswith("```json")


def is_wrapped(text: str, start: int) -> bool:
    """Whether a fence or a tag around calls is directly before the document."""
    return _WRAPPER.search(text[max(start - _NEAR, 0) : start]) is not None


def pieces(text: str, *, placed: bool) -> Iterator[Piece]:
    """Yield documents and the text between them, in order; refused documents are `Broken`.

    Args: |    placed: also find the positions of the calls in each document, which takes longer.
    """
    at = outside = tries = 0
    shortcut = Shortcut(text)
    while tries < MOST_TRIES and (opening := _OPENING.search(text, at)) is not None:
        tries += 1
        start = opening.start()
        if start and text[start - 1] in _QUOTES:
            at = _skip(text, start, 0)
            continue
        try:
            document = (None if placed else _clean(shortcut, start)) or read(text, start, shortcut)
        except Broken as broken:
            at = broken.at if not broken.begun else _skip(text, broken.at, broken.depth)
            at = max(at, start + 1)
            meant = broken.begun and _MEANT.search(text, start, at) is not None
            if meant or broken.rule == "depth":
                yield surroundings(text, outside, start)
                yield broken
                yield Outside(start, start, prose=start)
                return
            continue
        yield surroundings(text, outside, start)
        yield document
        at = outside = document.end
    yield surroundings(text, outside, len(text))


def _skip(text: str, at: int, depth: int) -> int:
    """Return the position after these open brackets are closed; the end of the text otherwise."""
    for found in _BRACKETS.finditer(text, at):
        bracket = found[0]
        if bracket in ("{", "["):
            depth += 1
        elif bracket in ("}", "]"):
            depth -= 1
            if depth <= 0:
                return found.end()
    return len(text)


def surroundings(text: str, start: int, end: int) -> Outside:
    label, at = None, start
    while at < end:
        allowed = WRAPPING.match(text, at, end)
        if allowed is None:
            return Outside(start, end, at, label)
        name = allowed["label"]
        if name is not None and name not in _LABELS and label is None:
            label = at
        at = allowed.end()
    return Outside(start, end, None, label)


def _clean(shortcut: Shortcut, start: int) -> Document | None:
    """Return the document that begins here if it needs no repair, which is the usual case."""
    clean = shortcut.read(start)
    if clean is None:
        return None
    document = Document(start)
    document.value, document.end = clean
    return document


def problem(broken: Broken) -> Note:
    return Note(broken.rule, str(broken), broken.at)


_USUAL_DEPTH = 5
"""Maximum nesting of a parameter; the full reader handles deeper ones, which may be valid."""
_LONG = 2048
"""Minimum length of a text that is skipped when colons are counted."""
_STEP = MAX_DIGITS // 8
_DIGITS = bytes(ord("0") if byte in b"0123456789" else 0 for byte in range(256))
_UNSET = msgspec.UNSET
_ESCAPED_COLON = re.compile(rb"\\u003")


def _nested(depth: int) -> Any:
    """Return a type of parameters with limited depth; msgspec refuses deeper values."""
    annotated: Any = Annotated
    few = msgspec.Meta(max_length=MAX_KEYS)
    plain: Any = type(None) | bool | int | float | str
    value = plain
    for _ in range(depth):
        members = annotated[GenericAlias(dict, (str, value)), few]
        value = plain | GenericAlias(list, value) | members
    return annotated[GenericAlias(dict, (str, value)), few]


class _Call(msgspec.Struct, omit_defaults=True, gc=False):
    id: Annotated[str, msgspec.Meta(max_length=MAX_ID)]
    type: str
    operation: str
    parameters: _nested(_USUAL_DEPTH)  # type: ignore[valid-type]
    priority: int | float | msgspec.UnsetType = _UNSET


class _Document(msgspec.Struct):
    calls: list[_Call] = msgspec.field(name="toolCalls")


class _RawCall(msgspec.Struct):
    parameters: dict[str, msgspec.Raw]


class _RawDocument(msgspec.Struct):
    calls: list[_RawCall] = msgspec.field(name="toolCalls")


_decode = msgspec.json.Decoder(_Document).decode
_decode_call = msgspec.json.Decoder(_Call).decode
_decode_raw = msgspec.json.Decoder(_RawDocument).decode
_encode = msgspec.json.Encoder().encode


def read_quickly(text: str, types: Collection[str]) -> tuple[FoundCall, ...] | None:
    """Return the calls of a text without any notes; None: the full reader is needed."""
    try:
        data = text.encode()
        calls = _decode(data).calls
    except (ValueError, RecursionError):
        return None
    kinds = [call.type for call in calls]
    ids = {call.id for call in calls}
    if len(ids) != len(calls) or kinds.count("end_turn") > 1:
        return None
    if not all(kind in types for kind in set(kinds)):
        return None
    data, shorter = _without_long_texts(data, calls)
    if not _is_plain(data, _encode(_Document(shorter))):
        return None
    return tuple(
        [
            FoundCall(
                id=call.id,
                type=call.type,
                operation=call.operation,
                parameters=call.parameters,
                priority=0 if call.priority is _UNSET else call.priority,
                index=index,
            )
            for index, call in enumerate(calls)
        ]
    )


def read_call(text: str, types: Collection[str], index: int) -> FoundCall | None:
    """Return one call without any notes; None: the full reader is needed."""
    try:
        data = text.encode()
        call = _decode_call(data)
    except (ValueError, RecursionError):
        return None
    if call.type not in types or not _is_plain(data, _encode(call)):
        return None
    return FoundCall(
        id=call.id,
        type=call.type,
        operation=call.operation,
        parameters=call.parameters,
        priority=0 if call.priority is _UNSET else call.priority,
        index=index,
    )


def _is_plain(data: bytes, written: bytes) -> bool:
    """Whether no key is a duplicate or unknown, and no number can be too long.

    A dropped member, duplicate or unknown, lost its colon; only an escaped colon could compensate
    for that.
    """
    if written.count(b":") != data.count(b":"):
        return False
    if b"\\" in data and _ESCAPED_COLON.search(data):
        return False
    # So many digits in a row would match eight times with steps of this length.
    return len(data) <= MAX_DIGITS or b"00000000" not in data[::_STEP].translate(_DIGITS)


def _without_long_texts(data: bytes, calls: list[_Call]) -> tuple[bytes, list[_Call]]:
    """Return both sides without long texts, which contain no members."""
    if len(data) < _LONG * (len(calls) + 1):
        return data, calls
    escapes = b"\\" in data
    raws: list[Any] = _decode_raw(data).calls if escapes else calls
    chunks: list[bytes] = []
    shorter: list[_Call] = []
    at = 0
    for call, raw in zip(calls, raws, strict=True):
        parameters = dict(call.parameters)
        for key, value in call.parameters.items():
            if type(value) is not str or len(value) < _LONG:
                continue
            as_written = bytes(raw.parameters[key]) if escapes else f'"{value}"'.encode()
            start = _find_text(data, as_written, at)
            if start is not None:
                chunks.append(data[at : start + 1])
                at = start + len(as_written) - 1
                parameters[key] = ""
        shorter.append(msgspec.structs.replace(call, parameters=parameters))
    chunks.append(data[at:])
    return b"".join(chunks), shorter


def _find_text(data: bytes, text: bytes, at: int) -> int | None:
    """Find a text with its quotation marks."""
    start = data.find(text[:64], at)
    # After a backslash it would not be the quotation mark that begins a text.
    if start < 1 or data[start - 1] == 0x5C or not data.startswith(text, start):
        return None
    return start
