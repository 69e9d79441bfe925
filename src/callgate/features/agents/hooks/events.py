"""Events of agents' hooks and answers to them, as the same values for every agent.

    bytes -> `read` -> HookEvent;     Verdict -> `write` -> bytes in the format of that agent

The facts about each agent are in `known`. The answer `ask` is not safe everywhere: it lets a call
run in Codex, Kimi Code and Vibe, and hangs in Gemini CLI without a person at the terminal.

callgate therefore never answers `ask`; it asks the approver while the hook waits. Some calls are
checked by the agent itself, such as a skill or the end of plan mode. They get no decision if
`allow` would skip the agent's own question. If the agent has no such answer, callgate decides.

An instance always refuses the harmless command of `callgate hook test`, without a question.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from callgate.features.agents.known import hooked, hooks_of
from callgate.protocol import strict_json


class HookPhase(StrEnum):
    BEFORE = "pre"
    """The agent wants to run a tool and waits for the answer."""
    AFTER = "post"
    """The agent has run a tool."""
    PROMPT = "prompt"
    """The user has written a message."""


class BadHookEvent(ValueError):
    """The event is invalid. `str(error)` is safe to show to the agent."""


class HookEvent(msgspec.Struct, frozen=True, kw_only=True):
    phase: HookPhase
    session: str
    """The agent's id of its conversation."""
    cwd: str | None
    tool: str = ""
    """The agent's name of the tool."""
    input: Mapping[str, Any] = {}
    words: str | None = None
    """The message of the user. None: another program or a model wrote it."""
    use_id: str | None = None
    """The agent's id of the call, or None."""
    failed: bool = False
    """After a call: whether it failed."""
    output: str | None = None
    """After a call: the text of its output."""
    permission_mode: str | None = None
    """The agent's own permission mode, if the event names it."""
    relayed: str = ""
    """The sending agent, if it is not the agent of this hook: some agents also run other agents'
    hooks."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    allowed: bool
    undecided: bool = False
    """Whether the agent's own checks decide: the answer skips none of them."""
    reason: str = ""
    """Reason of a refusal, for the model and the person."""
    updated_input: Mapping[str, Any] | None = None
    """Input to run in place of the original one, if the agent supports it."""


_PREFIX = "callgate-hook-test"
_COMMAND = re.compile(r"printf '%s-%s' callgate-hook-test [0-9a-f]{16}")
REFUSAL = "callgate hook test made this call, and callgate always refuses it: the hook works."
REASON = "hook_test"


def trial_command(word: str) -> str:
    """Return the command for a word of 16 hexadecimal digits. It does not contain its output."""
    return f"printf '%s-%s' {_PREFIX} {word}"


def trial_output(word: str) -> str:
    """Return the text that appears only if the command ran."""
    return f"{_PREFIX}-{word}"


def is_trial(input: Mapping[str, Any]) -> bool:
    """Return whether the input of an agent's tool is the command of a test."""
    command = input.get("command", input.get("cmd"))
    return isinstance(command, str) and _COMMAND.fullmatch(command) is not None


MAX_EVENT = 32 * 1024 * 1024
LONGEST_REASON = 2_000
"""Maximum length of a reason in characters: an answer fits into one write to a pipe."""
NO_REASON = "callgate refused this call."
_LONGEST_ID = 256
_LONGEST_OUTPUT = 64 * 1024
_BEFORE = ("PreToolUse", "BeforeTool", "pre_tool", "preToolUse", "tool.execute.before")
_AFTER = (
    "PostToolUse", "PostToolUseFailure", "AfterTool", "post_tool", "postToolUse",
    "postToolUseFailure", "tool.execute.after",
)  # fmt: skip
_PROMPT = (
    "UserPromptSubmit", "userPromptSubmitted", "BeforeAgent", "beforeSubmitPrompt", "chat.message",
)  # fmt: skip
_SUB_AGENT = ("agent_id", "agent_type", "subagent_type")
"""Members of an event from a sub-agent, whose prompt a model wrote."""
_ADDED = re.compile(
    r"<[a-z]+-[a-z-]+[\s/>]"  # such as <task-notification> and <system-reminder>
    r"|^--- Content from |^Content from @",
    re.MULTILINE,
)
"""The beginning of text that an agent adds to a prompt: notices, and the content of files."""


