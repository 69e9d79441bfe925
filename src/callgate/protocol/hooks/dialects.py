"""How each agent's hook speaks: reading its events, and writing answers that it understands.

What an agent makes of an answer was found by running it. No answer is safe everywhere:

    claude     {} is no decision; every answer to a question names a decision
    codex      an unknown field, an empty reason, or `ask` voids the answer: the call runs
    gemini     only `decision: deny` blocks; `ask` hangs where nobody is at the terminal
    qwen       as claude; changed input is not applied
    kimi       as claude; `ask` runs, `decision: block` runs
    vibe       only `decision: deny` with exit 0 blocks; `ask` runs
    cursor     as published: `permission`, no `ask` from us
    opencode   through our own plugin, which throws unless it reads `allow`

So no agent is ever answered `ask`: callgate asks the approver while the hook waits. A call that
the agent checks itself (a skill, the end of plan mode) gets no decision: Claude Code and Qwen Code
skip their own question after an `allow`. Codex, Kimi Code, Vibe and opencode ask it in any case;
Cursor has no such answer, so callgate alone decides there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from callgate.protocol import strict_json
from callgate.protocol.hooks.events import BadHookEvent, HookEvent, HookPhase, Verdict

MAX_EVENT = 32 * 1024 * 1024
LONGEST_REASON = 2_000
"""Characters: an answer fits into one write to a pipe."""
NO_REASON = "callgate refused this call."
_LONGEST_ID = 256
_LONGEST_OUTPUT = 4_000
_BEFORE = ("PreToolUse", "BeforeTool", "pre_tool", "preToolUse", "tool.execute.before")
_AFTER = (
    "PostToolUse", "PostToolUseFailure", "AfterTool", "post_tool", "postToolUse",
    "postToolUseFailure", "tool.execute.after",
)  # fmt: skip


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between agents."""

    allow: Callable[[Verdict], dict[str, Any] | None]
    """None: the answer is no output at all."""
    deny: Callable[[str], dict[str, Any]]
    undecided: bytes | None = None
    """The answer that leaves the call to the agent's own checks; None: `allow` skips none of them,
    or the agent has no such answer."""
    rewrites: bool = False
    """It runs the input that the answer names in place of its own."""
    noted: bytes = b"{}"
    """What is answered after a call."""


def _claude_allow(verdict: Verdict) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "allow",
        "permissionDecisionReason": "allowed by callgate",
    }
    if verdict.updated_input is not None:
        answer["updatedInput"] = dict(verdict.updated_input)
    return {"hookSpecificOutput": answer}


def _claude_deny(reason: str) -> dict[str, Any]:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }
    }


def _codex_allow(verdict: Verdict) -> dict[str, Any] | None:
    if verdict.updated_input is None:
        return None  # a plain "allow" counts as a failure of the hook
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "allow",
            "updatedInput": dict(verdict.updated_input),
        }
    }


def _decision_allow(verdict: Verdict) -> dict[str, Any]:
    if verdict.updated_input is None:
        return {"decision": "allow"}
    changed = {"tool_input": dict(verdict.updated_input)}
    return {"decision": "allow", "hookSpecificOutput": changed}


def _decision_deny(reason: str) -> dict[str, Any]:
    return {"decision": "deny", "reason": reason}


def _cursor_deny(reason: str) -> dict[str, Any]:
    return {"permission": "deny", "user_message": reason, "agent_message": reason}


DIALECTS: Mapping[str, Dialect] = {
    "claude": Dialect(allow=_claude_allow, deny=_claude_deny, undecided=b"{}", rewrites=True),
    "codex": Dialect(allow=_codex_allow, deny=_claude_deny, rewrites=True, noted=b""),
    "gemini": Dialect(allow=_decision_allow, deny=_decision_deny, undecided=b"{}", rewrites=True),
    "qwen": Dialect(allow=_claude_allow, deny=_claude_deny, undecided=b"{}"),
    "kimi": Dialect(allow=lambda _: None, deny=_claude_deny, noted=b""),
    "vibe": Dialect(allow=lambda _: None, deny=_decision_deny, noted=b""),
    "cursor": Dialect(allow=lambda _: {"permission": "allow"}, deny=_cursor_deny),
    "opencode": Dialect(allow=lambda _: {"decision": "allow"}, deny=_decision_deny),
}


