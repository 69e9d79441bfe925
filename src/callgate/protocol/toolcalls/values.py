"""What is read from a model's text: calls, complaints, notes, and the limits of all of them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

MAX_BYTES = 1024 * 1024
"""Of one reply."""
MAX_DEPTH = 64
MAX_ID = 128
"""Characters."""

OUTPUTS = frozenset({"send_chat", "say", "open_url", "end_turn"})
"""Types that show something or end the turn, whatever tools there are."""

VOICES = frozenset({"Kore", "Puck", "Charon", "Fenrir", "Aoede", "Leda", "Orus", "Zephyr"})
"""Names that a `say` may give; what each sounds like is for whoever speaks."""

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
"""Those that the format names."""

Rule = Literal[
    # what a document or a call is refused for
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
    # what a document is forgiven
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
    # what is filled in
    "id",
    "operation",
    "parameters",
    "priority",
]


class Note(msgspec.Struct, frozen=True):
    """A rule that was broken, and where; what that means is said by who holds the note."""

    rule: Rule
    message: str
    """Repeats next to nothing of the text."""
    at: int | None = None
    """Characters before it."""
    index: int | None = None
    """Of the call it is about: its place among all calls of the text, from 0."""


class FoundCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    """The model's own, unique in its reply. Not to be trusted: it may hold anything."""
    type: str
    operation: str
    parameters: dict[str, Any]
    priority: int | float = 0
    index: int = 0
    """Its place among all calls of the text, refused ones too."""
    repaired: bool = False
    """It was not in the form asked for, or all of its reply was not: its effects need approval."""


class ContentDelta(msgspec.Struct, frozen=True):
    """Text that became visible while a reply arrives. It shows; nothing runs for it."""

    index: int | None
    """Of the call whose text it is; None: words beside the documents."""
    text: str


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    calls: tuple[FoundCall, ...] = ()
    errors: tuple[Note, ...] = ()
    """One for each call or document that was refused."""
    diagnostics: tuple[Note, ...] = ()
    """What was forgiven."""
    repaired: bool = False
    """One of the calls is, or all of them."""
    truncated: bool = False
    """The text ended before its document did. The complete calls are there."""
    prose: bool = False
    """There is text that belongs to no document."""
    text: str = ""
    """That text, without what wraps the documents: to be shown, and never read for calls."""


def error_text(error: Note) -> str:
    """A complaint in the words of the format: to be shown, and told to the model."""
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
    """The wire's own spelling of it."""
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
