"""`tools`, `policy explain`, `trust`, `init`: what is set up, and what would be decided."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from callgate.cli.errors import EXIT_CODES
from callgate.core.errors import ToolErrorClass
from callgate_catalogue.google.catalogue import CATALOGUE
from tests.kernel.cli.running import callgate

NO_ACCOUNT = "no Google account is logged in; run: callgate auth google login"
BUILT_IN = [
    "api_call",
    "custom",
    "delete_file",
    "file_get",
    "file_ingest",
    "file_put",
    "file_upload",
    "find_files",
    "list_dir",
    "memory_add",
    "memory_consolidate",
    "memory_replace",
    "memory_search",
    "patch_file",
    "read_file",
    "search",
    "search_text",
    "shell",
    "web_fetch",
    "write_file",
]
NO_SEARCH = "no search service is configured; name one in [web] search of settings.toml: searxng, brave, tavily or ddgs"
AGENTS = ["spawn_agent", "update_plan"]
"""Offered to an agent at work alone."""
HOOKED = ["agent_execute", "agent_network", "agent_none", "agent_read", "agent_write"]
"""What agents with a hook do themselves."""
GOOGLE = [spec.definition.name for spec in CATALOGUE]
"""Offered where an account is logged in."""


def test_tools_are_listed_with_their_effect_and_first_line(ws: Path) -> None:
    ran = callgate("tools", cwd=ws)
    rows = [line.split(maxsplit=2) for line in ran.out.splitlines()]
    assert (ran.code, ran.err) == (0, "")
    assert [row[0] for row in rows] == BUILT_IN
    assert {row[0]: row[1] for row in rows}["shell"] == "execute"
    assert all(row[2] for row in rows)
    assert callgate("tools", "--names", cwd=ws).out.split() == BUILT_IN


def test_hidden_tools_are_listed_on_request_with_the_reason(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text('[tools]\ndisable = ["shell"]\n')
    assert "shell" not in callgate("tools", "--names", cwd=ws).out.split()
    hidden = {
        each["name"]: each["hidden_because"]
        for each in callgate("tools", "--all", "--json", cwd=ws).json
        if not each["visible"]
    }
    nobody = "it is available only to an agent in a turn; run: callgate chat"
    assert {name: hidden.pop(name) for name in GOOGLE} == dict.fromkeys(GOOGLE, NO_ACCOUNT)
    assert all("agent_hooks" in hidden.pop(name) for name in HOOKED)
    others = {"shell": "disabled in settings", "web_search": NO_SEARCH, "connect_host": "only callgate calls it"}
    assert hidden == others | dict.fromkeys(AGENTS, nobody)
    assert "disabled in settings" in callgate("tools", "--all", cwd=ws).out


def test_mode_none_hides_every_tool(ws: Path) -> None:
    assert callgate("tools", "--mode", "none", cwd=ws).out == ""
    listed = callgate("tools", "--mode", "none", "--all", "--json", cwd=ws).json
    assert [each["name"] for each in listed] == sorted(
        [*BUILT_IN, *AGENTS, *GOOGLE, *HOOKED, "connect_host", "web_search"]
    )
    assert not any(each["visible"] for each in listed)


def test_what_only_an_agent_can_use_is_refused_to_others(ws: Path) -> None:
    ran = callgate("call", "spawn_agent", "task=look", "--json", cwd=ws)
    assert ran.code == EXIT_CODES[ToolErrorClass.NOT_FOUND]
    assert ran.json["error"]["class"] == ToolErrorClass.NOT_FOUND


def test_tools_as_json_carry_their_schema(ws: Path) -> None:
    read_file = {each["name"]: each for each in callgate("tools", "--json", cwd=ws).json}["read_file"]
    assert list(read_file["input_schema"]["properties"]) == ["path", "offset", "limit", "regex"]
    assert (read_file["side_effects"], read_file["source"]) == ("read", "builtin")


@pytest.mark.spec("T16")
def test_a_description_cannot_act_on_a_terminal(ws: Path, home: Path) -> None:
    (home / "t.py").write_text(
        "from callgate import tool\n"
        "@tool(side_effects='none', description='\\x1b[2Jgone')\n"
        "async def loud() -> None: ...\n"
    )
    (home / "settings.toml").write_text('[tools]\nload = ["t.py"]\n')
    assert "\x1b" not in callgate("tools", cwd=ws).out


RULES = """
[policy.per_tool]
delete_file = "deny"

[[policy.rules]]
decision = "allow"
tool = "shell"
command = "git status *"

[[policy.rules]]
decision = "deny"
tool = "shell"
command = "rm *"

