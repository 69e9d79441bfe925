"""Hosts that a running command contacts: what is asked, what each answer covers, what a no says."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.sessions import Mode
from callgate.dispatch.commands.sandboxes import Sandbox, Surroundings
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.policy.rules import Outcome, Policy, PolicyMode, Rule, Setting
from callgate.sandbox.jails import Network
from callgate.tools.shell import Shell
from tests.kernel.dispatch.test_network_connects import backends
from tests.support import Bench

__all__ = ["backends"]

RUN_SHELL = {"shell": Setting(PolicyMode.AUTO)}


@pytest.fixture
def base() -> Iterator[Path]:
    """Not in /tmp, which commands do not see."""
    with tempfile.TemporaryDirectory(prefix="callgate-", dir="/var/tmp") as made:
        for name in ("ws", "home/.callgate"):
            (Path(made) / name).mkdir(parents=True)
        yield Path(made)


@pytest.fixture
def sandbox(base: Path, backends: Any) -> Iterator[Sandbox]:
    surroundings = Surroundings(
        home=str(base / "home"), callgate_home=str(base / "home/.callgate"), network=Network.ASK
    )
    made = Sandbox(surroundings, backends)
    yield made
    made.close()


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.2", 0) as started:
        yield started.sockets[0].getsockname()[1]


class Approver:
    """Answers each question, and keeps it."""

    def __init__(self, *answers: Answer | bool) -> None:
        self.questions: list[Confirmation] = []
        self._answers = iter(answers)

    async def __call__(self, question: Confirmation) -> Answer | bool:
        self.questions.append(question)
        return next(self._answers)


def bench(base: Path, sandbox: Sandbox, approver: Any, **more: Any) -> Bench:
    """In mode ask; commands run without approval."""
    more.setdefault("policy", Policy(per_tool=RUN_SHELL))
    return Bench(base / "ws", Shell, sandbox=sandbox, human=approver, **more)


def fetch(port: int, times: int = 1, host: str = "127.0.0.2") -> dict[str, Any]:
    return {"command": "; ".join([f'h={host}; curl -s "http://$h:{port}/"'] * times)}


def allow(scope: Scope) -> Answer:
    return Answer(decision=Outcome.ALLOW, scope=scope)


async def test_a_new_host_waits_for_approval_and_the_question_says_who_contacts_it(
    base: Path, sandbox: Sandbox
) -> None:
    approver = Approver(True)
    run = bench(base, sandbox, approver)
    async with server() as port:
        result = await run.run("shell", fetch(port))
    assert result.text == "hello\n"
    (question,) = approver.questions
    assert question.tool == "connect_host"
    assert question.arguments == {
        "host": f"127.0.0.2:{port}",
        "port": port,
        "reaches": "this machine or the network around it",
        "call": result.call_id,
    }
    assert "shell: h=127.0.0.2; curl" in question.why
    assert question.scopes == {Scope.ONCE, Scope.RUN, Scope.DESTINATION, Scope.ALWAYS}
    assert result.meta["network"]["approved"] == [f"127.0.0.2:{port}"]


async def test_the_approval_is_recorded_with_its_call(base: Path, sandbox: Sandbox) -> None:
    run = bench(base, sandbox, Approver(True))
    async with server() as port:
        result = await run.run("shell", fetch(port))
    connect, shell = run.recorder.records
    assert (connect.tool, shell.tool) == ("connect_host", "shell")
    assert connect.session == shell.session
    assert result.call_id in connect.args
    kinds = [event.type for event in run.recorder.events if event.payload.get("call_id") != result.call_id]
    assert "tool.confirmation_requested" in kinds
    assert "tool.confirmation_resolved" in kinds


@pytest.mark.parametrize(
    ("scope", "in_one_run", "in_two_runs"),
    [(Scope.ONCE, 3, 6), (Scope.RUN, 1, 2), (Scope.DESTINATION, 1, 1)],
)
async def test_an_answer_covers_a_connection_a_run_or_a_session(
    base: Path, sandbox: Sandbox, scope: Scope, in_one_run: int, in_two_runs: int
) -> None:
    approver = Approver(*[allow(scope)] * 6)
    run = bench(base, sandbox, approver)
    async with server() as port:
        first = await run.run("shell", fetch(port, 3))
        assert (first.text, len(approver.questions)) == ("hello\n" * 3, in_one_run)
        second = await run.run("shell", fetch(port, 3))
    assert (second.text, len(approver.questions)) == ("hello\n" * 3, in_two_runs)


async def test_an_answer_for_the_session_covers_one_host_alone(base: Path, sandbox: Sandbox) -> None:
    approver = Approver(allow(Scope.SESSION), False)
    run = bench(base, sandbox, approver)
    async with server() as port, server() as other:
        assert (await run.run("shell", fetch(port))).text == "hello\n"
        assert "[not connected to" in (await run.run("shell", fetch(other))).text
        assert (await run.run("shell", fetch(port))).text == "hello\n"
    assert len(approver.questions) == 2


async def test_a_denied_host_fails_at_once_for_the_rest_of_the_run_and_is_named(base: Path, sandbox: Sandbox) -> None:
    approver = Approver(False)
    run = bench(base, sandbox, approver)
    async with server() as port:
        result = await run.run(
            "shell", {"command": f"h=127.0.0.2; curl -s http://$h:{port}/; curl -s http://$h:{port}/; exit 0"}
        )
    refusal = f"callgate: blocked: 127.0.0.2:{port}: User denied this operation.\n"
    assert result.text == (
        f"{refusal * 2}[blocked: 127.0.0.2:{port}]\n[not connected to 127.0.0.2:{port}: User denied this operation.]"
    )
    assert len(approver.questions) == 1


async def test_a_question_that_runs_out_of_time_refuses_the_connection(base: Path, sandbox: Sandbox) -> None:
    async def silent(question: Confirmation) -> bool:
        await asyncio.Event().wait()
        return True

    run = bench(base, sandbox, silent, confirmation_timeout_s=0.2)
    async with server() as port:
        result = await run.run("shell", fetch(port))
    assert f"[not connected to 127.0.0.2:{port}: No answer came within 0.2 s.]" in result.text


async def test_without_an_approver_the_refusal_names_the_rule_to_add(base: Path, sandbox: Sandbox) -> None:
    async with server() as port:
        run = bench(base, sandbox, None)
        result = await run.run("shell", fetch(port))
        rule = Rule(decision=Outcome.ALLOW, tool="connect_host", arguments={"host": f"127.0.0.2:{port}"})
        allowed = bench(base, sandbox, None, policy=Policy(per_tool=RUN_SHELL, rules=(rule,)))
        after = await allowed.run("shell", fetch(port))
    advice = f'add a rule: decision = "allow", tool = "connect_host", arguments = {{ host = "127.0.0.2:{port}" }}.'
    assert advice in result.text
    assert after.text == "hello\n"


async def test_connections_of_two_processes_to_one_host_wait_for_one_answer(base: Path, sandbox: Sandbox) -> None:
    both = asyncio.Event()

    async def approve(question: Confirmation) -> Answer:
        approver.questions.append(question)
        await asyncio.wait_for(both.wait(), 30)
        return allow(Scope.RUN)

    approver = Approver()
    run = bench(base, sandbox, approve)
    async with server() as port:
        command = f"h=127.0.0.2; for n in 1 2; do (touch $n; curl -s http://$h:{port}/) & done; wait"
        work = run.start("shell", {"command": command})
        async with asyncio.timeout(30):
            while not all((base / "ws" / n).exists() for n in "12"):
                await asyncio.sleep(0.05)
            while not approver.questions:
                await asyncio.sleep(0.05)
        both.set()
        result = await work
    assert result.text == "hello\n" * 2
    assert len(approver.questions) == 1


async def test_hosts_in_the_words_of_an_approved_command_need_no_second_approval(base: Path, sandbox: Sandbox) -> None:
    approver = Approver(True)
    run = bench(base, sandbox, approver, policy=Policy())
    async with server() as port:
        result = await run.run("shell", {"command": f"curl -s http://127.0.0.2:{port}/"})
    assert result.text == "hello\n"
    assert [each.tool for each in approver.questions] == ["shell"]


async def test_a_call_of_connect_host_from_outside_is_refused(base: Path, sandbox: Sandbox) -> None:
    run = bench(base, sandbox, Approver(True))
    result = await run.run("connect_host", {"host": "example.com", "port": 443})
    assert result.error is not None
    assert result.error.reason == "internal_tool"


async def test_cancelling_a_command_withdraws_its_question(base: Path, sandbox: Sandbox) -> None:
    asked = asyncio.Event()

    async def silent(question: Confirmation) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    run = bench(base, sandbox, silent)
    async with server() as port:
        work = run.start("shell", fetch(port), id="c" * 26)
        await asyncio.wait_for(asked.wait(), 30)
        assert await run.confirmations.open()
        assert await run.dispatcher.cancel("c" * 26)
        result = await work
    assert result.error is not None or result.partial
    async with asyncio.timeout(30):
        while await run.confirmations.open():
            await asyncio.sleep(0.02)


async def test_mode_guarded_runs_a_command_and_asks_at_the_connection(base: Path, backends: Any) -> None:
    surroundings = Surroundings(
        home=str(base / "home"), callgate_home=str(base / "home/.callgate"), asks_in_guarded=True
    )
    sandbox = Sandbox(surroundings, backends)
    approver = Approver(True)
    try:
        run = bench(base, sandbox, approver, policy=Policy(), mode=Mode.GUARDED)
        async with server() as port:
            result = await run.run("shell", {**fetch(port), "network": True})
    finally:
        sandbox.close()
    assert result.text == "hello\n"
    assert [each.tool for each in approver.questions] == ["connect_host"]


async def test_a_rule_for_installs_covers_a_registry_for_installs_alone(
    base: Path, backends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip` is a program that fetches from the host that its arguments name."""
    programs = base / "programs"
    programs.mkdir()
    (programs / "pip").write_text('#!/bin/sh\nexec curl -s "http://127.0.0.2:$2/"\n')
    (programs / "pip").chmod(0o755)
    surroundings = Surroundings(
        home=str(base / "home"),
        callgate_home=str(base / "home/.callgate"),
        readable=(str(programs),),
        asks_in_guarded=True,
    )
    sandbox = Sandbox(surroundings, backends)
    approver = Approver(False, False)
    async with server() as port:
        registry = {"host": f"127.0.0.2:{port}", "installs": "pip"}
        rule = Rule(decision=Outcome.ALLOW, tool="connect_host", arguments=registry)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        commands = (f"pip install {port}", f"pip config {port}", f"pip install {port}; true")
        try:
            run = bench(base, sandbox, approver, policy=Policy(rules=(rule,)), mode=Mode.GUARDED)
            results = [await run.run("shell", {"command": each}) for each in commands]
        finally:
            sandbox.close()
    assert [each.text for each in results][0] == "hello\n"
    assert all("hello" not in each.text for each in results[1:])
    assert len(approver.questions) == 2


