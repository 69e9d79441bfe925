"""Settings files: what they say is in force, or it is said what is wrong and where."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user, load_workspace
from callgate.config.policies import PolicyBook
from callgate.config.saved import save_rule, save_rules, saved_rule
from callgate.config.trust import distrust, is_trusted, trust, trusted
from callgate.core.calls import CallerKind
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolPermissionDenied
from callgate.core.sessions import Mode, ResolvedPath
from callgate.features.editor.settings import EditorSettings
from callgate.policy.commands import parse_pattern
from callgate.policy.decide import decide
from callgate.policy.decisions import Question
from callgate.policy.rules import Origin, Outcome, Policy, PolicyMode, Rule, Setting

WHOLE = """
mode = "read"

[policy]
trusted_workspaces = ["{home}/code"]
confirm_destructive = true

[policy.default]
NONE = "auto"
WRITE = "prompt_once"

[policy.per_tool]
git_status = "auto"
"npm_install" = "prompt"

[policy.trusted_workspace_overrides]
EXECUTE = "prompt"

[[policy.rules]]
decision = "deny"
path = "secrets/**"

# a comment = "not a key"
[[policy.rules]]
decision = "allow"
tool = "shell"
command = "git status *"
caller = "cli"
arguments = {{ cwd = "." }}