[[policy.rules]]
decision = "deny"
path = "secret/**"
"""


def test_the_decision_names_the_rule_and_its_line(ws: Path, home: Path) -> None:
    settings = home / "settings.toml"
    settings.write_text(RULES)
    ran = callgate("policy", "explain", "delete_file", "path=a.txt", "--json", cwd=ws)
    assert (ran.code, ran.json["decision"], ran.json["reason"]) == (0, "deny", "per_tool")
    assert ran.json["origin"] == {"file": str(settings), "line": 3}
    plain = callgate("policy", "explain", "delete_file", "path=a.txt", cwd=ws)
    assert plain.out.startswith("deny: ")
    assert f"{settings}:3" in plain.out


def test_each_command_of_a_line_has_its_own_verdict(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text(RULES)
    line = "command=git status; rm -rf build; make"
    ran = callgate("policy", "explain", "shell", line, "--json", cwd=ws)
    assert ran.json["decision"] == "deny"
    assert [(each["command"], each["decision"]) for each in ran.json["commands"]] == [
        ("git status", "allow"),
        ("rm -rf build", "deny"),
        ("make", None),
    ]
    origins = [each["origin"] and each["origin"]["line"] for each in ran.json["commands"]]
    assert origins == [5, 10, None]


@pytest.mark.parametrize(
    ("words", "decision"),
    [
        (["read_file", "path=a.txt"], "allow"),
        (["write_file", "path=b", "content=x"], "ask"),
        (["write_file", "path=b", "content=x", "--mode", "write"], "allow"),
        (["write_file", "path=b", "content=x", "--mode", "read"], "deny"),
        (["write_file", "path=b", "content=x", "--caller", "internal"], "allow"),
        (["write_file", "--args", '{"path": "b", "content": "x"}'], "ask"),
        (["read_file", "path=secret/x"], "deny"),
        (["shell", "command=git status"], "allow"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else each,
)
def test_mode_caller_and_arguments_count(words: list[str], decision: str, ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text(RULES)
    ran = callgate("policy", "explain", *words, "--json", cwd=ws)
    assert (ran.code, ran.json["decision"]) == (0, decision)


@pytest.mark.parametrize(
    ("words", "error_class"),
    [
        (["no_such_tool"], "not_found"),
        (["read_file", "limit=x"], "validation_error"),
        (["read_file", "--args", "{"], "parse_error"),
        (["read_file", "path=../x"], "permission_denied"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else each,
)
def test_a_call_that_would_end_before_the_policy_says_so(words: list[str], error_class: str, ws: Path) -> None:
    ran = callgate("policy", "explain", *words, "--json", cwd=ws)
    assert (ran.code, ran.json["decision"]) == (0, None)
    assert ran.json["ends_before"]["class"] == error_class
    assert error_class in callgate("policy", "explain", *words, cwd=ws).out


def test_explaining_leaves_no_trace(ws: Path, home: Path) -> None:
    callgate("policy", "explain", "write_file", "path=b", "content=x", cwd=ws)
    assert (list(home.iterdir()), sorted(os.listdir(ws))) == ([], ["a.txt"])


@pytest.mark.spec("T23")
def test_a_trusted_directory_narrows_and_no_other_does(ws: Path, tmp_path: Path) -> None:
    (ws / ".callgate").mkdir()
    (ws / ".callgate" / "settings.toml").write_text('[policy.per_tool]\nread_file = "deny"\n')
    read = ("call", "read_file", "path=a.txt")
    assert callgate(*read, cwd=ws).code == 0
    assert callgate("trust", str(ws), cwd=tmp_path).code == 0
    assert callgate("trust", "--list", cwd=tmp_path).out == f"{os.path.realpath(ws)}\n"
    assert callgate(*read, cwd=ws).code == 3
    assert callgate("trust", ".", "--remove", "--json", cwd=ws).json == {
        "directory": os.path.realpath(ws),
        "trusted": False,
        "changed": True,
        "warnings": [],
    }
    assert callgate(*read, cwd=ws).code == 0
    assert callgate("trust", "--list", "--json", cwd=ws).json == []


@pytest.mark.parametrize("words", [[], ["missing"], ["a.txt"], ["a", "b"], ["--list", "."]], ids=" ".join)
def test_trust_takes_one_directory(words: list[str], ws: Path) -> None:
    assert callgate("trust", *words, cwd=ws).code == 2


@pytest.mark.spec("T24")
def test_a_directory_behind_the_dashes_is_never_an_option(ws: Path) -> None:
    (ws / "--list").mkdir()
    ran = callgate("trust", "--json", "--", "--list", cwd=ws)
    assert ran.json["directory"] == os.path.realpath(ws / "--list")


def test_a_wrong_settings_file_stops_every_command_with_file_and_line(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text('mode = "ask"\n[policy]\nrulez = []\n')
    for words in (["call", "list_dir"], ["tools"], ["policy", "explain", "list_dir"]):
        ran = callgate(*words, "--json", cwd=ws)
        assert (ran.code, ran.json["error"]["reason"]) == (2, "settings_invalid")
        assert f"{home}/settings.toml:3: " in ran.err


def test_init_writes_settings_and_a_tool_that_work(ws: Path, home: Path) -> None:
    home.rmdir()
    ran = callgate("init", "--json", cwd=ws)
    files = [str(home / "settings.toml"), str(home / "tools" / "hello.py")]
    assert ran.json == {"wrote": files, "kept": []}
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in (home, *files)] == [
        0o700,
        0o600,
        0o600,
    ]
    assert callgate("call", "hello", "name=world", "times=2", cwd=ws).out == ("Hello, world!\nHello, world!\n")
    assert callgate("doctor", cwd=ws).code == 0


def test_doctor_says_that_written_files_are_not_synced(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text('[durability]\nfiles = "fast"\n')
    checks = {each["check"]: each for each in callgate("doctor", "--json", cwd=ws).json["checks"]}
    assert checks["settings"]["level"] == "note" and "power cut" in checks["settings"]["text"]


def test_init_overwrites_nothing(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text("# mine\n")
    ran = callgate("init", cwd=ws)
    assert ran.code == 0
    assert (home / "settings.toml").read_text() == "# mine\n"
    assert "kept" in ran.err


def test_init_for_a_workspace_writes_there_alone(ws: Path, home: Path) -> None:
    ran = callgate("init", "--workspace", "--json", cwd=ws)
    assert ran.json["wrote"] == [os.path.realpath(ws / ".callgate" / "settings.toml")]
    assert list(home.iterdir()) == []
    callgate("trust", ".", cwd=ws)
    assert callgate("call", "list_dir", cwd=ws).code == 0
