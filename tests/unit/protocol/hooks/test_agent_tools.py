"""A tool of an agent is judged as the tool of ours that it is."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.protocol.hooks.agent_tools import Edit, translate
from callgate.protocol.hooks.events import BadHookEvent, HookEvent, HookPhase


def event(tool: str, **input: Any) -> HookEvent:
    return HookEvent(phase=HookPhase.BEFORE, session="s", cwd="/w", tool=tool, input=input)


@pytest.mark.parametrize("tool", ["Bash", "run_shell_command", "file_system.bash", "bash", "Shell"])
def test_a_command_is_a_call_of_shell_in_the_directory_of_the_agent(tool: str) -> None:
    found = translate(event(tool, command="ls", description="x"), {}, "claude")
    assert (found.tool, found.arguments) == ("shell", {"command": "ls", "cwd": "/w"})


def test_words_of_a_command_become_a_line() -> None:
    found = translate(event("shell", command=["bash", "-lc", "ls -l"]), {}, "codex")
    assert found.arguments["command"] == "ls -l"
    found = translate(event("shell", command=["rm", "it's"]), {}, "codex")
    assert found.arguments["command"] == "'rm' 'it'\\''s'"


def test_writing_and_editing_are_ours() -> None:
    written = translate(event("Write", file_path="/w/a", content="x"), {}, "claude")
    assert (written.tool, written.arguments) == ("write_file", {"path": "/w/a", "content": "x"})
    edited = translate(event("Edit", file_path="a", old_string="1", new_string="2"), {}, "claude")
    assert edited.tool == "patch_file"
    assert edited.arguments == {"path": "a", "old": "1", "new": "2"}
    made = translate(event("replace", file_path="a", old_string="", new_string="2"), {}, "gemini")
    assert (made.tool, made.arguments["content"]) == ("write_file", "2")


def test_several_edits_of_a_file_are_one_call_that_knows_each() -> None:
    edits = [{"old_string": "1", "new_string": "2"}, {"old_string": "3", "new_string": "4"}]
    found = translate(event("MultiEdit", file_path="a", edits=edits), {}, "claude")
    assert found.tool == "patch_file"
    assert found.edits == (Edit("1", "2"), Edit("3", "4"))


def test_a_patch_is_judged_by_every_file_that_it_names() -> None:
    patch = "*** Begin Patch\n*** Add File: a\n+x\n*** Update File: b\n*** Move to: c\n*** End Patch"
    found = translate(event("apply_patch", command=patch), {}, "codex")
    assert (found.tool, found.arguments["paths"]) == ("agent_write", ["a", "b", "c"])


def test_reads_and_searches_name_their_place() -> None:
    assert translate(event("Read", file_path="a"), {}, "claude").tool == "read_file"
    found = translate(event("Grep", pattern="x"), {}, "claude")
    assert (found.tool, found.arguments) == ("search_text", {"pattern": "x", "path": "/w"})
    assert translate(event("Glob", pattern="*"), {}, "claude").tool == "find_files"
    assert translate(event("LS", path="b"), {}, "claude").tool == "list_dir"
    url = "https://x.example/"
    assert translate(event("WebFetch", url=url, prompt="p"), {}, "claude").arguments == {"url": url}


def test_an_mcp_tool_is_that_tool() -> None:
    found = translate(event("mcp__github__get", id=1), {}, "claude")
    assert (found.tool, found.arguments) == ("mcp__github__get", {"id": 1})


def test_what_is_not_known_counts_as_execute_unless_the_settings_say_its_class() -> None:
    assert translate(event("Invented", a=1), {}, "claude").tool == "agent_execute"
    found = translate(event("Invented", a=1, path="f"), {"Invented": "read"}, "claude")
    assert (found.tool, found.arguments["paths"]) == ("agent_read", ["f"])
    assert translate(event("TodoWrite"), {}, "claude").tool == "agent_none"


@pytest.mark.parametrize(
    "bad",
    [
        event("Bash"),
        event("Bash", command=""),
        event("Bash", command=3),
        event("Write", file_path="a"),
        event("Edit", file_path="a", old_string="x"),
        event("Edit", old_string="x", new_string="y"),
        event("MultiEdit", file_path="a", edits=["x"]),
        event("apply_patch", command="nothing"),
        event("WebFetch", prompt="no address"),
    ],
    ids=lambda each: f"{each.tool} {sorted(each.input)}",
)
def test_a_call_that_lacks_what_it_needs_is_refused(bad: HookEvent) -> None:
    with pytest.raises(BadHookEvent):
        translate(bad, {}, "claude")
