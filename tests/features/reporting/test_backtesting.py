"""Other settings tried on the calls of a record: what changes is found, nothing is guessed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.audit.keys import key_path, keyed_hash, make_key
from callgate.audit.reading import newest_calls
from callgate.audit.records import CallRecord, encode
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.trust import trust
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolError
from callgate.core.sessions import Mode
from callgate.dispatch.tools.registry import Registered, Registry
from callgate.dispatch.validate import validate
from callgate.features.reporting.backtest_inputs import changed_settings, lookups, settings_in_force
from callgate.features.reporting.backtests import Backtest, backtest
from callgate.features.reporting.rejudging import Doubt
from callgate.instance.wiring.builder import register_own
from callgate.instance.wiring.runtime import BUILT_IN, Wired
from callgate.policy.rules import Outcome
from callgate.redaction.data import summarize
from callgate.sandbox.plans import CannotGuarantee

GONE = "/gone/ws"
"""A workspace that is not there: whoever opens a file in it fails."""

REGISTRY = Registry()
for factory in BUILT_IN:
    REGISTRY.register(factory)


def tool_named(name: str) -> Registered:
    tool = REGISTRY.find(name)
    assert tool is not None
    return tool


def record(name: str, arguments: dict[str, Any], **more: Any) -> CallRecord:
    """What the journal writes about a call of a built-in tool that the policy allowed."""
    tool = tool_named(name)
    checked = validate(arguments, tool)
    said: dict[str, Any] = {
        "id": "audit_1",
        "ts": 1_000,
        "caller": "agent",
        "tool": tool.name,
        "decision": "allow",
        "call_id": "tu_1",
        "session": "sess_1",
        "cwd": GONE,
        "args": tool.summary.of(checked.arguments, checked.canonical),
        "args_hash": checked.sha256,
        "side_effects": tool.effect,
        "capabilities": tool.capability_names,
        "policy": "class_default (built-in default)",
        "sandbox": "workspace" if tool.definition.sandboxed else None,
    }
    return CallRecord(**{**said, **more})


def foreign(arguments: str, **more: Any) -> CallRecord:
    """A call of a tool that is not registered here."""
    said: dict[str, Any] = {
        "tool": "post",
        "args": arguments,
        "args_hash": "a" * 64,
        "side_effects": "network",
        "capabilities": ("mutates-external",),
        "sandbox": None,
    }
    return record("read_file", {"path": "a"}, **{**said, **more})


class Trial:
    """A home in which settings are in force, and a record to try others on."""

    def __init__(self, home: Path) -> None:
        self.home = Home(str(home))

    def __call__(
        self,
        records: list[CallRecord],
        new: str = "",
        old: str = "",
        *,
        modes: dict[str, Mode] | None = None,
        since_ms: int = 0,
        limit: int | None = None,
    ) -> Backtest:
        Path(self.home.settings).write_text(old)
        Path(self.home.audit).write_bytes(b"".join(encode(each) + b"\n" for each in records))
        return backtest(
            settings_in_force(self.home),
            changed_settings(self.home, new.encode(), "new.toml"),
            newest_calls(self.home.audit, since_ms, limit),
            since_ms=since_ms,
            lookups=lookups(self.home, REGISTRY.find),
            modes=modes or {},
        )

    def answer(self, each: CallRecord, new: str = "", old: str = "", **more: Any) -> str:
        """What becomes of one call, in a word."""
        return word(self([each], new, old, **more))


def word(found: Backtest) -> str:
    if found.changes:
        (change,) = found.changes
        return change.step
    return next(iter(found.undecidable), "same" if found.same else "unjudged")


@pytest.fixture
def trial(home: Path) -> Trial:
    return Trial(home)


READ = record("read_file", {"path": "a.txt"})
WRITE = record("write_file", {"path": "b.txt", "content": "x"})
PUSH = record("shell", {"command": "git push"})
LONG = record("write_file", {"path": "b.txt", "content": "y" * 500})
SECRET = record("shell", {"command": "curl -H 'Authorization: Bearer ghp_a8Zk3QmP0xT7vLw2Nc5Rj9Ye4'"})

WRITES = '[policy.default]\nwrite = "auto"\n'


def rule(decision: str, **conditions: str) -> str:
    lines = [f"{key} = {value}" for key, value in conditions.items()]
    return "\n".join(["[[policy.rules]]", f'decision = "{decision}"', *lines, ""])


DENY_B = rule("deny", path='"b.*"')
ALLOW_GIT = rule("allow", tool='"shell"', command='"git *"')


def test_what_changes_is_grouped_and_what_is_loosened_comes_first(trial: Trial) -> None:
    newer = record("write_file", {"path": "c.txt", "content": "x"}, ts=2_000, session="sess_2")
    found = trial([READ, READ, WRITE, PUSH, newer], WRITES + rule("deny", tool='"read_*"'))
    described = found.described()
    changed = described.pop("changed")
    assert described == {
        "since": 0.0,
        "judged": 5,
        "same": 1,
        "loosened": 2,
        "steps": {"ask->allow": 2, "allow->deny": 2},
        "undecidable": {"count": 0, "why": {}},
        "unjudged": 0,
    }
    assert changed == [
        {
            "tool": "write_file",
            "arguments": '{"content":"x","path":"c.txt"}',
            "at": 2.0,
            "session": "sess_2",
            "call": "tu_1",
            "caller": "agent",
            "workspace": GONE,
            "loosened": True,
            "count": 2,
            "old": {
                "outcome": "ask",
                "reason": "class_default",
                "sentence": "Calls with effect write need approval by default.",
                "origin": {"file": "built-in default", "line": None},
            },
            "new": {
                "outcome": "allow",
                "reason": "class_default",
                "sentence": "Calls with effect write are allowed by the settings.",
                "origin": {"file": "new.toml", "line": 2},
            },
        },
        {
            "tool": "read_file",
            "arguments": '{"path":"a.txt"}',
            "at": 1.0,
            "session": "sess_1",
            "call": "tu_1",
            "caller": "agent",
            "workspace": GONE,
            "loosened": False,
            "count": 2,
            "old": {
                "outcome": "allow",
                "reason": "class_default",
                "sentence": "Calls with effect read are allowed by default.",
                "origin": {"file": "built-in default", "line": None},
            },
            "new": {
                "outcome": "deny",
                "reason": "rule",
                "sentence": "Rule: deny tool = read_*.",
                "origin": {"file": "new.toml", "line": 3},
            },
        },
    ]


SETTINGS = [
    "",
    'mode = "none"\n',
    'mode = "read"\nsandbox = "off"\n',
    'mode = "write"\n',
    WRITES,
    DENY_B,
    ALLOW_GIT + rule("deny", command='"rm *"'),
    '[policy]\nconfirm_destructive = true\n[policy.per_tool]\nexecute_command = "deny"\n',
    '[policy]\ntrusted_workspaces = ["{ws}"]\n[policy.trusted_workspace_overrides]\nread = "deny"\n',
    rule("ask", path='".git/**"') + rule("allow", tool='"edit_file"', path='"*"'),
    rule("allow", network="true", tool='"shell"') + rule("ask", caller='"agent"', tool='"list_*"'),
    rule("deny", arguments='{ content = "x*" }') + rule("allow", path='"{ws}/a.txt"'),
    '[policy.default]\nnetwork = "deny"\nexecute = "auto"\n',
    '[workspace]\nextra_roots = [{ path = "{extra}", access = "read" }]\n',
    '[workspace]\nextra_roots = [{ path = "{extra}", access = "write" }]\n[policy.default]\nwrite = "deny"\n',
]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {"path": "a.txt"}),
    ("read_file", {"path": "{ws}/sub/../a.txt"}),
    ("read_file", {"path": "../outside"}),
    ("read_file", {"path": "{extra}/e.txt"}),
    ("write_file", {"path": "{extra}/e.txt", "content": "x"}),
    ("write_file", {"path": "b.txt", "content": "x"}),
    ("write_file", {"path": "B.TXT", "content": "y" * 500}),
    ("write_file", {"path": ".git/hooks/x", "content": "z"}),
    ("write_file", {"path": ".git/../b.txt", "content": "z"}),
    ("patch_file", {"path": "a.txt", "old": "one", "new": "two"}),
    ("list_dir", {"path": "."}),
    ("delete_file", {"path": "b.txt"}),
    ("shell", {"command": "git status && rm -rf x"}),
    ("shell", {"command": "git push", "network": True}),
    ("shell", {"command": "git status; git log"}),
]


@pytest.fixture
def explained(home: Path, tmp_path: Path) -> Any:
    """Judges calls as they would be made under some settings: the reference."""
    for name in ("ws", "ws/sub", "ws/.git", "extra"):
        (tmp_path / name).mkdir()
    (tmp_path / "ws" / "a.txt").write_text("one")

    def fill(value: str) -> str:
        return value.replace("{ws}", f"{tmp_path}/ws").replace("{extra}", f"{tmp_path}/extra")

    def explain(settings: str) -> dict[str, tuple[CallRecord, str]]:
        (home / "settings.toml").write_text(fill(settings))
        wired = Wired(Home(str(home)), audit=False)
        register_own(wired)
        session = wired.session(f"{tmp_path}/ws")
        found = {}
        for name, said in CALLS:
            arguments = {key: fill(v) if isinstance(v, str) else v for key, v in said.items()}
            call = ToolCall(tool=name, arguments=arguments, session=session, caller=CallerKind.AGENT)
            more: dict[str, Any] = {"cwd": session.workspace}
            try:
                outcome = wired.runtime.permission.explain(call)[1].outcome
            except CannotGuarantee:  # on this machine: nothing to compare with
                continue
            except ToolError as error:
                outcome, more = Outcome.DENY, {**more, "policy": None, "reason": error.reason}
            found[f"{name} {said}"] = record(name, arguments, **more), str(outcome)
        return found

    explain.fill = fill  # type: ignore[attr-defined]
    return explain


def test_the_record_is_judged_as_the_calls_would_be(explained: Any, trial: Trial) -> None:
    decided = [explained(settings) for settings in SETTINGS]
    for old in range(len(SETTINGS)):
        for new in (old - 1, old - 4):
            texts = [explained.fill(SETTINGS[each]) for each in (new, old)]
            for call in decided[old].keys() & decided[new].keys():
                (each, was), (_, now) = decided[old][call], decided[new][call]
                expected = {"same" if was == now else f"{was}->{now}"}
                if "[500 characters]" in each.args:
                    expected.add(Doubt.ARGUMENTS)
                assert trial.answer(each, *texts) in expected, (each.args, *texts)


def test_what_is_cut_or_masked_is_not_guessed(trial: Trial) -> None:
    about_content = rule("deny", arguments='{ content = "*yyy*" }')
    assert trial.answer(LONG, about_content) is Doubt.ARGUMENTS
    assert trial.answer(LONG, WRITES) == "ask->allow"  # nothing looks at it
    assert trial.answer(LONG, DENY_B) == "ask->deny"  # the path is whole
    assert trial.answer(LONG, DENY_B + about_content) == "ask->deny"  # whatever the content is
    assert "[REDACTED]" in SECRET.args
    assert trial.answer(SECRET, rule("allow", command='"curl *"')) is Doubt.ARGUMENTS
    assert trial.answer(SECRET, ALLOW_GIT) is Doubt.ARGUMENTS
    assert trial.answer(SECRET, rule("deny", tool='"shell"') + ALLOW_GIT) == "ask->deny"
    whole = record("shell", {"command": "git log"}, args='{"command":"git …[2400 characters]… x')
    assert trial.answer(whole, rule("allow", command='"git *"')) is Doubt.ARGUMENTS
    assert trial.answer(whole, 'mode = "none"') == "ask->deny"
    assert trial.answer(whole, rule("deny", path='"sub"')) is Doubt.ARGUMENTS
    assert trial.answer(whole, "[tools]\ndisable = ['shell']") == "ask->deny"


def test_a_rule_that_may_apply_neither_allows_nor_leaves_out(trial: Trial) -> None:
    auto = '[policy.default]\nexecute = "auto"\n'
    assert trial.answer(LONG, rule("allow", arguments='{ content = "*" }')) is Doubt.ARGUMENTS
    assert trial.answer(SECRET, auto + ALLOW_GIT) is Doubt.ARGUMENTS  # not understood, it asks
    line = foreign('{"command":"git log && make"}', tool="build", side_effects="execute")
    half, other = (rule("allow", command=f'"{each} *"', path='"x"') for each in ("git", "make"))
    assert trial.answer(line, half) == "same"
    assert trial.answer(line, half + other) is Doubt.TOOL  # both together allow all of it
    cut = record("shell", {"command": "git log"}, args='{"command":"git …')
    assert trial.answer(cut, '[policy.default]\nnetwork = "deny"') is Doubt.ARGUMENTS


def test_a_hidden_path_matters_only_where_paths_do(trial: Trial) -> None:
    hidden = record("read_file", {"path": "a"}, args='{"path":"[REDACTED]"}')
    assert trial.answer(hidden, '[policy.default]\nread = "deny"') == "allow->deny"
    assert trial.answer(hidden, DENY_B) is Doubt.ARGUMENTS
    assert trial.answer(hidden, '[workspace]\nextra_roots = [{ path = "/x" }]') is Doubt.ARGUMENTS
    hidden.policy, hidden.reason = None, "workspace_escape"
    assert trial.answer(hidden, '[policy.default]\nread = "deny"') is Doubt.ARGUMENTS


def test_every_setting_that_counts_is_seen_to_change(trial: Trial) -> None:
    delete, write = record("delete_file", {"path": "b"}), 'mode = "write"\n'
    assert trial.answer(delete, write + "[policy]\nconfirm_destructive = true", write) == "allow->ask"
    online = record("shell", {"command": "git push", "network": True})
    auto = '[policy.default]\nexecute = "auto"\n'
    assert trial.answer(online, 'sandbox = "off"\n' + auto, auto) == "ask->allow"
    assert trial.answer(online, auto + '[sandbox]\nnetwork = "all"\n', auto) == "ask->allow"
    assert trial.answer(online, auto + 'network = "deny"\n', auto) == "ask->deny"


def test_commands_that_only_read_are_seen_to_need_no_question(trial: Trial) -> None:
    reads = '[policy]\nread_commands = "allow"\n'
    assert trial.answer(record("shell", {"command": "git status"}), reads) == "ask->allow"
    assert trial.answer(record("shell", {"command": "ls", "cwd": "src"}), reads) == "ask->allow"
    for arguments in (
        {"command": "touch x"},
        {"command": "ls /etc"},
        {"command": "ls", "cwd": ".."},
        {"command": "ls", "network": True},
    ):
        assert trial.answer(record("shell", arguments), reads) != "ask->allow"
    theirs = record("shell", {"command": "ls"}, sandbox="the agent's own process, outside the sandbox")
    assert trial.answer(theirs, reads) != "ask->allow"


def test_words_of_the_caller_that_look_like_a_cut_are_arguments(trial: Trial) -> None:
    said = record("shell", {"command": "git log [REDACTED] …[9 characters]…"})
    assert trial.answer(said, ALLOW_GIT) != Doubt.ARGUMENTS
    assert trial.answer(said, rule("deny", command='"git *"')) == "ask->deny"
    unproven = record("shell", {"command": "git log [REDACTED]"}, args_hash="b" * 64)
    assert trial.answer(unproven, rule("deny", command='"git *"')) is Doubt.ARGUMENTS


def test_a_doubt_that_both_share_changes_nothing(trial: Trial) -> None:
    both = rule("deny", arguments='{ content = "*yyy*" }')
    other = rule("deny", tool='"read_*"')
    assert trial.answer(LONG, "\n\n" + other + both, old=both) == "same"
    assert trial.answer(LONG, WRITES + both, old=both) is Doubt.ARGUMENTS


def test_exactly_these_arguments_are_known_by_their_hash(trial: Trial) -> None:
    exactly = rule("allow", arguments_sha256=f'"{LONG.args_hash}"')
    assert trial.answer(LONG, exactly) == "ask->allow"
    assert trial.answer(WRITE, exactly) == "same"


def test_a_keyed_hash_says_the_same_to_whoever_has_the_key(trial: Trial) -> None:
    key = make_key(trial.home.audit)

    def keyed(line: CallRecord) -> CallRecord:
        return msgspec.structs.replace(line, args_hash=keyed_hash(key, line.args_hash or ""))

    exactly = rule("allow", arguments_sha256=f'"{LONG.args_hash}"')
    assert trial.answer(keyed(LONG), exactly) == "ask->allow"
    assert trial.answer(keyed(WRITE), exactly) == "same"
    whole = keyed(record("shell", {"command": "git log [REDACTED] …[9 characters]…"}))
    assert trial.answer(whole, rule("deny", command='"git *"')) == "ask->deny"
    os.unlink(key_path(trial.home.audit))
    assert trial.answer(whole, rule("deny", command='"git *"')) is Doubt.ARGUMENTS


def test_of_a_tool_that_is_not_here_the_paths_are_not_known(trial: Trial) -> None:
    call = foreign('{"path":"b.txt"}')
    assert trial.answer(call, DENY_B) is Doubt.TOOL
    assert trial.answer(call, '[policy.per_tool]\npost = "deny"') == "ask->deny"
    assert trial.answer(call, rule("allow", tool='"po*"')) == "ask->allow"
    assert trial.answer(call, rule("allow", tool='"po*"') + DENY_B) is Doubt.TOOL


def test_without_capabilities_on_record_nothing_is_taken_for_harmless(trial: Trial) -> None:
    left = foreign("{}", capabilities=(), policy=None, reason="interrupted")
    assert trial.answer(left, '[policy.default]\nnetwork = "auto"') is Doubt.TOOL
    known = record("delete_file", {"path": "b"}, capabilities=(), policy=None, reason="interrupted")
    assert trial.answer(known, WRITES) == "same"  # destructive: it asks all the same


def test_a_path_that_was_refused_for_a_link_stays_undecided(trial: Trial) -> None:
    for reason in ("workspace_escape", "link_loop", "protected_path", "read_only_root"):
        refused = record("write_file", {"path": "link/x", "content": ""}, policy=None, reason=reason)
        assert trial.answer(refused, WRITES) is Doubt.LINK
    elsewhere = record("read_file", {"path": "/elsewhere/x"})  # it was let in, the text is out
    assert trial.answer(elsewhere, '[policy.default]\nread = "deny"') is Doubt.LINK


def test_a_tool_that_is_disabled_is_denied_by_that_line(trial: Trial) -> None:
    found = trial([READ], 'mode = "ask"\n[tools]\ndisable = ["read_file"]\n')
    (change,) = found.changes
    assert (change.step, change.new.reason, str(change.new.origin)) == (
        "allow->deny",
        "disabled",
        "new.toml:3",
    )


def test_the_output_of_its_own_session_is_inside(trial: Trial) -> None:
    kept = record("read_file", {"path": f"{trial.home.path}/artifacts/sess_1/out"})
    other = record("read_file", {"path": f"{trial.home.path}/artifacts/sess_2/out"})
    strict = '[policy.default]\nread = "deny"'
    assert [trial.answer(each, strict) for each in (kept, other)] == ["allow->deny", Doubt.LINK]
    own = record(
        "write_file",
        {"path": "settings.toml", "content": ""},
        cwd=trial.home.path,
        policy=None,
        reason="protected_path",
    )
    assert trial.answer(own, WRITES + rule("allow", path='"settings.toml"')) == "same"


def test_a_session_keeps_its_mode_and_the_others_have_the_default(trial: Trial) -> None:
    new = 'mode = "write"'
    assert trial.answer(WRITE, new) == "ask->allow"
    assert trial.answer(WRITE, new, modes={"sess_1": Mode.ASK}) == "ask->allow"
    assert trial.answer(WRITE, new, modes={"sess_1": Mode.READ}) == "same"
    assert trial.answer(WRITE, WRITES, modes={"sess_1": Mode.NONE}) == "same"


def test_what_the_machine_promises_is_not_guessed(trial: Trial) -> None:
    read = 'mode = "read"'
    assert trial.answer(PUSH, read) is Doubt.SANDBOX
    assert trial.answer(PUSH, read + '\nsandbox = "off"') == "ask->deny"
    jailed = record("shell", {"command": "git log"}, sandbox="read")
    assert trial.answer(jailed, read) == "ask->allow"
    refused = record("shell", {"command": "git log"}, sandbox="read", decision="deny")
    assert trial.answer(refused, read) is Doubt.SANDBOX


def test_a_call_from_a_mended_text_still_asks(trial: Trial) -> None:
    mended = record("write_file", {"path": "b", "content": ""}, policy="repaired (built-in default)")
    assert trial.answer(mended, WRITES) == "same"
    assert trial.answer(mended, '[policy.default]\nwrite = "deny"') == "ask->deny"


def test_what_ended_before_the_policy_is_not_counted(trial: Trial) -> None:
    unknown = record("read_file", {"path": "a"}, args_hash=None, side_effects=None, policy=None)
    invalid = record("read_file", {"path": "a"}, policy=None, error_class="validation_error")
    strange = record("read_file", {"path": "a"}, caller="nobody")
    found = trial([unknown, invalid, strange, READ], 'mode = "none"')
    assert (found.unjudged, found.judged, found.changed) == (3, 1, 1)


def test_only_what_is_new_enough_and_within_the_limit_is_judged(trial: Trial) -> None:
    records = [record("read_file", {"path": "a"}, ts=ts) for ts in range(1, 11)]
    assert trial(records, since_ms=4).judged == 7
    assert trial(records, since_ms=4, limit=2).judged == 2
    assert trial([]).judged == 0


def test_a_trusted_workspace_narrows_both(trial: Trial, tmp_path: Path) -> None:
    own = tmp_path / ".callgate"
    own.mkdir()
    settings = own / "settings.toml"
    settings.write_text('[policy.per_tool]\nwrite_file = "deny"\n')
    call = record("write_file", {"path": "b", "content": ""}, cwd=str(tmp_path))
    assert trial.answer(call, WRITES) == "ask->allow"  # not trusted: not read
    trust(trial.home, str(tmp_path))
    assert trial.answer(call, WRITES) == "same"
    settings.write_text("[policy\n")
    assert trial.answer(call, WRITES) is Doubt.WORKSPACE


def test_saved_answers_hold_under_both(trial: Trial) -> None:
    Path(trial.home.saved_rules).write_text('[[rules]]\ndecision = "deny"\ntool = "write_file"\n')
    assert trial.answer(WRITE, WRITES) == "same"


@pytest.mark.parametrize(("text", "line"), [("[policy]\nrulez = 1", 2), ("mode = \n", 1), ("x = '\xff'", 1)])
def test_wrong_settings_are_refused_with_their_line(text: str, line: int, trial: Trial) -> None:
    with pytest.raises(SettingsError) as raised:
        changed_settings(trial.home, text.encode("latin-1"), "new.toml")
    assert (raised.value.file, raised.value.line) == ("new.toml", line)


RULES = st.lists(
    st.sampled_from(
        [
            ALLOW_GIT,
            DENY_B,
            WRITES,
            rule("deny", command='"git push*"'),
            rule("allow", path='"b*"'),
            rule("ask", command='"rm *"'),
            rule("allow", command='"rm *"'),
            'mode = "write"\n',
            rule("deny", arguments='{ content = "x*" }'),
            rule("allow", arguments='{ command = "*" }'),
            rule("ask", network="true"),
            rule("allow", tool='"shell"', network="true"),
            rule("allow", arguments='{ cwd = "sub" }'),
            '[policy.default]\nexecute = "auto"\n',
        ]
    ),
    unique=True,
    max_size=5,
).map(lambda parts: "".join(sorted(parts, key=lambda part: (part[0] == "[", part[:2] == "[["))))
ARGUMENTS = st.one_of(
    st.fixed_dictionaries(
        {"command": st.sampled_from(["git push", "git log", "rm x && git log", "rm x; ls", "ls $(x)"])},
        optional={"network": st.just(True), "cwd": st.sampled_from([".", "sub"])},
    ),
    st.fixed_dictionaries({"path": st.sampled_from(["b", "c"]), "content": st.sampled_from(["x", "y"])}),
)


@given(ARGUMENTS, RULES, RULES, st.data())
def test_what_the_record_hides_leads_to_a_doubt_or_to_the_truth(
    arguments: dict[str, Any], old: str, new: str, data: st.DataObject
) -> None:
    """Whatever is masked in a record, the answer is that of the whole call, or none."""
    home = Path(os.environ["CALLGATE_HOME"])
    home.mkdir(exist_ok=True)
    trial = Trial(home)
    if old.count("[policy.default]") > 1 or new.count("[policy.default]") > 1:
        return
    call = record("shell" if "command" in arguments else "write_file", arguments)
    truth = trial.answer(call, new, old)
    hidden = data.draw(st.sampled_from([*validate(arguments, tool_named(call.tool)).arguments, "…"]))
    kept = {key: value for key, value in arguments.items() if key != hidden}
    texts = [summarize({**kept, hidden: data.draw(st.sampled_from(["[REDACTED]", "[9 characters]"]))}), call.args[:-2]]
    call.args = data.draw(st.sampled_from(texts))
    answer = trial.answer(call, new, old)
    assert answer == truth or answer is Doubt.ARGUMENTS
