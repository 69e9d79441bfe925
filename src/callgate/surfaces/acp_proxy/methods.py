"""The methods that pass between an editor and the agent behind the proxy. Pure.

    editor -> agent   the requests and notifications of the protocol, and extensions (`_name`)
    agent -> editor   questions to the user, updates of known kinds, extensions that the settings
                      name; files, terminals and permissions are handled by the proxy itself

Every other message is refused, or dropped if it is a notification: an editor may perform what it
receives, and the gate would not have seen it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from callgate.core.text.wildcards import compile_tokens, parse_wildcards

EDITOR_REQUESTS = frozenset(
    (
        "authenticate", "logout", "auth/login", "auth/logout", "auth/status",
        "session/new", "session/load", "session/resume", "session/fork", "session/list",
        "session/close", "session/delete", "session/archive", "session/unarchive",
        "session/prompt", "session/set_mode", "session/set_config_option", "session/set_model",
        "session/set_title", "session/status",
        "providers/list", "providers/set", "providers/disable",
    )
)  # fmt: skip
"""Stable and unstable requests of editors. `mcp/message` is missing: the agent could call tools of
the editor with it, which the gate does not see."""
EDITOR_NOTIFICATIONS = frozenset({"session/cancel"})
AGENT_REQUESTS = frozenset({"elicitation/create"})
AGENT_NOTIFICATIONS = frozenset({"elicitation/complete", "auth/status_update"})
UPDATES = frozenset(
    (
        "user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call",
        "tool_call_update", "plan", "plan_update", "plan_removed", "available_commands_update",
        "current_mode_update", "config_option_update", "session_info_update", "usage_update",
        "notice", "compaction_update", "compaction_summary_chunk", "subagent_update",
        "session_message", "session_message_chunk",
    )
)  # fmt: skip
"""Kinds of `session/update` that change nothing but the view of their own session."""


def passes_from_editor(method: str, *, is_request: bool) -> bool:
    known = EDITOR_REQUESTS if is_request else EDITOR_NOTIFICATIONS
    return method in known or method.startswith("_")


def passes_from_agent(method: str, extensions: Iterable[str], *, is_request: bool) -> bool:
    """`extensions`: patterns of the extension methods that the settings let through."""
    if method in (AGENT_REQUESTS if is_request else AGENT_NOTIFICATIONS):
        return True
    if not method.startswith("_"):
        return False
    return any(compile_tokens(parse_wildcards(each))(method) for each in extensions)


def opens_program(params: Any) -> bool:
    """Whether an editor that opens the address of a question starts another program than a
    browser: `file:`, `vscode:` and the like."""
    url = params.get("url") if isinstance(params, dict) else None
    if url is None:
        return False
    return not isinstance(url, str) or not url.lower().startswith(("https://", "http://"))


def is_update(params: Any) -> bool:
    """Whether the parameters of `session/update` have a known kind and name their card, if any,
    as the protocol does."""
    update = params.get("update") if isinstance(params, dict) else None
    if not isinstance(update, dict) or update.get("sessionUpdate") not in UPDATES:
        return False
    is_card = update["sessionUpdate"] in ("tool_call", "tool_call_update")
    return isinstance(update.get("toolCallId"), str) if is_card else "toolCallId" not in update