def write(agent: str, verdict: Verdict) -> bytes:
    """The answer to an event before a call."""
    dialect = DIALECTS[agent]
    if not verdict.allowed:
        return refusal(agent, verdict.reason)
    if verdict.updated_input is not None and not dialect.rewrites:
        raise ValueError(f"{agent} does not run what an answer names")
    if verdict.undecided and dialect.undecided is not None:
        return dialect.undecided
    answer = dialect.allow(verdict)
    return b"" if answer is None else _encoded(answer)


def refusal(agent: str, reason: str) -> bytes:
    """The answer that keeps a call from running."""
    reason = " ".join(reason.split())[:LONGEST_REASON] or NO_REASON
    return _encoded(DIALECTS[agent].deny(reason))


def noted(agent: str) -> bytes:
    """The answer to an event after a call."""
    return DIALECTS[agent].noted


def _encoded(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()  # ASCII: no reader's encoding matters


def read(agent: str, data: bytes) -> HookEvent:
    """What a hook of this agent reports. Raises `BadHookEvent`."""
    try:
        event = strict_json.loads(data, max_bytes=MAX_EVENT)
    except strict_json.StrictJsonError as error:
        raise BadHookEvent(f"The event of the hook is not JSON that is taken: {error}.") from None
    if not isinstance(event, dict):
        raise BadHookEvent("The event of the hook is not a JSON object.")
    name = _text(event, "hook_event_name")
    if name in _BEFORE:
        phase = HookPhase.BEFORE
    elif name in _AFTER:
        phase = HookPhase.AFTER
    else:
        raise BadHookEvent(f"callgate does not know the event {name[:80]!r} of {agent}.")
    is_cursor = "cursor_version" in event
    session = event.get("session_id", event.get("conversation_id"))
    if not isinstance(session, str) or not 0 < len(session) <= _LONGEST_ID:
        raise BadHookEvent("The event of the hook names no session.")
    input = event.get("tool_input", {})
    if not isinstance(input, dict):
        raise BadHookEvent("The event's tool_input is not an object.")
    return HookEvent(
        phase=phase,
        session=session,
        cwd=_directory(event),
        tool=_text(event, "tool_name"),
        input=input,
        use_id=_use_id(event),
        failed=_has_failed(name, event),
        output=_output(event) if phase is HookPhase.AFTER else None,
        permission_mode=_permission_mode(event),
        relayed=is_cursor and agent != "cursor",
    )


def _text(event: dict[str, Any], key: str) -> str:
    value = event.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_ID:
        raise BadHookEvent(f"The event of the hook has no {key}.")
    return value


def _permission_mode(event: dict[str, Any]) -> str | None:
    mode = event.get("permission_mode")
    return mode if isinstance(mode, str) and len(mode) <= _LONGEST_ID else None


def _directory(event: dict[str, Any]) -> str | None:
    cwd = event.get("cwd")
    if not cwd and isinstance(roots := event.get("workspace_roots"), list) and roots:
        cwd = roots[0]
    if cwd is not None and not isinstance(cwd, str):
        raise BadHookEvent("The event's cwd is not a text.")
    return cwd or None


def _use_id(event: dict[str, Any]) -> str | None:
    for key in ("tool_call_id", "tool_use_id"):  # of an agent that has both, both events have one
        value = event.get(key)
        if isinstance(value, str) and 0 < len(value) <= _LONGEST_ID:
            return value
    return None


def _has_failed(name: str, event: dict[str, Any]) -> bool:
    status = event.get("tool_status")
    return (
        name.endswith("Failure") or bool(event.get("tool_error")) or status in ("error", "failed")
    )


def _output(event: dict[str, Any]) -> str | None:
    for key in ("tool_output_text", "tool_response", "tool_output", "error"):
        value = event.get(key)
        if value is None:
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        return text[:_LONGEST_OUTPUT]
    return None