async def _in_guarded(
    base: Path, backends: Any, monkeypatch: pytest.MonkeyPatch, approver: Approver, *commands: str
) -> list[str]:
    """The outputs of commands; `pip`, `gh` and `git` fetch from the port in the file `port`."""
    programs = base / "programs"
    programs.mkdir()
    for name in ("pip", "gh", "git"):
        (programs / name).write_text('#!/bin/sh\nexec curl -s "http://127.0.0.2:$(cat port)/"\n')
        (programs / name).chmod(0o755)
    surroundings = Surroundings(
        home=str(base / "home"),
        callgate_home=str(base / "home/.callgate"),
        readable=(str(programs),),
        asks_in_guarded=True,
    )
    sandbox = Sandbox(surroundings, backends)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    async with server() as port:
        (base / "ws/port").write_text(str(port))
        config = base / "ws/.git/config"
        config.parent.mkdir(exist_ok=True)
        config.write_text(config.read_text().replace("PORT", str(port)) if config.exists() else "")
        try:
            run = bench(base, sandbox, approver, policy=Policy(), mode=Mode.GUARDED)
            run.dispatcher.authority.flows.tell(run.session, "Install the packages.")
            return [(await run.run("shell", {"command": each})).text for each in commands]
        finally:
            sandbox.close()


