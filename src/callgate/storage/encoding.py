"""Stored form of values: text and back, page cursors, and questions of ended calls.

A store saves the value at the moment of the commit and shares nothing with the caller, in every
engine. A lone surrogate, which no file can contain, is replaced. A cursor is opaque to clients: a
kind and a number as one word. After a call has ended, its question is stored without the arguments
and the texts derived from them; its events and the audit log have the redacted content.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from callgate.core.events import Event
from callgate.core.ops import Append, FinishCall, Op, PutBlob, StartCall
from callgate.core.stored import ConfirmationState, StoredConfirmation

S = TypeVar("S", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
_events = msgspec.json.Decoder(Event)

_HOLD_ONLY_EVENTS = frozenset({Append, StartCall, FinishCall, PutBlob})
"""Ops whose only mutable parts are their events."""


def encode(value: msgspec.Struct) -> str:
    """Encode as JSON. Raises `TypeError` for other values, such as an open file."""
    try:
        return _encoder.encode(value).decode()
    except UnicodeEncodeError:
        return _encoder.encode(_writable(msgspec.to_builtins(value))).decode()


def decode(text: str | bytes, kind: type[S]) -> S:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder.decode(text)  # type: ignore[no-any-return]


def decode_event(text: str) -> Event:
    return _events.decode(text)


def encode_ops(ops: Sequence[Op[Any]]) -> tuple[Sequence[Op[Any]], dict[str, str]]:
    """Return copies of the ops, and the encoded text of each event that they append, by id."""
    owned: list[Op[Any]] = []
    texts: dict[str, str] = {}
    for op in ops:
        events = op.recorded
        if events:
            texts.update(zip([event.id for event in events], encode_events(events), strict=True))
        owned.append(op if type(op) in _HOLD_ONLY_EVENTS else decode(encode(op), type(op)))
    return owned, texts


def encode_events(events: Sequence[Event]) -> list[str]:
    """Encode many values at once, each as `encode` does."""
    try:
        lines = _encoder.encode_lines(events).decode().split("\n")
    except UnicodeEncodeError:
        lines = []
    if len(lines) == len(events) + 1:  # JSON of a caller's own may have had lines
        lines.pop()
        return lines
    return [encode(event) for event in events]


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_writable(key): _writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(item) for item in value]
    return value


def check_page(after: int, limit: int) -> None:
    if after < 0 or limit < 1:
        raise ValueError("a page begins after 0 or more events and holds at least one")


def write_cursor(kind: str, number: int) -> str:
    return base64.urlsafe_b64encode(f"{kind}{number}".encode()).decode().rstrip("=")


def read_cursor(kind: str, text: str) -> int:
    """Read a cursor. Raises `ValueError` for text that `write_cursor` did not create."""
    try:
        decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        decoded = ""
    number = decoded[len(kind) :]
    if not decoded.startswith(kind) or not number.isdecimal() or len(number) > 18:
        raise ValueError(f"not a cursor: {text!r}")
    return int(number)


_EMPTIED: Mapping[str, Any] = {
    "arguments": {},
    "preview": None,
    "diffs": [],
    "command_summary": None,
    "why": "",
    "provenance": [],
    "provenance_lines": [],
    "destinations": [],
}
_DROPPED = ("arguments", "reason")
"""Fields of an answer that are dropped: replaced arguments, and the reason for the agent."""


def forget_arguments(confirmation: StoredConfirmation) -> StoredConfirmation:
    """Delete the arguments from a question. Idempotent."""
    answer = confirmation.answer
    return replace(
        confirmation,
        question=_change(confirmation.question, "question", _emptied),
        answer=None if answer is None else _change(answer, "answer", _without),
    )


def is_forgotten(confirmation: StoredConfirmation | None) -> bool:
    """Return whether the arguments of a stored question were deleted."""
    if confirmation is None or confirmation.state is ConfirmationState.PENDING:
        return False
    return forget_arguments(confirmation) == confirmation


def _change(outer: Mapping[str, Any], name: str, change: Any) -> Mapping[str, Any]:
    inner = outer.get(name)
    return {**outer, name: change(inner)} if isinstance(inner, Mapping) else outer


def _emptied(question: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _EMPTIED.get(name, value) for name, value in question.items()}


def _without(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in _DROPPED}


FORGET_ENDED = """
update confirmations set body = json_replace(
    json_remove(body, '$.answer.answer.arguments', '$.answer.answer.reason'),
    '$.question.question.arguments', json('{}'),
    '$.question.question.preview', null,
    '$.question.question.diffs', json('[]'),
    '$.question.question.command_summary', null,
    '$.question.question.why', ''
)
where json_valid(body) and not exists (
    select 1 from calls
    where calls.id = json_extract(confirmations.body, '$.call_id')
    and calls.state <> 'ended'
    and json_extract(calls.body, '$.confirmation') = confirmations.id
);
"""
"""SQL that deletes the arguments of ended questions in an older file."""
