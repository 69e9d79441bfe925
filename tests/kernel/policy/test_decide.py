"""The one algorithm of permission, row by row."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.calls import CallerKind
from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode, ResolvedPath
from callgate.policy.commands import parse_pattern
from callgate.policy.decide import Rulebook, bears_rules, decide
from callgate.policy.decisions import Question
from callgate.policy.opinions import lifts_protection
from callgate.policy.rules import Origin, Outcome, Policy, PolicyMode, Rule, Setting

ALLOW, ASK, DENY = Outcome.ALLOW, Outcome.ASK, Outcome.DENY
AUTO, PROMPT = Setting(PolicyMode.AUTO), Setting(PolicyMode.PROMPT)
N, R, W, NET, X = SideEffects


def question(tool: str = "t", effect: SideEffects = W, **more: Any) -> Question:
    return Question(tool=tool, effect=effect, **more)


def place(relative: str, root: str = "/ws", protected: bool = False) -> ResolvedPath:
    return ResolvedPath(
        given=relative,
        real=f"{root}/{relative}",
        root=root,
        relative=relative,
        exists=True,
        protected=protected,
        writable=True,
    )


def outcome(asked: Question, policy: Policy = Policy(), workspace: Policy | None = None) -> Outcome:
    return decide(asked, policy, workspace).outcome


@pytest.mark.spec("S4-44")
@pytest.mark.parametrize(("effect", "expected"), [(N, ALLOW), (R, ALLOW), (W, ASK), (NET, ASK), (X, ASK)])
def test_the_defaults_are_conservative(effect: SideEffects, expected: Outcome) -> None:
    assert outcome(question(effect=effect)) is expected


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (PolicyMode.AUTO, "are allowed"),
        (PolicyMode.PROMPT, "need approval"),
        (PolicyMode.PROMPT_ONCE, "need approval once"),
        (PolicyMode.DENY, "are refused"),
    ],
)
def test_a_decision_by_effect_is_a_plain_sentence(mode: PolicyMode, words: str) -> None:
    assert decide(question(effect=R), Policy()).sentence == "Calls with effect read are allowed by default."
    assert decide(question(effect=W), Policy()).sentence == "Calls with effect write need approval by default."
    stated = Policy(default={W: Setting(mode)})
    assert decide(question(), stated).sentence == f"Calls with effect write {words} by the settings."
    trusting = Policy(trusted_workspaces=("/ws",), trusted_workspace_overrides={W: Setting(mode)})
    expected = f"Calls with effect write {words} in the trusted workspace /ws."
    assert decide(question(workspace="/ws"), trusting).sentence == expected


@pytest.mark.parametrize(
    ("mode", "effect", "expected"),
    [(Mode.NONE, effect, DENY) for effect in SideEffects]
    + [(Mode.READ, N, ALLOW), (Mode.READ, R, ALLOW), (Mode.READ, W, DENY), (Mode.READ, NET, DENY), (Mode.READ, X, DENY)]
    + [(Mode.WRITE, effect, ALLOW) for effect in SideEffects],
)
def test_the_mode_is_a_ceiling(mode: Mode, effect: SideEffects, expected: Outcome) -> None:
    assert outcome(question(effect=effect, mode=mode)) is expected


def test_mode_read_runs_a_command_only_in_the_read_only_sandbox() -> None:
    asked = question(effect=X, mode=Mode.READ, read_only_sandbox=True, arguments={"command": "ls"})
    assert outcome(asked) is ALLOW
    assert outcome(asked, Policy(per_tool={"t": Setting(PolicyMode.DENY)})) is DENY
    assert outcome(question(effect=W, mode=Mode.READ, read_only_sandbox=True)) is DENY


def test_no_rule_lifts_the_ceiling() -> None:
    policy = Policy(rules=(Rule(decision=ALLOW, tool="*"),), per_tool={"t": AUTO})
    assert outcome(question(mode=Mode.READ), policy) is DENY
    assert outcome(question(mode=Mode.NONE, effect=N), policy) is DENY


@pytest.mark.spec("S4-47")
@pytest.mark.parametrize(
    ("workspace", "effect", "expected"),
    [
        ("/code/mine", W, ALLOW),
        ("/code/mine/sub", W, ALLOW),
        ("/code/mine", X, ASK),
        ("/code/mine", NET, ASK),
        ("/code/mine-evil", W, ASK),
        ("/code", W, ASK),
    ],
)
def test_a_trusted_workspace_lowers_the_bar_for_writes_only(
    workspace: str, effect: SideEffects, expected: Outcome
) -> None:
    policy = Policy(trusted_workspaces=("/code/mine",))
    assert outcome(question(effect=effect, workspace=workspace), policy) is expected


@pytest.mark.spec("S4-47")
def test_an_override_speaks_only_in_trusted_workspaces() -> None:
    policy = Policy(trusted_workspaces=("/ws",), trusted_workspace_overrides={X: AUTO, W: PROMPT})
    assert outcome(question(effect=X, workspace="/ws"), policy) is ALLOW
    assert outcome(question(effect=W, workspace="/ws"), policy) is ASK
    assert outcome(question(effect=X, workspace="/other"), policy) is ASK


@pytest.mark.parametrize(("first", "second"), list(product([ALLOW, ASK, DENY], repeat=2)))
def test_of_matching_rules_the_strictest_decides_whatever_their_order(first: Outcome, second: Outcome) -> None:
    rules = (Rule(decision=first, tool="t"), Rule(decision=second, path="src/**"))
    expected = max(first, second, key=lambda each: each.strictness)
    assert outcome(question(resolved_paths=(place("src/a"),)), Policy(rules=rules)) is expected


def test_a_rule_beats_the_table_but_a_deny_anywhere_is_final() -> None:
    rule = Rule(decision=ALLOW, tool="t")
    assert outcome(question(), Policy(rules=(rule,), per_tool={"t": PROMPT})) is ALLOW
    assert outcome(question(), Policy(rules=(rule,), per_tool={"t": Setting(PolicyMode.DENY)})) is DENY
    assert outcome(question(), Policy(rules=(rule,), default={W: Setting(PolicyMode.DENY)})) is DENY


def test_a_word_about_an_alias_is_about_the_tool() -> None:
    asked = question(tool="shell", aliases=("execute_command",), effect=X)
    assert outcome(asked, Policy(per_tool={"execute_command": Setting(PolicyMode.DENY)})) is DENY
    assert outcome(asked, Policy(rules=(Rule(decision=DENY, tool="execute_*"),))) is DENY
    both = {"shell": AUTO, "execute_command": PROMPT}
    assert outcome(asked, Policy(per_tool=both)) is ASK


@pytest.mark.parametrize(
    ("rule", "matching", "other"),
    [
        (Rule(decision=DENY, tool="gmail_*"), {"tool": "gmail_send"}, {"tool": "drive_send"}),
        (Rule(decision=DENY, caller=CallerKind.MCP), {"caller": CallerKind.MCP}, {"caller": CallerKind.CLI}),
        (Rule(decision=DENY, workspace="/ws"), {"workspace": "/ws/a"}, {"workspace": "/ws2"}),
        (
            Rule(decision=DENY, path="secrets/**"),
            {"resolved_paths": (place("secrets/k"),)},
            {"resolved_paths": (place("src/secrets"),)},
        ),
        (
            Rule(decision=DENY, path="**/*.pem"),
            {"resolved_paths": (place("a/b/k.pem"),)},
            {"resolved_paths": (place("k.pem.txt"),)},
        ),
        (
            Rule(decision=DENY, path="/ws/x"),
            {"resolved_paths": (place("x"),)},
            {"resolved_paths": (place("x", "/other"),)},
        ),
        (Rule(decision=DENY, path="SECRETS/**"), {"resolved_paths": (place("Secrets/k"),)}, {"resolved_paths": ()}),
        (
            Rule(decision=DENY, arguments={"url": "http://*"}),
            {"arguments": {"url": "HTTP://x"}},
            {"arguments": {"url": "https://x"}},
        ),
        (Rule(decision=DENY, arguments={"n": "1*"}), {"arguments": {"n": 12}}, {"arguments": {}}),
        (Rule(decision=DENY, arguments_sha256="ab"), {"arguments_sha256": "ab"}, {"arguments_sha256": "ac"}),
    ],
    ids=str,
)
def test_a_rule_matches_what_it_says(rule: Rule, matching: Any, other: Any) -> None:
    assert outcome(question(**matching), Policy(rules=(rule,))) is DENY
    assert outcome(question(**other), Policy(rules=(rule,))) is ASK


@pytest.mark.spec("T08")
def test_an_allow_must_cover_every_place_and_match_exactly() -> None:
    policy = Policy(rules=(Rule(decision=ALLOW, path="src/**"),))
    assert outcome(question(resolved_paths=(place("src/a"), place("src/b"))), policy) is ALLOW
    assert outcome(question(resolved_paths=(place("src/a"), place("etc/b"))), policy) is ASK
    assert outcome(question(resolved_paths=(place("SRC/a"),)), policy) is ASK
    assert outcome(question(resolved_paths=()), policy) is ASK


@pytest.mark.spec("T11")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("git status", ALLOW),
        ("git status && git log -1", ALLOW),
        ("git status && rm -rf x", DENY),
        ("git status; make", ASK),
        ("git status > out", ASK),
        ("git status $(rm -rf x)", DENY),
        ("git log `cat x`", ASK),
    ],
)
def test_every_part_of_a_command_is_judged(command: str, expected: Outcome) -> None:
    rules = tuple(
        Rule(decision=d, command=parse_pattern(p))
        for d, p in [(ALLOW, "git status"), (ALLOW, "git log *"), (DENY, "rm *")]
    )
    asked = question(tool="shell", effect=X, arguments={"command": command})
    assert outcome(asked, Policy(rules=rules)) is expected


def test_what_the_user_wrote_to_be_asked_is_asked_in_mode_write_too() -> None:
    asked = question(mode=Mode.WRITE)
    assert outcome(asked, Policy(per_tool={"t": PROMPT})) is ASK
    assert outcome(asked, Policy(rules=(Rule(decision=ASK, tool="t"),))) is ASK
    assert outcome(asked, Policy(default={W: PROMPT})) is ALLOW


def test_a_destructive_tool_asks_in_mode_write_only_where_the_user_wants_it() -> None:
    asked = question(mode=Mode.WRITE, destructive=True)
    assert outcome(asked) is ALLOW
    assert outcome(asked, Policy(confirm_destructive=True)) is ASK
    assert outcome(question(destructive=True), Policy(trusted_workspaces=("/",))) is ASK
    assert outcome(question(destructive=True), Policy(per_tool={"t": AUTO})) is ALLOW


@pytest.mark.parametrize("caller", [CallerKind.INTERNAL, CallerKind.RENDERER])
def test_our_own_program_is_not_asked_but_can_be_denied(caller: CallerKind) -> None:
    assert outcome(question(caller=caller)) is ALLOW
    assert outcome(question(caller=caller), Policy(per_tool={"t": Setting(PolicyMode.DENY)})) is DENY


def test_a_decision_says_where_it_stands() -> None:
    origin = Origin("/home/u/settings.toml", 7)
    decision = decide(question(), Policy(per_tool={"t": Setting(PolicyMode.DENY, origin)}))
    assert (decision.reason, decision.policy_reason) == ("per_tool", "per_tool (/home/u/settings.toml:7)")


@pytest.mark.spec("T07")
@pytest.mark.parametrize(
    ("rule", "lifted"),
    [
        (Rule(decision=ALLOW, path=".git/config"), True),
        (Rule(decision=ASK, path=".git/**"), True),
        (Rule(decision=DENY, path=".git/**"), False),
        (Rule(decision=ALLOW, tool="*"), False),
        (Rule(decision=ALLOW, path="src/**"), False),
        (Rule(decision=ALLOW, path="**"), False),
        (Rule(decision=ALLOW, path="**/*"), False),
        (Rule(decision=ALLOW, path=".git/**", tool="read_file"), False),
        (Rule(decision=ALLOW, path=".git/**", caller=CallerKind.CLI), False),
    ],
)
def test_only_a_rule_that_names_the_path_lifts_its_protection(rule: Rule, lifted: bool) -> None:
    protected = place(".git/config", protected=True)
    assert lifts_protection(protected, question(), Policy(rules=(rule,))) is lifted


modes = st.sampled_from(list(PolicyMode)).map(Setting)
classes = st.dictionaries(st.sampled_from(list(SideEffects)), modes, max_size=3)
rules = st.lists(
    st.builds(
        Rule,
        decision=st.sampled_from(list(Outcome)),
        tool=st.sampled_from(["t", "*", "u", None]),
        path=st.sampled_from([None, "src/**", "**"]),
        caller=st.sampled_from([None, CallerKind.CLI]),
        workspace=st.just("/"),
    ),
    max_size=3,
).map(tuple)
policies = st.builds(
    Policy,
    default=classes,
    per_tool=st.dictionaries(st.sampled_from(["t", "u"]), modes, max_size=2),
    trusted_workspaces=st.sampled_from([(), ("/ws",)]),
    trusted_workspace_overrides=classes,
    rules=rules,
    confirm_destructive=st.booleans(),
)
questions = st.builds(
    Question,
    tool=st.just("t"),
    effect=st.sampled_from(list(SideEffects)),
    destructive=st.booleans(),
    mode=st.sampled_from(list(Mode)),
    caller=st.sampled_from(list(CallerKind)),
    workspace=st.sampled_from(["/ws", "/other"]),
    resolved_paths=st.sampled_from([(), (place("src/a"),), (place("b"),)]),
)


@pytest.mark.spec("T23")
@given(asked=questions, user=policies, workspace=policies)
def test_a_workspace_can_only_narrow(asked: Question, user: Policy, workspace: Policy) -> None:
    alone = decide(asked, user).outcome
    together = decide(asked, user, workspace).outcome
    assert together.strictness >= alone.strictness


@given(asked=questions, user=policies)
def test_one_more_deny_never_allows_more(asked: Question, user: Policy) -> None:
    stricter = msgspec.structs.replace(user, rules=(*user.rules, Rule(decision=DENY, tool="*")))
    assert decide(asked, stricter).outcome is DENY


looking = st.builds(
    Rule,
    decision=st.sampled_from(list(Outcome)),
    tool=st.sampled_from(["t", "T", "alias", "?", "u", "read_file", None]),
    path=st.sampled_from([None, None, "src/**", "**"]),
    command=st.sampled_from([None, None, parse_pattern("git *")]),
    caller=st.sampled_from([None, CallerKind.CLI]),
    workspace=st.sampled_from([None, "/ws", "/other"]),
    arguments=st.sampled_from([{}, {}, {"to": "a*"}]),
    without=st.sampled_from([(), ("to",)]),
    arguments_sha256=st.sampled_from([None, "hash"]),
    network=st.sampled_from([None, True, False, ("host",)]),
)
alike = st.builds(
    Question,
    tool=st.just("t"),
    aliases=st.just(("alias",)),
    effect=st.just(X),
    mode=st.sampled_from(list(Mode)),
    caller=st.sampled_from(list(CallerKind)),
    workspace=st.just("/ws"),
    resolved_paths=st.sampled_from([(), (place("src/a"),), (place("b"),)]),
    arguments=st.sampled_from([{}, {"to": "ab"}, {"to": "b"}, {"command": "git push"}, {"command": "ls"}]),
    arguments_sha256=st.sampled_from(["hash", "other"]),
    reading=st.booleans(),
)


@given(
    questions=st.lists(alike, min_size=2, max_size=6),
    user=policies,
    workspace=policies,
    more=st.lists(looking, min_size=1, max_size=4).map(tuple),
)
def test_a_remembered_decision_is_the_one_that_all_rules_give(
    questions: list[Question], user: Policy, workspace: Policy, more: tuple[Rule, ...]
) -> None:
    user = msgspec.structs.replace(user, rules=user.rules + more[:2])
    workspace = msgspec.structs.replace(workspace, rules=workspace.rules + more[2:])
    book = Rulebook(user, workspace, "/ws")
    for asked in [*questions, *questions]:
        bears = bears_rules(asked.resolved_paths, asked.arguments)
        key = (f"{bears} {asked.reading}", asked.mode.value, asked.caller.value)
        found = book.remembered.get(key) or book.decide(asked, key[0])
        assert found == decide(asked, user, workspace)


def test_of_many_rules_those_about_a_call_are_compared() -> None:
    of = ({"path": "/srv/**"}, {"command": parse_pattern("git *")}, {"tool": "other_*"})
    user = Policy(rules=tuple(Rule(decision=DENY, **of[n % 3]) for n in range(300)))
    book = Rulebook(user, None, "/ws")
    book.decide(question(effect=R), "t")
    assert len(book.remembered) == 1
    looks = msgspec.structs.replace(user, rules=(*user.rules, Rule(decision=DENY, arguments={"a": "1"})))
    book = Rulebook(looks, None, "/ws")
    assert book.decide(question(effect=R, arguments={"a": "1"}), "t").outcome is DENY
    assert book.decide(question(effect=R, arguments={"a": "2"}), "t").outcome is ALLOW
    assert not book.remembered
