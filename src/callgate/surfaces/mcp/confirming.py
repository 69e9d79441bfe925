"""A question about a call as a form that an MCP client shows, and its answer.

It holds all of the arguments, or the call is refused. Everything that a tool, a model or a file
brought is shown with its invisible characters made visible. A client that closes the form without
an answer has said no.
"""

from __future__ import annotations

from collections.abc import Mapping

import mcp_types as types

from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.dispatch.permission.presentation import preview_heading, requester_text
from callgate.policy.rules import Outcome
from callgate.sessions.markdown import visible_lines
from callgate.surfaces.whole_arguments import whole_arguments

_LONGEST = 4_000
"""Characters of a preview."""
_CHOICES: Mapping[str, Answer] = {
    "Allow once": Answer(decision=Outcome.ALLOW, by="mcp"),
    "Allow this tool for the rest of the session": Answer(
        decision=Outcome.ALLOW, scope=Scope.SESSION, by="mcp"
    ),
    "Deny": Answer(decision=Outcome.DENY, by="mcp"),
}


def form(question: Confirmation) -> types.ElicitRequest:
    decision = {"type": "string", "title": "Decision", "enum": list(_CHOICES)}
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(
            message=_message(question),
            requested_schema={
                "type": "object",
                "properties": {"decision": decision},
                "required": ["decision"],
            },
        )
    )


def read(response: object) -> Answer:
    if (
        isinstance(response, types.ElicitResult)
        and response.action == "accept"
        and response.content
    ):
        word = response.content.get("decision")
        if isinstance(word, str) and word in _CHOICES:
            return _CHOICES[word]
    return Answer(decision=Outcome.DENY, by="mcp", reason="The question was dismissed.")


def _message(question: Confirmation) -> str:
    effect = f"{question.side_effects}{', destructive' if question.destructive else ''}"
    paragraphs = [
        f"May {question.tool} run ({effect})?",
        _shown(question.why),
        f"In: {_shown(question.workspace)}",
        f"Asked by: {_shown(requester_text(question))}",
        f"Arguments:\n{whole_arguments(question) or 'none'}",
    ]
    if question.sandbox is not None:
        paragraphs.append(f"Runs in: {_shown(question.sandbox)}")
    if question.preview:
        paragraphs.append(f"Preview, {preview_heading(question)}:\n{_shown(question.preview)}")
    return "\n\n".join(paragraphs)


def _shown(text: str) -> str:
    shown = visible_lines(text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}\n[{len(shown):,} characters]"
