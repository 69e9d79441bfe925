"""Which tool a question of an agent is about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callgate.features.agents.proxy.messages import JudgedTool, is_plain_switch, merged, read, with_texts

CWD = "/w"
ADDED = {"type": "add", "content": "x"}
DIFF = {"type": "diff", "path": "/w/a", "oldText": None, "newText": "x"}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        # as agents were seen to spell them: Claude, Codex, opencode, Qwen, Gemini
        ({"kind": "execute", "rawInput": {"command": "ls", "description": "x"}}, ("shell", {"command": "ls"})),
        (
            {"rawInput": {"command": ["bash", "-lc", "ls | wc"], "cwd": "/w/b"}},
            ("shell", {"command": "ls | wc", "cwd": "/w/b"}),
        ),
        ({"rawInput": {"command": ["echo", "a b"]}}, ("shell", {"command": "echo 'a b'"})),
        (
            {"kind": "edit", "rawInput": {"file_path": "/w/a", "old_string": "x", "new_string": "y"}},
            ("patch_file", {"path": "/w/a", "old": "x", "new": "y"}),
        ),
        (
            {"kind": "edit", "rawInput": {"filePath": "a", "content": ""}},
            ("write_file", {"path": "/w/a", "content": ""}),
        ),
        ({"kind": "edit", "content": [DIFF]}, ("write_file", {"path": "/w/a", "content": "x"})),
        ({"kind": "read", "rawInput": {"file_path": "/w/a"}}, ("read_file", {"path": "/w/a"})),
        (
            {
                "kind": "edit",
                "rawInput": {"path": "a", "content": "x"},
                "content": [DIFF],
                "locations": [{"path": "/w/a", "line": 3}],
            },
            ("write_file", {"path": "/w/a", "content": "x"}),
        ),
        (
            {"kind": "edit", "rawInput": {"call_id": "c", "changes": {"/w/a": ADDED}}, "content": [DIFF]},
            ("write_file", {"path": "/w/a", "content": "x"}),
        ),
        (
            {"kind": "edit", "rawInput": {"filepath": "/w/a", "diff": "x"}, "content": [DIFF]},
            ("write_file", {"path": "/w/a", "content": "x"}),
        ),
        (
            {"rawInput": {"call_id": "c", "turn_id": "t", "command": ["/w/bash", "-c", "ls"], "cwd": "/w"}},
            ("shell", {"command": "/w/bash -c ls"}),
        ),
        ({"kind": "delete", "rawInput": {"path": "a"}}, ("delete_file", {"path": "/w/a"})),
        ({"kind": "fetch", "rawInput": {"url": "https://a.b"}}, ("web_fetch", {"url": "https://a.b"})),
    ],
)
def test_what_agents_say_becomes_a_tool(state: dict[str, Any], expected: tuple[str, dict[str, str]]) -> None:
    assert read(state, CWD) == JudgedTool(*expected)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"kind": "execute", "title": "ls"},
        {"kind": "execute", "rawInput": {}},
        {"kind": "execute", "rawInput": {"command": ["ls", 7]}},
        {"kind": "execute", "rawInput": "ls"},
        {"kind": "edit", "rawInput": {"command": "create", "path": "/w/a", "file_text": "x"}},
        {"kind": "edit", "content": [DIFF, DIFF]},
        {"kind": "edit", "rawInput": {"path": "a", "old_string": "x", "new_string": "y", "replace_all": True}},
        {"kind": "execute", "content": [DIFF]},
        {"kind": "other", "rawInput": {"server": "x", "tool": "y"}},
        {"kind": "read", "rawInput": {"path": ["a"]}},
        {"kind": "edit", "rawInput": {"path": "ok.txt", "file_path": "/w/.env", "content": "x"}},
        {"kind": "edit", "rawInput": {"path": "a", "content": "x", "file_text": "y"}},
        {"kind": "edit", "rawInput": {"path": "a", "old_string": "x", "new_string": "y", "newText": "z"}},
        {"kind": "edit", "rawInput": {"path": "b", "content": "x"}, "content": [DIFF]},
        {"kind": "edit", "rawInput": {"path": "a", "content": "other"}, "content": [DIFF]},
        {"kind": "edit", "rawInput": {"path": "a", "content": "x"}, "locations": [{"path": "/w/.env"}]},
        {"kind": "edit", "content": [DIFF], "locations": [{"path": "/w/.env"}]},
        {"kind": "read", "rawInput": {"path": "a"}, "locations": [{"path": "a"}, {"path": "/etc/passwd"}]},
        {"kind": "read", "rawInput": {"path": "a"}, "locations": "a"},
        {"kind": "execute", "rawInput": {"command": "ls", "cmd": "rm x"}},
        {"kind": "execute", "rawInput": {"command": "ls", "cwd": "/w", "workdir": "/etc"}},
        {"kind": "execute", "rawInput": {"command": "ls"}, "content": [DIFF]},
        {"rawInput": {"command": "create", "path": "/w/a", "file_text": "x"}},
        {"rawInput": {"url": "https://a.b", "path": "/w/a", "content": "x"}},
        # the input contradicts the change that is shown, or is no object
        {"kind": "edit", "rawInput": {"file": "/w/.env", "content": "x"}, "content": [DIFF]},
        {"kind": "edit", "rawInput": "*** Add File: /w/.env", "content": [DIFF]},
        {"kind": "edit", "rawInput": [], "content": [DIFF]},
        {"kind": "edit", "rawInput": {"filepath": "/w/.env", "diff": "x"}, "content": [DIFF]},
        {"kind": "edit", "rawInput": {"changes": {"/w/.env": ADDED}}, "content": [DIFF]},
        {"kind": "edit", "rawInput": {"changes": {"/w/a": {**ADDED, "move_path": "/w/.env"}}}, "content": [DIFF]},
        {"kind": "edit", "rawInput": {"changes": {"/w/a": {"type": "delete", "content": "x"}}}, "content": [DIFF]},
        {"kind": "edit", "rawInput": {"changes": {"/w/a": ADDED}, "grant_root": "/"}, "content": [DIFF]},
        # values that an agent could read in another way
        {"kind": ["edit"], "rawInput": {"path": "a", "content": "x"}},
        {"kind": "read", "rawInput": {"path": "~/.ssh/id_rsa"}},
        {"kind": "read", "rawInput": {"path": "file:///etc/passwd"}},
        {"kind": "fetch", "rawInput": {"url": "https://a.b@evil.example/"}},
        {"kind": "fetch", "rawInput": {"url": "https://a.b", "prompt": "and https://evil.example"}},
        {"kind": "execute", "rawInput": {"cmd": "ls", "shell": "/w/bash"}},
        {"kind": "execute", "rawInput": {"command": ["PATH=/w", "ls"]}},
        {"kind": "execute", "rawInput": {"command": "ls", "cwd": "/w", "additional_permissions": {"network": True}}},
        {"kind": "edit", "rawInput": {"path": "a", "content": "x", "mode": "append"}},
    ],
)
def test_what_says_too_little_or_two_things_is_not_known(state: dict[str, Any]) -> None:
    assert read(state, CWD).tool == "agent_action"


@pytest.mark.parametrize(
    ("more", "plain"),
    [
        ({}, True),
        ({"rawInput": {}}, True),
        ({"rawInput": {"plan": "1. Do it."}}, True),
        ({"rawInput": {"command": "rm -rf /"}}, False),
        ({"rawInput": {"plan": "x", "command": "rm -rf /"}}, False),
        ({"rawInput": "rm"}, False),
        ({"content": [DIFF]}, False),
        ({"locations": [{"path": "/w/a"}]}, False),
    ],
)
def test_a_question_about_the_mode_names_nothing_to_run_or_change(more: dict[str, Any], plain: bool) -> None:
    assert is_plain_switch({"kind": "switch_mode", **more}) is plain
    assert not is_plain_switch({"kind": "execute", **more})
    assert read({"kind": "switch_mode", **more}, CWD).tool == "agent_action"


def test_a_text_of_json_is_the_input_while_the_call_has_not_run() -> None:
    def shows(text: str, status: str) -> dict[str, Any]:
        return {"status": status, "content": [{"type": "content", "content": {"type": "text", "text": text}}]}

    told = merged(None, {"kind": "execute", **shows(json.dumps({"command": "rm x"}), "in_progress")})
    question = merged(told, shows("May I run it?", "pending"))
    assert read(question, CWD) == JudgedTool("shell", {"command": "rm x"})
    output = merged({"kind": "execute"}, shows('{"command": "ls"}', "completed"))
    assert read(output, CWD).tool == "agent_action"


def test_a_question_says_more_than_what_was_told_before() -> None:
    told = {"toolCallId": "a", "kind": "execute", "rawInput": {"command": "ls"}}
    state = merged(told, {"toolCallId": "a", "rawInput": {"command": "rm x"}, "title": None})
    assert read(state, CWD) == JudgedTool("shell", {"command": "rm x"})


def test_a_shown_file_that_looks_like_an_input_replaces_no_input() -> None:
    """A preview of the text that is written is text of the model."""
    told = {"kind": "edit", "rawInput": {"path": ".env", "content": '{"path": "a", "content": "x"}'}}
    shown = {"type": "content", "content": {"type": "text", "text": told["rawInput"]["content"]}}
    assert read(merged(told, {"content": [shown]}), CWD).tool == "agent_action"
    forged = {"inputInContent": {"path": "a", "content": "x"}, "kind": "edit"}
    assert read(merged(None, forged), CWD).tool == "agent_action"


def test_an_empty_input_does_not_hide_the_one_that_was_told_before() -> None:
    told = {"kind": "edit", "rawInput": {"path": ".env", "content": "x"}}
    assert read(merged(told, {"rawInput": {}, "content": [DIFF]}), CWD).tool == "agent_action"
    command = merged({"kind": "execute", "rawInput": {"command": "rm x"}}, {"rawInput": {}})
    assert read(command, CWD) == JudgedTool("shell", {"command": "rm x"})


def test_only_our_terminals_are_replaced() -> None:
    content = [{"type": "terminal", "terminalId": "ours"}, {"type": "terminal", "terminalId": "theirs"}]
    params = {"sessionId": "s", "update": {"toolCallId": "c", "content": content}}
    shown = with_texts(params, lambda id, card: "text" if id == "ours" else None)
    assert shown["update"]["content"] == [
        {"type": "content", "content": {"type": "text", "text": "text"}},
        {"type": "terminal", "terminalId": "theirs"},
    ]
    assert with_texts(params, lambda id, card: None) is params
