"""What a question shows, whichever surface shows it. Pure.

    arguments_text    every argument as it will run, whole; nothing stands in its place
    requester_text    who asks: what a surface knows, then what the client calls itself
    preview_heading   whose words the preview is: ours, or the tool's own

All three return untrusted text: a surface makes invisible characters visible and decides what
fits. What does not fit has a mark, and is opened before an answer allows anything.

    command = "make test"
    message:
        A text of more than one line, or one with quotes.
        Each of its lines is indented, so that none passes for another argument.
    retries = 3
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.core.calls import CallerKind
from callgate.dispatch.permission.confirmations import Confirmation

_INDENT = "    "
_LONGEST_VALUE = 80
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_HARD_TO_READ_QUOTED = re.compile(r'[\x00-\x1f"\\]')
_KINDS = {
    CallerKind.CLI: "command line",
    CallerKind.PLUGIN: "plugin",
    CallerKind.AGENT: "agent",
    CallerKind.LLM: "model",
    CallerKind.ACP: "editor",
    CallerKind.HTTP: "HTTP client",
    CallerKind.MCP: "MCP",
    CallerKind.LIBRARY: "program",
    CallerKind.RENDERER: "user interface",
    CallerKind.INTERNAL: "callgate itself",
}


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """All of them, unambiguous: different arguments have different texts."""
    return "\n".join(_argument(name, value) for name, value in arguments.items())


def _argument(name: str, value: Any) -> str:
    label = name if _PLAIN_NAME.match(name) else _json(name)
    if isinstance(value, str) and _HARD_TO_READ_QUOTED.search(value):
        return "\n".join([f"{label}:", *(_INDENT + line for line in value.split("\n"))])
    return f"{label} = {_json(value)}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _shortened(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 1] + "…"


def destinations_text(question: Confirmation) -> str:
    """What a narrow answer for the session covers, beside the tool."""
    shown = [_shortened(each.removesuffix("/")) for each in question.destinations]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def requester_text(question: Confirmation) -> str:
    """Who asks, in one line."""
    kind = "unknown" if question.caller is None else _KINDS[question.caller]
    facts = [kind if question.turn_id is None else f"{kind} in session {question.session_id}"]
    client = question.client
    if client is None:
        return facts[0]
    if client.process is not None:
        program = "" if client.program is None else f" ({os.path.basename(client.program)})"
        facts.append(f"process {client.process}{program}")
    if client.directory is not None:
        facts.append(f"in {client.directory}")
    if client.address is not None:
        facts.append(f"from {client.address}")
    if client.name is not None:
        facts.append(f"calls itself {_json(client.name)} (not checked)")
    return ", ".join(facts)


def preview_heading(question: Confirmation) -> str:
    if question.preview_is_ours:
        return "what callgate expects to change"
    return "in the tool's own words (not checked)"