def write(agent: str, verdict: Verdict) -> bytes:
    """Return the answer to an event before a call."""
    dialect = hooks_of(agent).dialect
    if not verdict.allowed:
        return refusal(agent, verdict.reason)
    if verdict.updated_input is not None and not dialect.rewrites:
        raise ValueError(f"{agent} does not support a replaced input")
    if verdict.undecided and dialect.undecided is not None:
        return dialect.undecided
    answer = dialect.allow(verdict.updated_input)
    return b"" if answer is None else _encoded(answer)


def refusal(agent: str, reason: str) -> bytes:
    """Return the answer that refuses a call."""
    reason = " ".join(reason.split())[:LONGEST_REASON] or NO_REASON
    return _encoded(hooks_of(agent).dialect.deny(reason))


def heard(agent: str) -> bytes:
    """Return the answer to a prompt. The agent continues; nothing is added to the conversation."""
    return hooks_of(agent).dialect.heard


def noted(agent: str) -> bytes:
    """Return the answer to an event after a call."""
    return hooks_of(agent).dialect.noted


def _encoded(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()  # ASCII, so the reader's encoding does not matter


def read(agent: str, data: bytes) -> HookEvent:
    """Read an event of this agent's hook. Raises `BadHookEvent`."""
    try:
        event = strict_json.loads(data, max_bytes=MAX_EVENT)
    except strict_json.StrictJsonError as error:
        raise BadHookEvent(f"The event of the hook is not strict JSON: {error}.") from None
    if not isinstance(event, dict):
        raise BadHookEvent("The event of the hook is not a JSON object.")
    event = hooks_of(agent).dialect.event(event)
    name = _text(event, "hook_event_name")
    if name in _BEFORE:
        phase = HookPhase.BEFORE
    elif name in _AFTER:
        phase = HookPhase.AFTER
    elif name in _PROMPT:
        phase = HookPhase.PROMPT
    else:
        raise BadHookEvent(f"callgate does not know the event {name[:80]!r} of {agent}.")
    session = event.get("session_id", event.get("conversation_id"))
    if not isinstance(session, str) or not 0 < len(session) <= _LONGEST_ID:
        raise BadHookEvent("The event of the hook names no session.")
    if phase is HookPhase.PROMPT:
        return HookEvent(
            phase=phase,
            session=session,
            cwd=_directory(event),
            words=_words(event),
            relayed=_sender(agent, event),
        )
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
        relayed=_sender(agent, event),
    )


def _words(event: dict[str, Any]) -> str | None:
    """Return the part of a prompt that the user wrote; None if the user did not write it."""
    if any(event.get(name) is not None for name in _SUB_AGENT):
        return None
    prompt = event.get("prompt")
    if isinstance(prompt, list):  # blocks of content
        texts = [each.get("text") for each in prompt if isinstance(each, dict)]
        prompt = "\n".join(each for each in texts if isinstance(each, str))
    if not isinstance(prompt, str):
        raise BadHookEvent("The event of the hook has no prompt.")
    added = _ADDED.search(prompt)
    words = prompt if added is None else prompt[: added.start()]
    return words if words.strip() or added is None else None


def _sender(agent: str, event: dict[str, Any]) -> str:
    """Return the agent that sent the event, if it also runs the hooks of this agent; else ""."""
    marks = ((name, hooks.dialect.mark) for name, hooks in hooked().items())
    return next((name for name, mark in marks if mark and mark in event and name != agent), "")


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
    for key in ("tool_call_id", "tool_use_id"):  # if an agent has both, both events have the first
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
    for key in ("tool_output_text", "tool_response", "tool_output", "tool_result", "error"):
        value = event.get(key)
        if value is None:
            continue
        return _flat(value)[:_LONGEST_OUTPUT]
    return None


def _flat(value: Any) -> str:
    """Return the texts of an output, without the escapes of JSON, which would hide words."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and any(isinstance(each, str) for each in value.values()):
        return "\n".join(_flat(each) for each in value.values() if each not in ("", None, False))
    if isinstance(value, list) and value:
        return "\n".join(map(_flat, value))
    return json.dumps(value)
