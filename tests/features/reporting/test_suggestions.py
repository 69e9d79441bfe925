"""Rules suggested from the record: as narrow as what was agreed to, and none against a no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callgate.audit.records import CallRecord, encode
from callgate.config.home import Home
from callgate.core.effects import Capability, SideEffects
from callgate.core.sessions import Mode
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.validate import validate
from callgate.features.reporting.backtest_inputs import suggested_rules
from callgate.features.reporting.narrow_rules import LeftOut, written
from callgate.features.reporting.suggesting import Drop, Suggestions, Wanted
from callgate.instance.wiring.runtime import BUILT_IN
from tests.support import make_tool

WORKSPACE = "/gone/ws"
MAIL = {
    "type": "object",
    "properties": {
        "to": {"type": "string"},
        "cc": {"type": "array", "items": {"type": "string"}},
        "subject": {"type": "string"},
        "body": {"type": "string"},
    },
}
ANY = {"type": "object", "properties": {"to": {"type": "string"}}, "additionalProperties": True}
DESTROYS = frozenset({Capability.MUTATES_EXTERNAL, Capability.DESTRUCTIVE})

REGISTRY = Registry()
for factory in BUILT_IN:
    REGISTRY.register(factory)
REGISTRY.register(make_tool("send_mail", SideEffects.NETWORK, MAIL))
REGISTRY.register(make_tool("post_any", SideEffects.NETWORK, ANY))
REGISTRY.register(make_tool("wipe", None, MAIL, capabilities=DESTROYS))
REGISTRY.register(make_tool("confirm", SideEffects.NETWORK, MAIL, always_ask=True))


class Log:
    """Records as the journal writes them, newest last."""

    def __init__(self) -> None:
        self.records: list[CallRecord] = []

    def add(self, name: str, arguments: dict[str, Any], times: int = 1, **more: Any) -> None:
        tool = REGISTRY.find(name)
        assert tool is not None
        checked = validate(arguments, tool)
        for _ in range(times):
            at = len(self.records)
            fields: dict[str, Any] = {
                "id": f"audit_{at}",
                "ts": 1_000 + at,
                "caller": "llm",
                "tool": tool.name,
                "decision": "allow",
                "call_id": f"tu_{at}",
                "session": "sess_1",
                "cwd": WORKSPACE,
                "args": tool.summary.of(checked.arguments, checked.canonical),
                "args_hash": checked.sha256,
                "side_effects": tool.effect,
                "capabilities": tool.capability_names,
                "policy": "class_default (built-in default)",
                "sandbox": "workspace" if tool.definition.sandboxed else None,
                "called": f"ev_{at}",
                "confirmation_id": f"q_{at}",
                "answered_by": "user",
            }
            self.records.append(CallRecord(**{**fields, **more}))

    def deny(self, name: str, arguments: dict[str, Any], **more: Any) -> None:
        no = {"decision": "deny", "error_class": "user_denied", "reason": "user_denied", "called": None}
        self.add(name, arguments, **{**no, **more})


class Suggesting:
    def __init__(self, home: Path) -> None:
        self.home = Home(str(home))
        self.log = Log()

    def __call__(
        self, settings: str = "", *, since_ms: int = 0, modes: dict[str, Mode] | None = None, **wanted: Any
    ) -> Suggestions:
        Path(self.home.settings).write_text(settings)
        Path(self.home.audit).write_bytes(b"".join(encode(each) + b"\n" for each in self.log.records))
        return suggested_rules(self.home, Wanted(**wanted), since_ms=since_ms, tool=REGISTRY.find, modes=modes or {})


@pytest.fixture
def suggesting(home: Path) -> Suggesting:
    return Suggesting(home)


def rules(found: Suggestions) -> list[dict[str, Any]]:
    return [written(each.rule) for each in found.suggested]


BASE = {"decision": "allow", "caller": "llm", "workspace": WORKSPACE}


def test_a_command_becomes_exactly_its_words(suggesting: Suggesting) -> None:
    suggesting.log.add("shell", {"command": "ls -l  'my files'"}, 3)
    found = suggesting()
    assert rules(found) == [{**BASE, "tool": "shell", "command": "ls -l 'my files'", "path": "."}]
    (only,) = found.suggested
    assert (only.count, only.answered, only.sessions, only.first_ms, only.last_ms) == (3, 3, 1, 1000, 1002)
    assert (only.steps, only.same) == ({"ask->allow": 3}, 0)


@pytest.mark.parametrize(
    "command",
    [
        *("python3 x.py", "python3.12 -m x", "bash x.sh", "env A=1 ls", "sudo ls", "xargs ls", "nice ls"),
        *("./build.sh", "/usr/bin/ls", "node x.js", "find . -name x", "ssh host ls", "timeout 5 ls"),
        *("docker run x", "perl -e 1", "awk 1 f", "doas ls", "npx x"),
    ],
)
@pytest.mark.spec("T15")
def test_what_runs_what_it_is_told_is_never_suggested(suggesting: Suggesting, command: str) -> None:
    suggesting.log.add("shell", {"command": command}, 5)
    found = suggesting()
    assert (rules(found), found.left_out) == ([], {LeftOut.INTERPRETER: 5})


@pytest.mark.parametrize(
    "command", ["ls && rm x", "ls > out", "ls $HOME", "A=1 ls", "ls | wc", "ls *", "ls `x`", "ls; ls"]
)
def test_a_line_of_more_than_plain_words_is_not_suggested(suggesting: Suggesting, command: str) -> None:
    suggesting.log.add("shell", {"command": command}, 5)
    found = suggesting()
    assert (rules(found), found.left_out) == ([], {LeftOut.COMPOUND: 5})


def test_a_file_becomes_its_path_whatever_was_written(suggesting: Suggesting) -> None:
    for text in ("a", "b", "c"):
        suggesting.log.add("write_file", {"path": "src/../notes.md", "content": text})
    assert rules(suggesting()) == [{**BASE, "tool": "write_file", "path": "notes.md"}]


def test_a_mail_is_bound_to_its_recipients_and_to_no_others(suggesting: Suggesting) -> None:
    for text in ("one", "two", "three"):
        suggesting.log.add("send_mail", {"to": "bob@x.example", "subject": text, "body": text})
    rule = {**BASE, "tool": "send_mail", "arguments": {"to": "bob@x.example"}, "without": ["cc"]}
    assert rules(suggesting()) == [rule]


def test_what_differs_in_a_recipient_is_another_rule(suggesting: Suggesting) -> None:
    suggesting.log.add("send_mail", {"to": "bob@x.example"}, 2)
    suggesting.log.add("send_mail", {"to": "bob@x.example", "cc": ["eve@x.example"]}, 2)
    suggesting.log.add("send_mail", {"to": "eve@x.example"}, 1)
    found = suggesting(least=2)
    assert [(rule["arguments"], rule.get("without")) for rule in rules(found)] == [
        ({"cc": '["eve@x.example"]', "to": "bob@x.example"}, None),
        ({"to": "bob@x.example"}, ["cc"]),
    ]
    assert found.rare == 1


def test_a_value_with_a_wildcard_is_bound_by_its_hash(suggesting: Suggesting) -> None:
    suggesting.log.add("send_mail", {"to": "*"}, 3)
    suggesting.log.add("post_any", {"to": "bob", "more": "x"}, 3)
    found = [*rules(suggesting())]
    assert [sorted(set(rule) - set(BASE)) for rule in found] == [["arguments_sha256", "tool"]] * 2


def test_what_the_record_does_not_tell_is_not_guessed(suggesting: Suggesting) -> None:
    suggesting.log.add("send_mail", {"to": "password=hunter2hunter2"}, 3)
    suggesting.log.add("send_mail", {"to": "bob@x.example" + "x" * 5_000}, 3)
    suggesting.log.add("shell", {"command": "ls " + "x" * 5_000}, 3)
    found = suggesting()
    assert (rules(found), found.left_out) == ([], {LeftOut.REDACTED: 9})


def test_a_long_text_that_only_says_something_does_not_matter(suggesting: Suggesting) -> None:
    suggesting.log.add("send_mail", {"to": "bob@x.example", "body": "x" * 50_000}, 3)
    assert [rule["arguments"] for rule in rules(suggesting())] == [{"to": "bob@x.example"}]


@pytest.mark.parametrize(("tool", "why"), [("wipe", LeftOut.DESTRUCTIVE), ("confirm", LeftOut.ALWAYS_ASKED)])
def test_some_tools_have_no_rule(suggesting: Suggesting, tool: str, why: LeftOut) -> None:
    suggesting.log.add(tool, {"to": "bob@x.example"}, 3)
    found = suggesting()
    assert (rules(found), found.left_out) == ([], {why: 3})


def test_a_tool_that_is_gone_is_named(suggesting: Suggesting) -> None:
    suggesting.log.add("send_mail", {"to": "bob"}, 3, tool="gone")
    assert suggesting().left_out == {LeftOut.TOOL: 3}


def test_only_what_was_agreed_to_counts(suggesting: Suggesting) -> None:
    none: dict[str, Any] = {"called": None, "answered_by": None}
    suggesting.log.add("send_mail", {"to": "a"}, 3, decision="deny", error_class="confirmation_timeout", **none)
    suggesting.log.add("send_mail", {"to": "b"}, 3, error_class="cancelled", **none)
    suggesting.log.add("send_mail", {"to": "c"}, 3, error_class="execution_error")
    suggesting.log.add("send_mail", {"to": "d"}, 3, answered_by=None, confirmation_id=None)
    found = suggesting()
    assert [(each.rule.arguments["to"], each.answered) for each in found.suggested] == [("c", 3), ("d", 0)]


def test_what_mode_write_let_run_counts_as_having_run(suggesting: Suggesting) -> None:
    suggesting.log.add("send_mail", {"to": "a"}, 3, answered_by=None, policy="mode_write (x)")
    (only,) = suggesting(modes={"sess_1": Mode.WRITE}).suggested
    assert (only.answered, only.steps, only.same) == (0, {}, 3)


def test_what_is_allowed_already_is_not_suggested(suggesting: Suggesting) -> None:
    suggesting.log.add("send_mail", {"to": "bob"}, 3)
    suggesting.log.add("read_file", {"path": "a"}, 3)
    assert suggesting('[policy.per_tool]\nsend_mail = "auto"\n').suggested == ()
    assert suggesting('[policy.per_tool]\nsend_mail = "deny"\n').suggested == ()


def test_a_rule_that_would_allow_a_denied_call_is_dropped_and_named(suggesting: Suggesting) -> None:
    suggesting.log.deny("send_mail", {"to": "bob", "body": "the secret"})
    suggesting.log.add("send_mail", {"to": "bob", "body": "hello"}, 3)
    suggesting.log.add("send_mail", {"to": "eve"}, 3)
    found = suggesting(since_ms=1_001)
    assert [each.rule.arguments["to"] for each in found.suggested] == ["eve"]
    (dropped,) = found.dropped
    assert (dropped.rule.arguments["to"], dropped.dropped, dropped.denied_call) == ("bob", Drop.DENIED, "tu_0")


def test_the_mode_that_a_session_has_by_now_hides_no_denial(suggesting: Suggesting) -> None:
    suggesting.log.add("send_mail", {"to": "bob"}, 3, session="sess_2")
    suggesting.log.deny("send_mail", {"to": "bob"})
    found = suggesting(modes={"sess_1": Mode.WRITE})
    assert (found.suggested, [each.dropped for each in found.dropped]) == ((), [Drop.DENIED])


def test_a_denial_that_may_be_of_such_a_call_speaks_against_it(suggesting: Suggesting) -> None:
    suggesting.log.deny("send_mail", {"to": "password=hunter2hunter2"})
    suggesting.log.add("send_mail", {"to": "bob"}, 3)
    found = suggesting()
    assert [each.dropped for each in found.dropped] == [Drop.UNCLEAR]


def test_a_denial_elsewhere_or_by_nobody_does_not(suggesting: Suggesting) -> None:
    suggesting.log.deny("send_mail", {"to": "bob"}, cwd="/gone/other")
    suggesting.log.deny("send_mail", {"to": "bob"}, caller="mcp")
    suggesting.log.deny("send_mail", {"to": "bob"}, error_class="permission_denied", reason="no_confirmer")
    suggesting.log.add("send_mail", {"to": "bob"}, 3)
    assert len(suggesting().suggested) == 1


@pytest.mark.parametrize("reason", ["no_confirmer", "settings_invalid", "mode_read", "changed_while_waiting"])
def test_a_refusal_that_is_not_about_the_call_does_not_either(suggesting: Suggesting, reason: str) -> None:
    suggesting.log.deny("send_mail", {"to": "bob"}, error_class="permission_denied", reason=reason)
    suggesting.log.add("send_mail", {"to": "bob"}, 3)
    assert len(suggesting().suggested) == 1


def test_what_a_rule_asks_about_is_not_suggested_in_vain(suggesting: Suggesting) -> None:
    suggesting.log.add("send_mail", {"to": "bob"}, 3)
    found = suggesting('[[policy.rules]]\ndecision = "ask"\ntool = "send_mail"\n')
    assert (found.suggested, found.dropped, found.left_out) == ((), (), {LeftOut.RULE: 3})


def test_who_calls_and_where_is_part_of_the_rule(suggesting: Suggesting) -> None:
    suggesting.log.add("send_mail", {"to": "bob"}, 3, caller="cli")
    suggesting.log.add("send_mail", {"to": "bob"}, 3, cwd="/gone/other")
    suggesting.log.add("send_mail", {"to": "bob"}, 2)
    found = {(rule["caller"], rule["workspace"]) for rule in rules(suggesting())}
    assert found == {("cli", WORKSPACE), ("llm", "/gone/other")}


def test_only_what_is_wanted_is_suggested(suggesting: Suggesting) -> None:
    suggesting.log.add("send_mail", {"to": "bob"}, 3)
    suggesting.log.add("shell", {"command": "ls"}, 3, session="sess_2", cwd="/gone/other/below")
    assert [rule["tool"] for rule in rules(suggesting(tool="shell"))] == ["shell"]
    assert [rule["tool"] for rule in rules(suggesting(session="sess_1"))] == ["send_mail"]
    assert [rule["tool"] for rule in rules(suggesting(workspace="/gone/other"))] == ["shell"]
    assert rules(suggesting(least=4)) == []


def test_a_protected_place_has_no_rule(suggesting: Suggesting) -> None:
    suggesting.log.add("write_file", {"path": ".git/config", "content": ""}, 3)
    suggesting.log.add("write_file", {"path": "a*", "content": ""}, 3)
    found = suggesting()
    assert [set(rule) - set(BASE) for rule in rules(found)] == [{"tool", "arguments_sha256"}]


def test_a_long_record_is_tried_once_a_kind(suggesting: Suggesting) -> None:
    for number in range(110):
        suggesting.log.add("send_mail", {"to": f"user{number}@x.example"}, 90)
    found = suggesting()
    assert (len(found.suggested), found.untried, found.looked_at) == (100, 10, 9_900)
    assert {(each.count, each.same) for each in found.suggested} == {(90, 109 * 90)}
