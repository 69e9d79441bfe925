"""Results of reading a model's text: calls, errors, notes, documents and their limits.

A document without errors is read here, by the fast reader.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NoReturn

import msgspec

from callgate.protocol import strict_json

MAX_BYTES = 1024 * 1024
"""Maximum bytes of one reply."""
MAX_DEPTH = 64
MAX_ID = 128
"""Maximum characters of an id."""

OUTPUTS = frozenset({"send_chat", "say", "open_url", "end_turn"})
"""Types with visible output, or that end the turn; independent of the tools."""

VOICES = frozenset({"Kore", "Puck", "Charon", "Fenrir", "Aoede", "Leda", "Orus", "Zephyr"})
"""Voice names for `say`; the speech engine maps them to voices."""

TYPES = OUTPUTS | frozenset(
    {
        "api_call",
        "custom",
        "file_get",
        "file_ingest",
        "file_put",
        "file_upload",
        "search",
        "terminal_execute",
        "web_search",
        "calendar_create",
        "calendar_delete",
        "calendar_events",
        "calendar_list",
        "calendar_update",
        "docs_append",
        "docs_create",
        "docs_read",
        "docs_replace",
        "drive_create",
        "drive_delete",
        "drive_list",
        "drive_read",
        "drive_search",
        "drive_update",
        "gmail_list",
        "gmail_read",
        "gmail_search",
        "gmail_send",
        "sheets_append",
        "sheets_clear",
        "sheets_create",
        "sheets_read",
        "sheets_write",
        "tasks_complete",
        "tasks_create",
        "tasks_delete",
        "tasks_get",
        "tasks_list",
        "tasks_update",
    }
)
"""Codes that the format names."""

Rule = Literal[
    # reasons to refuse a document or a call
    "size",
    "syntax",
    "encoding",
    "number",
    "depth",
    "keys",
    "duplicate_key",
    "no_calls",
    "cut",
    "call",
    "duplicate_id",
    "second_end",
    # repairs of a document
    "text_outside",
    "fence_label",
    "several_documents",
    "truncated",
    "bare_list",
    "single_call",
    "named_call",
    "tool_calls",
    "comma",
    "comment",
    "quotes",
    "bare_key",
    "equals_sign",
    "python_literal",
    "control_character",
    "escape",
    "surrogate",
    "space",
    # added defaults
    "id",
    "operation",
    "parameters",
    "priority",
]


class Note(msgspec.Struct, frozen=True):
    """A violated rule, with its position; the receiver of the note decides its effect."""

    rule: Rule
    message: str
    """Repeats at most a few characters of the text."""
    at: int | None = None
    """Characters before it."""
    index: int | None = None
    """Index of the call among all calls of the text, from 0."""


class FoundCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    """The model's own id, unique in its reply. Untrusted: it may contain any text."""
    type: str
    operation: str
    parameters: dict[str, Any]
    priority: int | float = 0
    index: int = 0
    """Position among all calls of the text, including refused ones."""
    repaired: bool = False
    """Whether the call or its reply was not in the required form: its effects need approval."""


class ContentDelta(msgspec.Struct, frozen=True):
    """Text that becomes visible while a reply arrives. It never causes a call."""

    index: int | None
    """Index of the call with this text; None: words outside the documents."""
    text: str


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    calls: tuple[FoundCall, ...] = ()
    errors: tuple[Note, ...] = ()
    """One for each refused call or document."""
    diagnostics: tuple[Note, ...] = ()
    """The repairs."""
    repaired: bool = False
    """One of the calls is, or all of them."""
    truncated: bool = False
    """Whether the text ended before its document. The complete calls are included."""
    prose: bool = False
    """Whether there is text outside of the documents."""
    text: str = ""
    """That text, without wrappers of the documents: visible to the user, and never parsed."""


def error_text(error: Note) -> str:
    """Describe an error in terms of the format, for the user and the model."""
    about_call = error.rule in ("call", "duplicate_id", "second_end", "cut")
    head = "Invalid tool call" if about_call else "Failed to parse JSON"
    return f"{head}: {error.message}{_location(error)}"


def _location(note: Note) -> str:
    locations = []
    if note.index is not None:
        locations.append(f"call {note.index + 1}")
    if note.at is not None:
        locations.append(f"character {note.at}")
    return f" ({', '.join(locations)})" if locations else ""


def note_text(note: Note) -> str:
    return f"{note.rule}: {note.message}{_location(note)}"


def to_json(parsed: Parsed) -> dict[str, Any]:
    """Return the result in the spelling of the wire."""
    return {
        "toolCalls": [
            {
                "id": call.id,
                "type": call.type,
                "operation": call.operation,
                "parameters": call.parameters,
                "priority": call.priority,
            }
            for call in parsed.calls
        ],
        "parseErrors": [error_text(error) for error in parsed.errors],
        "diagnostics": [
            {"rule": note.rule, "message": note.message, "at": note.at, "call": note.index}
            for note in (*parsed.errors, *parsed.diagnostics)
        ],
        "repaired": parsed.repaired,
        "truncated": parsed.truncated,
    }


class Broken(Exception):
    """Unreadable text. `at` is the position at which reading stopped."""

    def __init__(self, rule: Rule, message: str, at: int, *, begun: bool, depth: int) -> None:
        super().__init__(message)
        self.rule = rule
        self.at = at
        self.begun = begun
        """Whether a part was read as JSON, so that it is not just a bracket in prose."""
        self.depth = depth
        """Number of open brackets."""


class Document:
    """A document. Mutable only while it is read."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.value: Any = None
        self.notes: dict[Rule, Note] = {}
        """The first note of each rule."""
        self.starts: dict[int, int] = {}
        """Start of each closed container near the top level, by its identity."""
        self.mended: set[int] = set()
        """Identities of the calls with repairs."""
        self.requoted: set[int] = set()
        """Containers in which a text has other quotes: its end may be a guess."""
        self.around = False
        """Whether there was a repair outside of all calls."""
        self.cut = False
        self.duplicate: int | None = None
        """Position of a duplicate key."""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_extent = json.JSONDecoder(parse_constant=_no_constant).raw_decode


class Shortcut:
    """The parts of one text that need no repair, at any position.

    A failed attempt takes time proportional to the whole text, so only a few failures are allowed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._failures_left = 16

    def read(self, start: int, max_depth: int = MAX_DEPTH) -> tuple[Any, int] | None:
        """Return the value that begins here, and its end."""
        if not self._failures_left:
            return None
        try:
            _, end = _extent(self.text, start)
            return strict_json.loads(self.text[start:end], max_depth=max_depth), end
        except (ValueError, RecursionError):
            self._failures_left -= 1
            return None
