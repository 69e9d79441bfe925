"""Events of agents are read, and answers are written, as their programs understand them."""

from __future__ import annotations

import json

import pytest

from callgate.features.agents.hooks import events
from callgate.features.agents.hooks.events import BadHookEvent, HookPhase, Verdict
from callgate.features.agents.known import hooked

AGENTS = sorted(hooked())
BEFORE = {
    "session_id": "s1",
    "cwd": "/work",
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "ls"},
    "tool_use_id": "toolu_1",
}


def event(**changes: object) -> bytes:
    return json.dumps({**BEFORE, **changes}).encode()


def test_an_event_before_a_call_is_read() -> None:
    found = events.read("claude", event())
    assert (found.phase, found.session, found.tool) == (HookPhase.BEFORE, "s1", "Bash")
    assert (found.cwd, found.use_id, found.input) == ("/work", "toolu_1", {"command": "ls"})


@pytest.mark.parametrize("name", ["BeforeTool", "pre_tool", "preToolUse", "tool.execute.before"])
def test_each_agents_name_of_the_event_is_known(name: str) -> None:
    assert events.read("gemini", event(hook_event_name=name)).phase is HookPhase.BEFORE


def test_a_report_says_whether_the_call_failed() -> None:
    report = event(hook_event_name="PostToolUseFailure", tool_response={"x": 1})
    found = events.read("claude", report)
    assert (found.phase, found.failed, found.output) == (HookPhase.AFTER, True, '{"x": 1}')
    assert events.read("vibe", event(hook_event_name="post_tool", tool_error="no")).failed


def test_an_event_of_cursor_at_the_hook_of_claude_is_cursors() -> None:
    assert events.read("claude", event(cursor_version="3")).relayed
    assert not events.read("cursor", event(cursor_version="3")).relayed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"a": 1, "a": 2}',
        b"{" * 10_000,
        event(hook_event_name="Stop"),
        event(hook_event_name=None),
        event(tool_name=""),
        event(tool_input="ls"),
        event(session_id=3),
        event(session_id="x" * 300),
        event(cwd=7),
        b" " * (events.MAX_EVENT + 1),
    ],
    ids=range(13),
)
def test_what_cannot_be_read_is_refused_with_a_sentence(data: bytes) -> None:
    with pytest.raises(BadHookEvent) as refused:
        events.read("claude", data)
    assert str(refused.value).endswith(".")


def test_no_decision_skips_no_check_of_the_agent() -> None:
    """An `allow` of Claude Code and Qwen Code skips their own question."""
    answers = {agent: events.write(agent, Verdict(allowed=True, undecided=True)) for agent in AGENTS}
    assert answers == {
        "claude": b"{}", "codex": b"", "cursor": b'{"permission": "allow"}', "gemini": b"{}",
        "kimi": b"", "opencode": b'{"decision": "allow"}', "qwen": b"{}", "vibe": b"",
        "copilot": b"{}", "cline": b'{"cancel": false}',
    }  # fmt: skip


@pytest.mark.parametrize("agent", AGENTS)
def test_a_refusal_is_in_the_words_that_block_and_never_asks(agent: str) -> None:
    answer = json.loads(events.write(agent, Verdict(allowed=False, reason="not \n this")))
    flat = json.dumps(answer)
    assert ('"cancel": true' if agent == "cline" else '"deny"') in flat
    assert "not this" in flat
    assert '"ask"' not in flat


@pytest.mark.parametrize("agent", AGENTS)
def test_a_refusal_always_has_a_reason_of_bounded_length(agent: str) -> None:
    assert events.NO_REASON.encode() in events.refusal(agent, "  ")
    assert len(events.refusal(agent, "é" * 100_000)) < 65_536


def test_codex_gets_no_output_or_exactly_the_fields_that_it_knows() -> None:
    assert events.write("codex", Verdict(allowed=True)) == b""
    changed = Verdict(allowed=True, updated_input={"command": "x"})
    assert json.loads(events.write("codex", changed)) == {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "allow",
            "updatedInput": {"command": "x"},
        }
    }
    assert json.loads(events.refusal("codex", "no")) == {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": "no",
        }
    }


def test_claude_is_always_told_a_decision() -> None:
    answer = json.loads(events.write("claude", Verdict(allowed=True)))
    assert answer["hookSpecificOutput"]["permissionDecision"] == "allow"


def test_gemini_and_vibe_know_the_word_decision_alone() -> None:
    for agent in ("gemini", "vibe"):
        assert json.loads(events.refusal(agent, "no")) == {"decision": "deny", "reason": "no"}


@pytest.mark.parametrize("agent", ["qwen", "kimi", "vibe", "cursor", "opencode"])
def test_an_agent_that_ignores_changed_input_is_never_sent_any(agent: str) -> None:
    with pytest.raises(ValueError, match="does not support a replaced input"):
        events.write(agent, Verdict(allowed=True, updated_input={"command": "x"}))
