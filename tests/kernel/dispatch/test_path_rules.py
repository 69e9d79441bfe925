"""Rules about paths bind commands: what a rule denies when a command starts is not there for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.sessions import Mode, Root, Session
from callgate.dispatch.commands import path_search
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox, Surroundings
from callgate.policy.commands import parse_pattern
from callgate.policy.decide import PathRule
from callgate.policy.rules import Outcome, Policy, PolicyMode, Rule, Setting
from callgate.sandbox.plans import Backend
from callgate.sandbox.profiles import Profile
from callgate.tools.files import ReadFile, WriteFile
from callgate.tools.shell import Shell
from tests.kernel.sandbox import test_escapes
from tests.kernel.sandbox.worlds import gather
from tests.needs import needs
from tests.support import Bench, FakeHuman

pytestmark = [needs("linux", "bash"), pytest.mark.spec("T06", "T07")]

DENY, ASK = Outcome.DENY, Outcome.ASK
MOUNTING = ["namespaces", "bubblewrap"]
WAYS = [
    ("namespaces", Mode.READ),
    ("namespaces", Mode.WRITE),
    ("bubblewrap", Mode.READ),
    ("bubblewrap", Mode.WRITE),
    ("landlock", Mode.READ),
]


@pytest.fixture
def base() -> Iterator[Path]:
    """Not in /tmp, which commands do not see."""
    with tempfile.TemporaryDirectory(prefix="callgate-", dir="/var/tmp") as made:
        base = Path(made)
        for name in ("ws/secrets/deep", "ws/a/b", "home/.callgate", "other"):
            (base / name).mkdir(parents=True)
        for name in (
            "ws/secrets/key.txt",
            "ws/secrets/deep/key.txt",
            "ws/a/b/.env",
            "other/key.txt",
        ):
            (base / name).write_text("private\n")
        (base / "ws/plain").write_text("plain\n")
        yield base


class Boxes:
    """Sandboxes that use one backend each."""

    def __init__(self, base: Path, backends: tuple[Backend, ...]) -> None:
        self.base = base
        self.backends = backends
        self.made: list[Sandbox] = []

    def sandbox(self, backend: str, **more: Any) -> Sandbox:
        home = str(self.base / "home")
        said = Surroundings(home=home, callgate_home=f"{home}/.callgate", **more)
        chosen = tuple(each for each in self.backends if each.name in ("seccomp", backend))
        for each in chosen:
            if each.problem is not None:
                pytest.skip(f"needs {each.name}: {each.problem}")
        self.made.append(Sandbox(said, chosen))
        return self.made[-1]

    def bench(self, backend: str, mode: Mode, *rules: Rule, **more: Any) -> Bench:
        surrounding = more.pop("surrounding", {})
        tools = (Shell, ReadFile, WriteFile)
        sandbox = self.sandbox(backend, **surrounding)
        return Bench(self.base / "ws", *tools, sandbox=sandbox, mode=mode, policy=Policy(rules=rules), **more)

    async def output(self, backend: str, mode: Mode, command: str, *rules: Rule, **more: Any) -> str:
        result = await self.bench(backend, mode, *rules, **more).run("shell", {"command": command})
        assert result.error is None, result.error
        return str(result.value["stdout"])


@pytest.fixture(scope="module")
def backends() -> tuple[Backend, ...]:
    """Found where no event loop runs yet."""
    return test_escapes.backends()


@pytest.fixture
async def boxes(base: Path, backends: tuple[Backend, ...]) -> AsyncIterator[Boxes]:
    boxes = Boxes(base, backends)
    yield boxes
    for each in boxes.made:
        each.close()


# --- denied --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "mode"), WAYS)
@pytest.mark.parametrize(
    ("rule", "paths"),
    [
        ({"path": "secrets/**"}, ["secrets/key.txt", "secrets/deep/key.txt"]),
        ({"path": "secrets"}, ["secrets/key.txt"]),
        ({"path": "SECRETS/Key.*"}, ["secrets/key.txt"]),
        ({"path": "**/.env"}, ["a/b/.env"]),
        ({"path": "a/*/.env"}, ["a/b/.env", "$PWD/a/b/../b/.env"]),
        ({"path": "**/*.txt"}, ["secrets/key.txt", "secrets/deep/key.txt"]),
        ({"path": "secrets/**", "tool": "read_file"}, ["secrets/key.txt"]),
        ({"path": "secrets/**", "tool": "*_file"}, ["secrets/key.txt"]),
        ({"path": "secrets/**", "tool": "terminal_execute"}, ["secrets/key.txt"]),
        ({"path": "secrets/**", "command": parse_pattern("cat *")}, ["secrets/key.txt"]),
        ({"path": "{base}/other/**"}, ["../other/key.txt", "{base}/other/key.txt"]),
        ({"path": "{base}/*/key.txt"}, ["../other/key.txt"]),
    ],
)
async def test_what_a_rule_denies_is_not_there_for_a_command(
    boxes: Boxes, base: Path, backend: str, mode: Mode, rule: dict[str, Any], paths: list[str]
) -> None:
    made = Rule(decision=DENY, **rule | {"path": rule["path"].replace("{base}", str(base))})
    command = f"cat {' '.join(paths)}; cat plain".replace("{base}", str(base))
    assert await boxes.output(backend, mode, command, made) == "plain\n"


@pytest.mark.parametrize(("backend", "mode"), WAYS)
@pytest.mark.parametrize(
    "rule",
    [
        {"caller": "mcp"},
        {"tool": "gmail_send"},
        {"workspace": "/elsewhere"},
        {"command": parse_pattern("rm *")},
        {"arguments": {"content": "*"}},
        {"network": True},
    ],
)
async def test_a_rule_about_something_else_binds_nothing(
    boxes: Boxes, backend: str, mode: Mode, rule: dict[str, Any]
) -> None:
    made = Rule(decision=DENY, path="secrets/**", **rule)
    assert await boxes.output(backend, mode, "cat secrets/key.txt", made) == "private\n"


@pytest.mark.parametrize(("backend", "mode"), WAYS)
async def test_links_to_what_is_denied_lead_nowhere(boxes: Boxes, base: Path, backend: str, mode: Mode) -> None:
    (base / "ws/soft").symlink_to("secrets/key.txt")
    (base / "ws/linked").symlink_to(base / "other")
    os.link(base / "ws/secrets/key.txt", base / "ws/a/hard")
    os.link(base / "ws/secrets/deep/key.txt", base / "ws/harder")
    rules = [Rule(decision=DENY, path=path) for path in ("secrets/**", "linked/**")]
    command = "cat soft a/hard harder linked/key.txt ../other/key.txt; cat plain"
    assert await boxes.output(backend, mode, command, *rules) == "plain\n"


@pytest.mark.parametrize("backend", MOUNTING)
async def test_what_is_denied_is_neither_listed_moved_nor_replaced(boxes: Boxes, base: Path, backend: str) -> None:
    command = (
        "ls secrets; mv secrets x; mv a x; rm -rf secrets a/b/.env; echo mine > a/b/.env;"
        "ln a/b/.env hard; mkdir -p new; mv new secrets; chmod 777 secrets a/b/.env; true"
    )
    rules = [Rule(decision=DENY, path=path) for path in ("secrets/**", "**/.env")]
    assert await boxes.output(backend, Mode.WRITE, command, *rules) == ""
    again = await boxes.output(backend, Mode.WRITE, "cat $(find . -type f); true", *rules)
    assert again == "plain\n"
    assert (base / "ws/secrets/key.txt").read_text() == (base / "ws/a/b/.env").read_text() == "private\n"


@pytest.mark.parametrize("backend", MOUNTING)
@pytest.mark.parametrize("profile", [Profile.WORKSPACE, Profile.OPEN])
async def test_what_may_not_be_written_can_be_read(boxes: Boxes, base: Path, backend: str, profile: Profile) -> None:
    os.link(base / "ws/a/b/.env", base / "ws/hard")
    rules = [Rule(decision=DENY, path=path, tool="write_file") for path in ("secrets/**", "**/.env")]
    command = (
        "cat secrets/key.txt a/b/.env; echo x > secrets/key.txt; echo x > a/b/.env; echo x > hard;"
        "rm -rf secrets a/b/.env; mv a x; touch secrets/new; touch made"
    )
    said = await boxes.output(backend, Mode.WRITE, command, *rules, surrounding={"profile": profile})
    assert said == "private\nprivate\n"
    assert {path.name for path in (base / "ws").rglob("*") if path.is_file()} == {
        "key.txt",
        ".env",
        "plain",
        "hard",
        "made",
    }
    assert (base / "ws/hard").read_text() == (base / "ws/secrets/key.txt").read_text() == "private\n"


@pytest.mark.parametrize("backend", MOUNTING)
async def test_a_rule_holds_in_roots_beside_the_workspace(boxes: Boxes, base: Path, backend: str) -> None:
    bench = boxes.bench(backend, Mode.WRITE, Rule(decision=DENY, path="key.txt"))
    bench.session.extra_roots = (Root(str(base / "other"), writable=True),)
    result = await bench.run("shell", {"command": "cat ../other/key.txt; mv ../other/key.txt .; cat key.txt"})
    assert result.value["stdout"] == ""
    assert (base / "other/key.txt").read_text() == "private\n"


@pytest.mark.parametrize("mode", [Mode.READ, Mode.WRITE])
async def test_what_cannot_be_kept_is_refused(boxes: Boxes, mode: Mode) -> None:
    sandbox = boxes.sandbox("landlock")
    rules = (Rule(decision=DENY, path="secrets/**"),)
    bench = Bench(boxes.base / "ws", Shell, sandbox=sandbox, mode=mode, policy=Policy(rules=rules))
    result = await bench.run("shell", {"command": "cat secrets/key.txt"})
    if mode is Mode.WRITE:
        assert result.error.reason == "sandbox_unavailable"
    else:
        assert result.value["stdout"] == ""


@pytest.mark.parametrize("path", ["**", "*", "{base}/**", "{base}/ws", "/**/key.txt"])
async def test_a_rule_that_leaves_no_workspace_refuses_the_command(boxes: Boxes, base: Path, path: str) -> None:
    (base / "ws/up").symlink_to("..")
    rule = Rule(decision=DENY, path=path.replace("{base}", str(base)), tool="read_file")
    result = await boxes.bench("namespaces", Mode.WRITE, rule).run("shell", {"command": "cat plain"})
    assert result.error.reason == "path_rule"


@pytest.mark.parametrize("backend", MOUNTING)
async def test_where_too_many_match_the_directory_that_they_are_in_is_restrictions(
    boxes: Boxes, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_search, "MOST_MASKS", 1)
    command = "cat secrets/key.txt; ls secrets; cat plain"
    rule = Rule(decision=DENY, path="secrets/**/*.txt")
    assert await boxes.output(backend, Mode.READ, command, rule) == "plain\n"
    bench = boxes.bench(backend, Mode.READ, Rule(decision=DENY, path="**/*.txt"))
    assert (await bench.run("shell", {"command": command})).error.reason == "path_rule"


@pytest.mark.parametrize("limit", ["MOST_ENTRIES", "MOST_SECONDS"])
async def test_beyond_the_bounds_of_a_search_the_command_is_refused(
    boxes: Boxes, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_search, limit, -1)
    for path in ("**/*.txt", "secrets/**"):
        bench = boxes.bench("namespaces", Mode.READ, Rule(decision=DENY, path=path))
        result = await bench.run("shell", {"command": "cat secrets/key.txt"})
        assert result.error.reason == "path_rule"


# --- asked about ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "mode"), WAYS)
async def test_what_a_rule_asks_about_is_there_once_it_was_allowed_by_name(
    boxes: Boxes, backend: str, mode: Mode
) -> None:
    rule = Rule(decision=ASK, path="secrets/**")
    human = FakeHuman(True)
    bench = boxes.bench(backend, mode, rule, human=human)
    unnamed = await bench.run("shell", {"command": "cat s*/key.txt; cat plain"})
    assert (unnamed.value["stdout"], human.questions) == ("plain\n", [])
    named = await bench.run("shell", {"command": "cat secrets/key.txt; cat secrets/deep/key.txt"})
    assert (named.value["stdout"], len(human.questions)) == ("private\nprivate\n", 1)


@pytest.mark.parametrize("mode", [Mode.READ, Mode.ASK, Mode.GUARDED, Mode.WRITE])
async def test_a_rule_that_asks_about_another_tool_asks_about_a_command_with_that_name(
    boxes: Boxes, mode: Mode
) -> None:
    rule = Rule(decision=ASK, path="secrets/**", tool="read_file")
    human = FakeHuman(False, True)
    sandbox = boxes.sandbox("namespaces")
    policy = Policy(rules=(rule,), read_commands=Setting(PolicyMode.AUTO))
    bench = Bench(boxes.base / "ws", Shell, ReadFile, WriteFile, sandbox=sandbox, mode=mode, policy=policy, human=human)
    denied = await bench.run("shell", {"command": "cat secrets/key.txt"})
    assert denied.error is not None
    assert denied.error.reason == "user_denied"
    allowed = await bench.run("shell", {"command": "cat secrets/key.txt"})
    assert allowed.value["stdout"] == "private\n"


async def test_a_rule_about_writing_asks_about_no_command_that_can_write_nothing(boxes: Boxes) -> None:
    rule = Rule(decision=ASK, path="secrets/**", tool="write_file")
    bench = boxes.bench("namespaces", Mode.READ, rule)
    result = await bench.run("shell", {"command": "cat secrets/key.txt"})
    assert result.value["stdout"] == "private\n"


async def test_one_name_allows_no_other(boxes: Boxes) -> None:
    rule = Rule(decision=ASK, path="secrets/**")
    bench = boxes.bench("namespaces", Mode.WRITE, rule, human=FakeHuman(True))
    command = "cat secrets/key.txt; d=deep; cat secrets/$d/key.txt; cat secrets/*/key.txt"
    result = await bench.run("shell", {"command": command})
    assert result.value["stdout"] == "private\n"


async def test_a_name_of_something_denied_allows_nothing(boxes: Boxes) -> None:
    rules = [Rule(decision=ASK, path="secrets/**"), Rule(decision=DENY, path="secrets/key.txt")]
    bench = boxes.bench("namespaces", Mode.WRITE, *rules, human=FakeHuman(True))
    result = await bench.run("shell", {"command": "cat secrets/key.txt secrets/deep/key.txt"})
    assert result.value["stdout"] == "private\n"


async def test_no_terminal_of_an_editor_is_used_where_a_rule_binds(boxes: Boxes) -> None:
    sandbox = boxes.sandbox("namespaces")
    rules = (Rule(decision=DENY, path="secrets/**"),)
    bench = Bench(boxes.base / "ws", Shell, sandbox=sandbox, mode=Mode.WRITE, policy=Policy(rules=rules))
    session = bench.session
    bench.dispatcher.environments.terminals = lambda session: object()  # type: ignore[method-assign,assignment,return-value]
    subject, _ = bench.dispatcher.examine(bench.tool_call("shell", {"command": "true"}, session=session))
    assert subject.enclosure == Enclosure(Profile.WORKSPACE)


# --- later ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", MOUNTING)
async def test_what_comes_to_match_while_a_command_runs_is_named_in_its_result(boxes: Boxes, backend: str) -> None:
    rules = [Rule(decision=DENY, path="**/.env"), Rule(decision=ASK, path="drafts/**")]
    bench = boxes.bench(backend, Mode.WRITE, *rules)
    command = "d=drafts; mkdir $d new; echo x > $d/one; echo x > new/.env; ln -s plain .env"
    result = await bench.run("shell", {"command": command})
    text = result.content[0].text
    assert "[matches a rule that denies it: .env, new/.env]" in text
    assert "[matches a rule that asks about it: drafts]" in text


@pytest.mark.parametrize(("mode", "said"), [(Mode.READ, "plain\n"), (Mode.WRITE, "private\nplain\n")])
async def test_a_session_that_turned_to_reading_is_bound_although_the_sandbox_is_off(
    boxes: Boxes, base: Path, mode: Mode, said: str
) -> None:
    sandbox = boxes.sandbox("namespaces", profile=None)
    session = Session(workspace=str(base / "ws"), mode=mode)
    rules = (PathRule(Rule(decision=DENY, path="secrets/**"), hides=True),)
    launcher = sandbox.rule_launcher(Enclosure(None), session, rules)
    assert await gather(launcher, "cat secrets/key.txt; cat plain", str(base / "ws")) == said


@pytest.mark.parametrize("backend", MOUNTING)
async def test_processes_that_live_on_are_bound_too(boxes: Boxes, base: Path, backend: str) -> None:

    bound = PathRule(Rule(decision=DENY, path="secrets/**"), hides=True)
    sandbox = boxes.sandbox(backend, path_rules=lambda workspace: (bound,))
    session = Session(workspace=str(base / "ws"), mode=Mode.WRITE)
    launcher = sandbox.process_launcher(Enclosure(Profile.WORKSPACE), session)
    assert await gather(launcher, "cat secrets/key.txt; cat plain", str(base / "ws")) == "plain\n"