[limits]
concurrency = 2
"""


@pytest.fixture
def user(home: Path) -> Home:
    return Home(str(home))


def write(home: Home, text: str) -> None:
    Path(home.settings).write_text(text)


@pytest.mark.spec("S4-45", "S4-47")
def test_everything_a_file_says_is_read_with_its_line(user: Home) -> None:
    write(user, WHOLE.format(home=user.path))
    settings, policy = load_user(user)
    at = lambda line: Origin(user.settings, line)  # noqa: E731
    assert (settings.mode, settings.limits.concurrency) == (Mode.READ, 2)
    assert policy == Policy(
        default={
            SideEffects.NONE: Setting(PolicyMode.AUTO, at(9)),
            SideEffects.WRITE: Setting(PolicyMode.PROMPT_ONCE, at(10)),
        },
        per_tool={
            "git_status": Setting(PolicyMode.AUTO, at(13)),
            "npm_install": Setting(PolicyMode.PROMPT, at(14)),
        },
        trusted_workspaces=(os.path.realpath(user.path + "/code"),),
        trusted_origin=at(5),
        trusted_workspace_overrides={SideEffects.EXECUTE: Setting(PolicyMode.PROMPT, at(17))},
        rules=(
            Rule(decision=Outcome.DENY, path="secrets/**", origin=at(19)),
            Rule(
                decision=Outcome.ALLOW,
                tool="shell",
                command=parse_pattern("git status *"),
                caller=CallerKind.CLI,
                arguments={"cwd": "."},
                origin=at(24),
            ),
        ),
        confirm_destructive=True,
    )


def test_without_files_the_defaults_are_in_force(user: Home) -> None:
    settings, policy = load_user(user)
    assert (settings.mode, policy) == (Mode.ASK, Policy())


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("[policy]\nrulez = []\n", 2, "did you mean 'rules'"),
        ('[policy.default]\n\nwrites = "auto"\n', 3, "writes"),
        ('[policy.default]\nwrite = "yes"\n', 2, "policy.default"),
        ('[[policy.rules]]\ndecision = "allow"\n', 1, "at least one condition"),
        ('[[policy.rules]]\ntool = "x"\n[[policy.rules]]\ntool = "y"\ndecision = "alow"\n', 1, ""),
        (
            '[[policy.rules]]\ndecision = "deny"\ntool = "x"\n[[policy.rules]]\ntool = "y"\ndecision = "alow"\n',
            6,
            "alow",
        ),
        ('[[policy.rules]]\ndecision = "deny"\ncomand = "x"\n', 3, "did you mean 'command'"),
        ('[[policy.rules]]\ndecision = "deny"\ncommand = "ls \'"\n', 3, "command pattern"),
        ("x = 1\n", 1, "unknown key 'x'"),
        ('mode = "ask"\n\nmode = "ask"\n', 3, ""),
        ('[limits]\nconcurrency = "four"\n', 2, "concurrency"),
        ("[policy\n", 1, ""),
        ('a = "\x00"\n', 1, ""),
        ("[limits]\nmax_timeout_s = -1\n", 2, "max_timeout_s"),
        ("[limits]\nconfirmation_timeout_s = nan\n", 2, "confirmation_timeout_s"),
        ("[limits]\nconcurrency = 0\n", 2, "concurrency"),
        ("[audit]\nkeep = 0\n", 2, "keep"),
        ('[policy]\ntrusted_workspaces = [""]\n', 2, "absolute"),
        ('[policy.default]\nwrite = "deny"\nWRITE = "auto"\n', 3, "twice"),
        ('[[policy.rules]]\ndecision = "deny"\npath = ""\n', 3, "empty"),
        ('[[policy.rules]]\ndecision = "deny"\narguments_sha256 = "oops"\n', 3, "SHA-256"),
        ('[[policy.rules]]\ndecision = "deny"\nworkspace = "here"\n', 3, "absolute"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line_and_what_is_wrong(user: Home, text: str, line: int, hint: str) -> None:
    write(user, text)
    with pytest.raises(SettingsError) as caught:
        load_user(user)
    assert (caught.value.file, caught.value.line) == (user.settings, line)
    assert hint in str(caught.value)


def test_bytes_that_are_not_text_are_refused_with_their_line(user: Home) -> None:
    Path(user.settings).write_bytes(b'mode = "ask"\n# \xff\n')
    with pytest.raises(SettingsError) as caught:
        load_user(user)
    assert caught.value.line == 2


def test_a_file_that_cannot_be_read_is_refused(user: Home) -> None:
    os.mkdir(user.settings)
    with pytest.raises(SettingsError):
        load_user(user)


@pytest.mark.spec("T23")
def test_a_workspace_says_nothing_until_it_is_trusted(user: Home, tmp_path: Path) -> None:
    (tmp_path / ".callgate").mkdir()
    (tmp_path / ".callgate/settings.toml").write_text('[policy.per_tool]\nshell = "deny"\n')
    assert PolicyBook(user)(str(tmp_path)).workspace is None
    trust(user, str(tmp_path))
    narrowed = PolicyBook(user)(str(tmp_path)).workspace
    assert narrowed is not None
    assert narrowed.per_tool["shell"].mode is PolicyMode.DENY
    assert distrust(user, str(tmp_path))
    assert PolicyBook(user)(str(tmp_path)).workspace is None


@pytest.mark.spec("T23")
@pytest.mark.parametrize(
    "text",
    [
        "mode = 'write'\n",
        "[tools]\nload = ['evil.py']\n",
        "[tools]\nsearch_above = 0\n",
        "[limits]\nconcurrency = 99\n",
        "[audit]\nkeep = 1\n",
        "[policy]\ntrusted_workspaces = ['/']\n",
        "[policy]\nread_commands = 'allow'\n",
    ],
)
def test_a_workspace_cannot_say_what_would_widen(user: Home, tmp_path: Path, text: str) -> None:
    (tmp_path / ".callgate").mkdir()
    (tmp_path / ".callgate/settings.toml").write_text(text)
    with pytest.raises(SettingsError):
        load_workspace(str(tmp_path))
    trust(user, str(tmp_path))
    with pytest.raises(ToolPermissionDenied):
        PolicyBook(user)(str(tmp_path))


def test_trust_is_of_one_directory_and_survives(user: Home, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert trust(user, str(tmp_path / "link")) == str(tmp_path / "a")
    assert is_trusted(user, str(tmp_path / "a"))
    assert not is_trusted(user, str(tmp_path / "a/b"))
    assert not is_trusted(user, str(tmp_path))
    assert stat.S_IMODE(os.stat(user.trust).st_mode) == 0o600
    with pytest.raises(NotADirectoryError):
        trust(user, str(tmp_path / "nope"))


def test_a_damaged_trust_file_trusts_nobody(user: Home) -> None:
    Path(user.trust).write_text('["/x"')
    with pytest.raises(SettingsError):
        trusted(user)


PLACE = ResolvedPath(
    given="a", real="/ws/a.txt", root="/ws", relative="a.txt", exists=True, protected=False, writable=True
)


@pytest.mark.spec("T15")
@pytest.mark.parametrize(
    ("arguments", "places", "condition"),
    [
        ({"command": "python3 -c 'x'"}, (), {"command": "python3 -c x"}),
        ({"command": "echo $HOME"}, (), {"arguments_sha256": "ab" * 32}),
        ({"path": "a.txt"}, (PLACE,), {"path": "a.txt"}),
        ({"text": "x"}, (), {"arguments_sha256": "ab" * 32}),
    ],
)
def test_an_answer_for_good_is_bound_to_its_arguments(user: Home, arguments: Any, places: Any, condition: Any) -> None:
    rule = saved_rule(
        tool="t",
        decision=Outcome.ALLOW,
        workspace="/ws",
        arguments=arguments,
        arguments_sha256="ab" * 32,
        resolved_paths=places,
    )
    assert rule == {"decision": "allow", "tool": "t", "workspace": "/ws", **condition}
    save_rule(user, rule)
    save_rule(user, {**rule, "decision": "deny"})
    saved = load_user(user)[1].rules
    assert [each.decision for each in saved] == [Outcome.ALLOW, Outcome.DENY]
    assert saved[1].origin.file == user.saved_rules
    assert stat.S_IMODE(os.stat(user.saved_rules).st_mode) == 0o600


def test_rules_that_are_saved_at_once_are_all_there(user: Home) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(24):
            pool.submit(save_rules, user, [{"decision": "deny", "tool": f"t{number}"}] * 2)
    assert len(load_user(user)[1].rules) == 48


def test_saving_a_rule_keeps_the_file_as_it_is_and_a_link_a_link(user: Home, tmp_path: Path) -> None:
    before = '# mine\r\n[[rules]]\ndecision = "deny"\ntool = "x"'
    (tmp_path / "dotfiles").write_bytes(before.encode())
    os.makedirs(user.path, exist_ok=True)
    os.symlink(tmp_path / "dotfiles", user.saved_rules)
    save_rule(user, {"decision": "deny", "tool": "y"})
    assert (tmp_path / "dotfiles").read_bytes().startswith(before.encode() + b"\n")
    assert os.path.islink(user.saved_rules)
    assert len(load_user(user)[1].rules) == 2


def test_a_file_that_is_no_text_is_left_as_it_is(user: Home) -> None:
    os.makedirs(user.path, exist_ok=True)
    Path(user.saved_rules).write_bytes(b"\xff")
    with pytest.raises(OSError, match="UTF-8"):
        save_rule(user, {"decision": "deny", "tool": "y"})
    assert Path(user.saved_rules).read_bytes() == b"\xff"


@pytest.mark.parametrize("arguments", [{}, {"cc": None}, {"cc": ""}, {"cc": []}, {"cc": ["eve"]}])
def test_a_rule_may_say_what_a_call_must_not_have(user: Home, arguments: dict[str, Any]) -> None:
    save_rule(user, {"decision": "allow", "tool": "send", "without": ["cc", "bcc"]})
    policy = load_user(user)[1]
    question = Question(tool="send", effect=SideEffects.NETWORK, arguments=arguments)
    given = bool(arguments.get("cc"))
    assert decide(question, policy).outcome is (Outcome.ASK if given else Outcome.ALLOW)


@pytest.mark.parametrize("text", ['a"b', "new\nline", "\x7f\x00\x1b", "ünï", "\\"])
def test_any_text_survives_being_saved(user: Home, text: str) -> None:
    save_rule(user, {"decision": "deny", "tool": text})
    assert load_user(user)[1].rules[0].tool == text


def test_a_workspace_may_disable_tools_for_itself(user: Home, tmp_path: Path) -> None:
    (tmp_path / ".callgate").mkdir()
    (tmp_path / ".callgate/settings.toml").write_text('[tools]\ndisable = ["shell"]\n')
    trust(user, str(tmp_path))
    narrowed = PolicyBook(user)(str(tmp_path)).workspace
    assert narrowed is not None
    assert narrowed.per_tool["shell"].mode is PolicyMode.DENY


def test_links_in_a_path_of_a_rule_are_resolved(user: Home, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(user, f'[[policy.rules]]\ndecision = "deny"\npath = "{tmp_path}/link/sec/**"\n')
    assert load_user(user)[1].rules[0].path == f"{tmp_path}/real/sec/**"
    write(user, '[[policy.rules]]\ndecision = "deny"\npath = "secrets/"\n')
    assert load_user(user)[1].rules[0].path == "secrets/**"


def test_a_saved_rule_is_no_wider_than_what_was_seen() -> None:
    elsewhere = ResolvedPath(
        given="x",
        real="/extra/Makefile",
        root="/extra",
        relative="Makefile",
        exists=True,
        protected=False,
        writable=True,
    )
    inside = ResolvedPath(
        given="x", real="/ws/sub", root="/ws", relative="sub", exists=True, protected=False, writable=True
    )

    def saved(places: Any, arguments: Any = {}) -> dict[str, str]:
        rule = saved_rule(
            tool="t",
            decision=Outcome.ALLOW,
            workspace="/ws",
            arguments=arguments,
            arguments_sha256="ab",
            resolved_paths=places,
        )
        return {key: rule[key] for key in rule if key not in ("decision", "tool", "workspace")}

    assert saved((elsewhere,)) == {"path": "/extra/Makefile"}
    assert saved((inside,), {"command": "./b.sh"}) == {"command": "./b.sh", "path": "sub"}
    with pytest.raises(ValueError):
        saved_rule(
            tool="t",
            decision=Outcome.ALLOW,
            workspace="/ws",
            arguments={"command": "git log"},
            arguments_sha256="ab",
            resolved_paths=(),
            pattern="git 'unclosed",
        )


def test_permissions_enabled_is_another_spelling_of_the_modes_of_an_editor(user: Home) -> None:
    write(user, '[permissions]\nenabled = ["read", "ask"]\n')
    assert load_user(user)[0].of(EditorSettings).modes == (Mode.READ, Mode.ASK)


def test_tool_confirmation_is_answered_by_the_key_that_is_meant(user: Home) -> None:
    write(user, '[tool_confirmation.default]\nWRITE = "auto"\n')
    with pytest.raises(SettingsError, match=r"the key is \[policy\]"):
        load_user(user)