async def test_an_approval_covers_further_installs_and_nothing_else(
    base: Path, backends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    approver = Approver(True, False, False)
    found = await _in_guarded(
        base, backends, monkeypatch, approver, "pip install x", "pip install y", "pip config z", "gh pr view 1"
    )
    assert [each == "hello\n" for each in found] == [True, True, False, False]
    assert [each.arguments.get("installs") for each in approver.questions] == ["pip", None, None]


async def test_git_fetches_from_the_remote_that_was_there_before_the_first_command(
    base: Path, backends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "ws/.git").mkdir()
    (base / "ws/.git/config").write_text('[remote "origin"]\n\turl = http://127.0.0.2:PORT/app.git\n')
    approver = Approver(False)
    found = await _in_guarded(base, backends, monkeypatch, approver, "git fetch origin", "git push origin main")
    assert [each == "hello\n" for each in found] == [True, False]
    assert len(approver.questions) == 1


async def test_git_does_not_fetch_unasked_from_a_remote_that_a_command_added(
    base: Path, backends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    approver = Approver(False)
    add = "printf '[remote \"origin\"]\\n\\turl = http://127.0.0.2:%s/a.git\\n' $(cat port) >> .git/config"
    found = await _in_guarded(base, backends, monkeypatch, approver, add, "git fetch origin")
    assert "hello" not in found[1]
    assert len(approver.questions) == 1
