"""Parse a model's text into calls, and check each call separately.

    nothing to report   -> quick               -> Parsed
    JSON as requested   -> strict_json -> judge -> Parsed, with refused calls
    anything else       -> find, mend  -> judge -> Parsed, with notes on repairs

Never raises for the content of the text.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import msgspec

from callgate.protocol import strict_json
from callgate.protocol.toolcalls import find, mend
from callgate.protocol.toolcalls.find import (
    Outside,
    attempt_start,
    is_wrapped,
    pieces,
    problem,
    prose_between,
    unfenced,
)
from callgate.protocol.toolcalls.values import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ID,
    TYPES,
    Broken,
    Document,
    FoundCall,
    Note,
    Parsed,
    Rule,
)

_SHOWN = 64
_encode = msgspec.json.Encoder().encode


class Unfit(Exception):
    """An unacceptable call; `str(error)` has the reason."""


def judge(
    value: Any, types: Collection[str], index: int, *, strict: bool
) -> tuple[FoundCall, list[Note]]:
    """Convert a value to a call, with notes on added defaults. Raises `Unfit` if it is not one."""
    if type(value) is not dict:
        raise Unfit("a call is an object")
    filled: list[Note] = []
    if not strict and (named := _named(value)) is not None:
        filled.append(Note("named_call", "a call has a type and parameters", None, index))
        value = named
    kind = value.get("type")
    if type(kind) is not str:
        raise Unfit("type is missing" if "type" not in value else "type is not a text")
    if kind not in types:
        raise Unfit(f"there is no type {kind[:_SHOWN]!a}")
    call = FoundCall(
        id=_id(value, index, strict, filled),
        type=kind,
        operation=_operation(value, kind, index, strict, filled),
        parameters=_parameters(value, index, strict, filled),
        priority=_priority(value, index, strict, filled),
        index=index,
    )
    return call, filled


def looks_like_call(value: Any, *, named: bool) -> bool:
    """Whether a single object looks like a call; `named`: in any spelling."""
    if type(value) is not dict:
        return False
    is_ours = "type" in value and ("parameters" in value or "operation" in value)
    return is_ours or (named and _named(value) is not None)


def _named(value: dict[str, Any]) -> dict[str, Any] | None:
    """Convert a call in the native form of other models: `name` with `arguments` or `parameters`,
    alone or as `function`. None if it has another form."""
    inner = value
    if "type" in value:
        if value["type"] not in ("function", "function_call"):
            return None
        if type(value.get("function")) is dict:
            inner = value["function"]
    arguments = [key for key in ("arguments", "parameters") if key in inner]
    if type(inner.get("name")) is not str or len(arguments) != 1:
        return None
    others: dict[str, Any] = {
        key: value[key] for key in ("id", "operation", "priority") if key in value
    }
    return {**others, "type": inner["name"], "parameters": inner[arguments[0]]}


def _id(value: dict[str, Any], index: int, strict: bool, filled: list[Note]) -> str:
    given = value.get("id")
    if type(given) is str:
        if len(given) > MAX_ID:
            raise Unfit(f"id is longer than {MAX_ID} characters")
        return given
    if not strict and "id" not in value:
        filled.append(Note("id", "a call without an id received one", None, index))
        return f"auto_{index + 1}"
    if not strict and type(given) in (int, float):
        filled.append(Note("id", "a number was used as an id", None, index))
        written = _encode(given).decode()
        if len(written) <= MAX_ID:
            return written
    raise Unfit("id is missing" if "id" not in value else "id is not a text")


def _operation(
    value: dict[str, Any], kind: str, index: int, strict: bool, filled: list[Note]
) -> str:
    given = value.get("operation")
    if type(given) is str:
        return given
    if strict or "operation" in value:
        raise Unfit("operation is not a text" if "operation" in value else "operation is missing")
    filled.append(Note("operation", "a missing operation is the type", None, index))
    return kind


def _parameters(
    value: dict[str, Any], index: int, strict: bool, filled: list[Note]
) -> dict[str, Any]:
    given = value.get("parameters")
    if type(given) is dict:
        return given
    if not strict and given is None:
        filled.append(Note("parameters", "missing parameters are none", None, index))
        return {}
    if not strict and type(given) is str:
        try:
            # As text, the arguments were one level deep; as an object they are three levels deep.
            read = strict_json.loads(given, max_depth=MAX_DEPTH - 3)
        except strict_json.StrictJsonError:
            read = None
        if type(read) is dict:
            filled.append(Note("parameters", "parameters were JSON in a text", None, index))
            return read
    raise Unfit("parameters are not an object" if "parameters" in value else "no parameters")


def _priority(value: dict[str, Any], index: int, strict: bool, filled: list[Note]) -> int | float:
    given = value.get("priority", 0)
    if type(given) is int or type(given) is float:
        return given
    if given is None and not strict:
        filled.append(Note("priority", "a priority of null is 0", None, index))
        return 0
    raise Unfit("priority is not a number")


_KEY = "toolCalls"
_SHAPES: dict[Rule, str] = {
    "tool_calls": f"the list is called {_KEY}",
    "bare_list": f"the list belongs in an object, as {_KEY}",
    "single_call": f"a call belongs in a list, in an object, as {_KEY}",
}


def parse(
    text: str,
    *,
    strict: bool = False,
    types: Collection[str] = TYPES,
    max_bytes: int = MAX_BYTES,
) -> Parsed:
    """Parse the calls of one reply, with its errors.

    Args: |    strict: require the exact format; otherwise also accept text with one possible
    meaning. |    types: known types of calls; any other is refused.
    """
    if _is_too_long(text, max_bytes):
        return too_long(max_bytes)
    inner = unfenced(text)
    calls = find.read_quickly(inner, types)
    if calls is not None:
        return Parsed(calls=calls)
    try:
        value = strict_json.loads(inner, max_depth=MAX_DEPTH, max_bytes=max_bytes)
    except strict_json.StrictJsonError as error:
        return _refused(error, inner, text) if strict else _parse_tolerantly(text, types)
    if type(value) is not dict or type(value.get(_KEY)) is not list:
        if not strict:
            return _parse_tolerantly(text, types)
        return Parsed(errors=(Note("no_calls", f"there is no list {_KEY}"),))
    batch = _Batch(types, strict=strict)
    batch.add(value[_KEY], None)
    if batch.errors:  # again, by a slower reader that knows their positions
        document = mend.read(text, text.index(inner))
        batch = _Batch(types, strict=strict)
        batch.add(document.value[_KEY], document)
    return batch.parsed()


def too_long(max_bytes: int) -> Parsed:
    return Parsed(errors=(Note("size", f"at most {max_bytes} bytes are accepted"),))


def _is_too_long(text: str, max_bytes: int) -> bool:
    if len(text) * 4 <= max_bytes:
        return False
    return len(text) > max_bytes or len(text.encode(errors="surrogatepass")) > max_bytes


def _refused(error: strict_json.StrictJsonError, inner: str, text: str) -> Parsed:
    at = None
    if error.refusal == "syntax":
        try:
            json.loads(inner)
        except json.JSONDecodeError as described:
            at = text.index(inner) + described.pos
        except (ValueError, RecursionError):
            pass
    return Parsed(errors=(Note(error.refusal, str(error), at),))


def _parse_tolerantly(text: str, types: Collection[str], *, placed: bool = False) -> Parsed:
    batch = _Batch(types, strict=False)
    refused: Note | None = None
    documents = 0
    for piece in pieces(text, placed=placed):
        if isinstance(piece, Outside):
            batch.surrounded(piece)
        elif isinstance(piece, Broken):
            batch.refuse(problem(piece))
        elif piece.duplicate is not None:
            batch.refuse(Note("duplicate_key", "a key stands twice", piece.duplicate))
        elif batch.take(piece, wrapped=is_wrapped(text, piece.start)):
            documents += 1
            if documents == 2:
                batch.noted("several_documents", "only one document is allowed", piece.start)
        else:
            refused = refused or Note("no_calls", f"there is no list {_KEY}", piece.start)
            batch.surrounded(Outside(piece.start, piece.end, prose=piece.start))
    if not placed and any(error.at is None for error in batch.errors):
        return _parse_tolerantly(text, types, placed=True)
    if not documents and not batch.errors:
        broken = _broken_opening(text)
        batch.refuse(broken or refused or Note("no_calls", "there is no JSON object"))
    return batch.parsed(read=documents > 0, text=prose_between(text, batch.words()))


def _broken_opening(text: str) -> Note | None:
    """Return the error of a reply that begins as a document but is unreadable."""
    start = attempt_start(text)
    if start is None:
        return None
    try:
        mend.read(text, start)
    except Broken as broken:
        return problem(broken)
    return None


class _Batch:
    """All calls of one text, with unique ids and positions."""

    def __init__(self, types: Collection[str], *, strict: bool) -> None:
        self.types = types
        self.strict = strict
        self.calls: list[FoundCall] = []
        self.errors: list[Note] = []
        self.notes: list[Note] = []
        self.repaired = self.truncated = self.prose = False
        self._spans: list[tuple[int, int, bool]] = []
        """Text outside of documents of calls, and whether it contains words."""
        self._ended = False
        self._count = 0
        self._ids: set[str] = set()

    def take(self, document: Document, *, wrapped: bool) -> bool:
        """Add the calls of a document. Returns False if it is not about calls."""
        shape, calls = _shape(document, wrapped)
        if calls is None:
            return False
        if shape is not None:
            self.noted(shape, _SHAPES[shape], document.start)
        self.notes.extend(document.notes.values())
        if document.cut:
            self.truncated = True
            self.noted("truncated", "the text ends before its document does", document.end)
        elsewhere = document.mended.difference(map(id, calls))
        self.repaired |= bool(shape or document.cut or document.around or elsewhere)
        self.add(calls, document)
        return True

    def add(self, calls: list[Any], document: Document | None) -> None:
        mended = _mended(calls, document)
        for value in calls:
            index = self._count
            self._count += 1
            start = document.starts.get(id(value)) if document is not None else None
            if document and document.cut and start is None and type(value) in (dict, list):
                self.refuse(Note("cut", "the text ends before the call does", document.end, index))
                continue
            try:
                call, filled = judge(value, self.types, index, strict=self.strict)
            except Unfit as unfit:
                self.refuse(Note("call", str(unfit), start, index))
                continue
            if call.id in self._ids:
                self.refuse(Note("duplicate_id", "another call has this id", start, index))
                continue
            if call.type == "end_turn" and self._ended and not self.strict:
                self.refuse(Note("second_end", "the turn has an end already", start, index))
                continue
            self._ended |= call.type == "end_turn"
            self._ids.add(call.id)
            if filled or id(value) in mended:
                call = msgspec.structs.replace(call, repaired=True)
            self.calls.append(call)
            self.notes.extend(filled)

    def surrounded(self, outside: Outside) -> None:
        if outside.label is not None:
            self.noted("fence_label", "a fence is labelled json or not at all", outside.label)
        start, worded = outside.start, outside.prose is not None
        if self._spans and self._spans[-1][1] == start:
            start, _, before = self._spans.pop()
            worded |= before
        self._spans.append((start, outside.end, worded))
        if outside.prose is not None and not self.prose:
            self.prose = True
            self.noted("text_outside", "there is text outside the document", outside.prose)

    def words(self) -> list[tuple[int, int]]:
        return [(start, end) for start, end, worded in self._spans if worded]

    def refuse(self, error: Note) -> None:
        self.errors.append(error)

    def noted(self, rule: Rule, message: str, at: int) -> None:
        self.notes.append(Note(rule, message, at))

    def parsed(self, *, read: bool = True, text: str = "") -> Parsed:
        calls = self.calls
        if read and (self.repaired or self.prose):
            calls = [msgspec.structs.replace(call, repaired=True) for call in calls]
        return Parsed(
            calls=tuple(calls),
            errors=tuple(self.errors),
            diagnostics=tuple(self.notes),
            repaired=read and (self.repaired or self.prose or any(c.repaired for c in calls)),
            truncated=self.truncated,
            prose=self.prose,
            text=text,
        )


def _mended(calls: list[Any], document: Document | None) -> set[int]:
    """Return the identities of repaired calls, and of calls between two texts with other quotes:
    the first text may have ended too early, and the following calls may be part of it."""
    if document is None or not document.mended:
        return set()
    requoted = [at for at, value in enumerate(calls) if id(value) in document.requoted]
    between = calls[requoted[0] : requoted[-1]] if requoted else []
    return document.mended.union(map(id, between))


def _shape(document: Document, wrapped: bool) -> tuple[Rule | None, list[Any] | None]:
    """Return the calls of a document, and the rule that its shape violates.

    An object with a name and arguments is a call only in a fence or a tag: without one, it may
    have another meaning."""
    value = document.value
    if type(value) is dict:
        if type(value.get(_KEY)) is list:
            return None, value[_KEY]
        if _KEY not in value and type(value.get("tool_calls")) is list:
            return "tool_calls", value["tool_calls"]
        if not document.cut and looks_like_call(value, named=wrapped):
            return "single_call", [value]
    elif any(
        looks_like_call(each, named=wrapped) and (not document.cut or id(each) in document.starts)
        for each in value
    ):
        return "bare_list", value
    return None, None
