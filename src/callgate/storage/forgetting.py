"""What is kept of a question once its call has ended: that it was asked, not with what.

The store looks inside a question for this alone. What the call did is in its events and in the
audit log, redacted; here the arguments, and whatever was made of them to be shown, are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from callgate.core.stored import ConfirmationState, StoredConfirmation

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
"""Of an answer: what was to run instead, and words that were told to the agent."""


def forget_arguments(confirmation: StoredConfirmation) -> StoredConfirmation:
    """Idempotent."""
    answer = confirmation.answer
    return replace(
        confirmation,
        question=_change(confirmation.question, "question", _emptied),
        answer=None if answer is None else _change(answer, "answer", _without),
    )


def is_forgotten(confirmation: StoredConfirmation | None) -> bool:
    """Whether this was done to a question that is kept."""
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
"""The same for a file that was written before this was done."""
