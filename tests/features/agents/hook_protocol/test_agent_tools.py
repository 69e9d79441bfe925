"""A tool of an agent is judged as the tool of ours that it is."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from callgate.features.agents.hooks import events
from callgate.features.agents.hooks.agent_tools import Edit, translate
from callgate.features.agents.hooks.events import BadHookEvent, HookEvent, HookPhase
from callgate.features.agents.known import hooked

TABLES = {name: hooks.tools for name, hooks in hooked().items()}


def event(tool: str, **input: Any) -> HookEvent:
    return HookEvent(phase=HookPhase.BEFORE, session="s", cwd="/w", tool=tool, input=input)


@pytest.mark.parametrize(
    ("agent", "tool"),
    [
        ("claude", "Bash"),
        ("gemini", "run_shell_command"),
        ("claude", "functions.bash"),
        ("opencode", "bash"),
        ("cursor", "Shell"),
    ],
)
def test_a_command_is_a_call_of_shell_in_the_directory_of_the_agent(agent: str, tool: str) -> None:
    found = translate(event(tool, command="ls", description="x"), {}, agent)
    assert (found.tool, found.arguments) == ("shell", {"command": "ls", "cwd": "/w"})


PATCH = "*** Begin Patch\n*** Add File: new.txt\n+x\n*** Update File: /etc/old\n*** End Patch\n"


def test_a_patch_of_copilot_names_its_files() -> None:
    data = {"hook_event_name": "PreToolUse", "session_id": "s", "cwd": "/w", "tool_name": "Edit", "tool_input": PATCH}
    found = translate(events.read("copilot", json.dumps(data).encode()), {}, "copilot")
    assert (found.tool, found.arguments["paths"]) == ("agent_write", ["/w/new.txt", "/etc/old"])
    assert found.arguments["input"] == {"patch": PATCH}


@pytest.mark.parametrize(
    ("tool", "input", "expected"),
    [
        ("Grep", {"pattern": "x", "paths": ["/etc"]}, ("search_text", "/etc")),
        ("Grep", {"pattern": "x", "paths": "sub"}, ("search_text", "/w/sub")),
        ("Grep", {"pattern": "x"}, ("search_text", "/w")),
        ("Grep", {"pattern": "x", "paths": ["a", "/etc"]}, ("agent_read", ["/w/a", "/etc"])),
        ("Glob", {"pattern": "*", "paths": ["/etc"]}, ("find_files", "/etc")),
        ("Glob", {"pattern": "/etc/*"}, ("find_files", "/etc")),
        ("Glob", {"pattern": "d/*", "paths": ["a", "/b"]}, ("agent_read", ["/w/a/d", "/b/d"])),
    ],
)
def test_a_search_of_copilot_is_about_every_place_that_it_names(
    tool: str, input: dict[str, Any], expected: tuple[str, Any]
) -> None:
    found = translate(event(tool, **input), {}, "copilot")
    assert (found.tool, found.arguments.get("path", found.arguments.get("paths"))) == expected


@pytest.mark.parametrize(
    "refused",
    [
        event("Edit", input=PATCH, path="a", old_str="x", new_str="y"),
        event("Grep", pattern="x", path="a", paths=["/etc"]),
        event("Grep", pattern="x", paths=[1]),
        event("Grep", pattern="x", paths=["a"] * 1_001),
        event("Glob", pattern="../*", paths=["a", "b"]),
    ],
    ids=str,
)
def test_a_call_of_copilot_with_two_meanings_is_refused(refused: HookEvent) -> None:
    with pytest.raises(BadHookEvent):
        translate(refused, {}, "copilot")


def test_words_of_a_command_become_a_line() -> None:
    found = translate(event("shell", command=["bash", "-lc", "ls -l"]), {}, "codex")
    assert found.arguments["command"] == "ls -l"
    found = translate(event("shell", command=["rm", "it's"]), {}, "codex")
    assert found.arguments["command"] == "rm 'it'\"'\"'s'"


def test_writing_and_editing_are_ours() -> None:
    written = translate(event("Write", file_path="/w/a", content="x"), {}, "claude")
    assert (written.tool, written.arguments) == ("write_file", {"path": "/w/a", "content": "x"})
    edited = translate(event("Edit", file_path="a", old_string="1", new_string="2"), {}, "claude")
    assert edited.tool == "patch_file"
    assert edited.arguments == {"path": "/w/a", "old": "1", "new": "2"}
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
    assert (found.tool, found.arguments["paths"]) == ("agent_write", ["/w/a", "/w/b", "/w/c"])


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
    assert (found.tool, found.arguments["paths"]) == ("agent_read", ["/w/f"])
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
        event("WebFetch", prompt="no address"),
    ],
    ids=lambda each: f"{each.tool} {sorted(each.input)}",
)
def test_a_call_that_lacks_what_it_needs_is_refused(bad: HookEvent) -> None:
    with pytest.raises(BadHookEvent):
        translate(bad, {}, "claude")


@pytest.mark.parametrize(
    "bad",
    [
        event("Read", file_path="/w/a", path="/etc/passwd"),
        event("Read", file_path="/w/a", path=["/etc/passwd"]),
        event("Read", path="", file_path="/etc/passwd"),
        event("write", filePath="/w/a", path="/w/b", content="x"),
        event("write", filePath="/w/a", content="x", contents="y"),
        event("Edit", file_path="/w/a", old_string="a", old="b", new_string="c"),
        event("MultiEdit", file_path="/w/a", edits=[], edit={"old": "a", "new": "b"}),
        event("Grep", pattern="x", path="/w", directory="/etc"),
        event("Bash", command="ls", cmd="rm -rf /"),
        event("Bash", command="ls", workdir="/w", cwd="/etc"),
        event("Read", file_path="~/.ssh/id_rsa"),
        event("Read", file_path="file:///etc/passwd"),
    ],
    ids=lambda each: f"{each.tool} {sorted(each.input)}",
)
def test_two_names_of_one_argument_that_differ_are_refused(bad: HookEvent) -> None:
    with pytest.raises(BadHookEvent):
        translate(bad, {}, "claude")


@pytest.mark.parametrize(
    ("agent", "bad"),
    [
        ("kimi", event("Read", file_path="a", path="a")),
        ("gemini", event("list_directory", path=".", dir_path="/etc")),
        ("codex", event("apply_patch", patch="*** Add File: a", input="*** Add File: b")),
        ("codex", event("apply_patch", command="nothing")),
        ("cursor", event("Read", file_path="a", path="a")),
        ("cursor", event("Shell", command="ls", working_directory="/w", cwd="/w")),
        ("gemini", event("replace", file_path="a", old_string="1", new_string="2",
                         edits=[{"old_string": "5", "new_string": "6"}])),
        ("claude", event("MultiEdit", file_path="a", old_string="1", new_string="2",
                         edits=[{"old_string": "5", "new_string": "6"}])),
        ("claude", event("MultiEdit", file_path="a",
                         edits=[{"old_string": "5", "new_string": "6", "old": "7"}])),
        ("claude", event("Edit", file_path="a", old_string="1", new_string="2", replace_all="no")),
        ("gemini", event("write_file", file_path="a", content="1", ai_proposed_content="2")),
        ("gemini", event("read_file", file_path="a", symlink=True)),
        ("claude", event("Bash", command="ls", shell="/bin/evil")),
        ("claude", event("NotebookEdit", notebook_path="a.ipynb", new_source="x", also="/etc/x")),
        ("kimi", event("Bash", command="ls", environment={})),
        ("opencode", event("bash", command="ls", environment={})),
    ],
    ids=lambda each: each if isinstance(each, str) else f"{each.tool} {sorted(each.input)}",
)  # fmt: skip
def test_two_forms_of_one_argument_and_unknown_arguments_are_refused(agent: str, bad: HookEvent) -> None:
    with pytest.raises(BadHookEvent):
        translate(bad, {}, agent)


@pytest.mark.parametrize("agent", TABLES)
def test_a_tool_that_only_another_agent_has_is_not_known(agent: str) -> None:
    """The tool `file` of a server `read` is `read_file` in opencode and Vibe."""
    for name in {name for table in TABLES.values() for name in table} - TABLES[agent].keys():
        found = translate(event(name, path="a", command="ls"), {}, agent)
        assert found.tool == "agent_execute", name


@pytest.mark.parametrize("tool", ["Tas\u212a", "\uff34ask", "T\u0430sk", "Task\u200b", "Task "])
def test_a_name_that_only_looks_like_one_of_a_tool_is_not_known(tool: str) -> None:
    assert translate(event(tool, prompt="x"), {}, "claude").tool == "agent_execute"


def test_an_unknown_argument_of_a_tool_without_effects_makes_it_one_that_asks() -> None:
    assert translate(event("TodoWrite", todos=[]), {}, "claude").tool == "agent_none"
    assert translate(event("TodoWrite", todos=[], run="ls"), {}, "claude").tool == "agent_execute"
    assert translate(event("Agent", prompt="p"), {}, "claude").tool == "agent_none"
    isolated = translate(event("Agent", prompt="p", isolation="worktree"), {}, "claude")
    assert isolated.tool == "agent_execute"


def test_the_directory_of_a_command_is_read_under_each_name_that_an_agent_has_for_it() -> None:
    named = {"cursor": "working_directory", "gemini": "dir_path", "qwen": "directory", "kimi": "cwd"}
    tools = {"cursor": "Shell", "kimi": "Bash"}
    for agent, key in named.items():
        call = event(tools.get(agent, "run_shell_command"), command="ls", **{key: "/w/sub"})
        found = translate(call, {}, agent)
        assert found.arguments == {"command": "ls", "cwd": "/w/sub"}, agent


def test_text_that_kimi_appends_is_not_shown_as_the_whole_file() -> None:
    found = translate(event("Write", path="a", content="x", mode="append"), {}, "kimi")
    assert (found.tool, found.arguments["paths"]) == ("agent_write", ["/w/a"])
    assert found.arguments["input"]["mode"] == "append"


@pytest.mark.parametrize("agent", TABLES)
def test_the_agents_own_check_of_its_bookkeeping_and_skills_stays_in_force(agent: str) -> None:
    for name, row in TABLES[agent].items():
        if row.kind in ("none", "skill"):
            call = translate(event(name), {}, agent)
            assert call.undecided, name
            assert call.tool == ("agent_execute" if row.kind == "skill" else "agent_none"), name


def test_a_skill_is_left_to_claude_code_where_it_asks_itself_and_needs_approval_elsewhere() -> None:
    def found(agent: str, mode: str | None, tool: str = "Skill") -> tuple[str, bool]:
        given = msgspec.structs.replace(event(tool, skill="x"), permission_mode=mode)
        call = translate(given, {}, agent)
        return call.tool, call.undecided

    for mode in ("default", "plan", "acceptEdits", "dontAsk"):
        assert found("claude", mode) == ("agent_none", True)
    for mode in ("bypassPermissions", "auto", "invented", None):
        assert found("claude", mode) == ("agent_execute", True)
    assert found("qwen", "default", "skill") == ("agent_execute", True)
    assert found("cursor", "default") == ("agent_execute", False)


@pytest.mark.parametrize(
    ("name", "value", "confined"),
    [
        ("context_path", "x", True),
        ("contextFile", "x", True),
        ("pattern_file", "x", True),
        ("contentUri", "x", True),
        ("path_pattern", "/etc/*", True),
        ("name", " /etc/passwd", True),
        ("file_content", "/etc/passwd", False),
        ("new_source", "/etc/passwd", False),
        ("text", "/etc/passwd", False),
        ("query", "../x", False),
    ],
)
def test_the_last_word_of_a_name_says_whether_an_argument_is_a_path(name: str, value: str, confined: bool) -> None:
    found = translate(event("Known", **{name: value}), {"Known": "read"}, "claude")
    expected = [value.strip() if value.strip().startswith("/") else f"/w/{value}"]
    assert found.arguments.get("paths", []) == (expected if confined else [])


def test_every_path_like_argument_of_a_declared_tool_is_confined() -> None:
    given = event(
        "Known", options={"files": ["a", {"deep": "/etc/passwd"}]}, other="../x", content="/etc",
        anything="/root/.ssh/id_rsa", count=3,
    )  # fmt: skip
    found = translate(given, {"Known": "read"}, "claude")
    assert sorted(found.arguments["paths"]) == ["/etc/passwd", "/root/.ssh/id_rsa", "/w/../x", "/w/a"]
    for bad in ("~/x", "file:///etc/passwd", "FILE:/x"):
        with pytest.raises(BadHookEvent):
            translate(event("Known", some={"where": [bad]}), {"Known": "read"}, "claude")


@pytest.mark.parametrize(
    "tool",
    ["evil.task", "x.todo", "x.read", "a.bash", "mcp__srv__a.task", "mcp__srv__x.read", "mcp.read"],
)
def test_a_name_that_ends_like_ours_is_not_ours(tool: str) -> None:
    found = translate(event(tool, path="/w/a", command="ls"), {}, "gemini")
    assert found.tool in ("agent_execute", tool)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("line", ["*** Add File: a{}b", "{}*** Rename: a{}b", "*** Move to: {}x{}y"])
def test_reading_a_patch_takes_time_in_proportion_to_its_length(line: str) -> None:
    blanks = " " * 1_000_000  # quadratic time would be hours
    with pytest.raises(BadHookEvent):
        translate(event("apply_patch", command=line.replace("{}", blanks)), {}, "codex")


def test_a_patch_names_its_files_with_blanks_around_the_markers_too() -> None:
    patch = "*** Begin Patch\n*** Add File: a\n+*** x\n *** Add File: .codex/hooks.json\n+x\n"
    found = translate(event("apply_patch", command=patch + "\t*** Move to: c \r\n"), {}, "codex")
    assert found.arguments["paths"] == ["/w/a", "/w/.codex/hooks.json", "/w/c"]


@pytest.mark.parametrize(
    "line",
    ["*** Rename File: b", "x *** Add File: b", "*** Add File:  b", "+x\r*** Add File: b", "+x\u2028 *** Add File: b"],
)
def test_a_patch_with_an_unknown_marker_is_refused(line: str) -> None:
    with pytest.raises(BadHookEvent):
        translate(event("apply_patch", command=f"*** Add File: a\n{line}\n"), {}, "codex")


def test_the_directory_of_a_glob_pattern_is_the_place_that_is_judged() -> None:
    def found(pattern: str, **more: str) -> dict[str, Any]:
        return translate(event("Glob", pattern=pattern, **more), {}, "claude").arguments

    assert found("*.py") == {"pattern": "*.py", "path": "/w"}
    assert found("src/**/a.py", path="b") == {"pattern": "**/a.py", "path": "/w/b/src"}
    assert found("/etc/*") == {"pattern": "*", "path": "/etc"}
    assert found("/etc/passwd") == {"pattern": "passwd", "path": "/etc"}
    assert found("/*") == {"pattern": "*", "path": "/"}


@pytest.mark.parametrize("pattern", ["../*", "a/*/../../..", "{..,a}/*", "{/etc,a}/*", "~/*"])
def test_a_pattern_that_could_lead_out_is_refused(pattern: str) -> None:
    for bad in (event("Glob", pattern=pattern), event("Grep", pattern="x", glob=pattern)):
        with pytest.raises(BadHookEvent):
            translate(bad, {}, "claude")
    with pytest.raises(BadHookEvent):
        translate(event("Grep", pattern="x", glob="/etc/*"), {}, "claude")


def test_an_address_is_taken_whole() -> None:
    found = translate(event("web_fetch", prompt="read HTTP://X.example/a(b)"), {}, "gemini")
    assert found.arguments == {"url": "http://X.example/a(b)"}


@pytest.mark.parametrize(
    "input",
    [
        {"prompt": "https://a.example and HTTP://evil.example"},
        {"prompt": "https://a.example and ftp://evil.example"},
        {"url": "https://a.example/", "prompt": "https://evil.example"},
        {"url": "https://a.example@evil.example/"},
        {"url": "https://a.example\\@evil.example/"},
        {"url": "https://a.example/", "uri": "https://evil.example/"},
        {"prompt": "x=https://evil.example"},
    ],
)
def test_an_address_beside_another_or_with_a_user_is_refused(input: dict[str, str]) -> None:
    with pytest.raises(BadHookEvent):
        translate(event("web_fetch", **input), {}, "gemini")
