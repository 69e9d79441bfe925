"""Which hosts a call's command reaches: by the settings, by rules, by the workspace's own file."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.sessions import Mode
from callgate.dispatch.commands.sandboxes import OFF, Enclosure, Sandbox, Surroundings
from callgate.dispatch.permission.confirmations import Answer
from callgate.policy.commands import parse_pattern
from callgate.policy.rules import Outcome, Policy, Rule
from callgate.sandbox import machines
from callgate.sandbox.allowed_hosts import parse
from callgate.sandbox.jails import Network
from callgate.sandbox.plans import Bubblewrap, Landlock, Namespaces, Seccomp
from callgate.sandbox.profiles import Profile
from callgate.tools.shell import Shell
from tests.support import Bench, FakeHuman

BUBBLEWRAP_ONLY = (
    Landlock(7),
    Seccomp(True),
    Namespaces("user namespaces are off"),
    Bubblewrap("/usr/bin/bwrap"),
)


@pytest.fixture(scope="module")
def backends() -> Any:
    found = machines.look_now()
    if any(each.problem for each in found if each.name == "namespaces"):
        pytest.skip("needs namespaces: not for us here")
    return found


@pytest.fixture
def base() -> Iterator[Path]:
    """Not in /tmp, which commands do not see."""
    with tempfile.TemporaryDirectory(prefix="callgate-", dir="/var/tmp") as made:
        for name in ("ws", "home/.callgate"):
            (Path(made) / name).mkdir(parents=True)
        yield Path(made)


def said(base: Path, *hosts: str, **more: Any) -> Surroundings:
    if hosts:
        more |= {"network": Network.HOSTS, "hosts": tuple(map(parse, hosts))}
    return Surroundings(home=str(base / "home"), callgate_home=str(base / "home/.callgate"), **more)


def allow(*hosts: str, command: str = "curl *", decision: Outcome = Outcome.ALLOW) -> Rule:
    return Rule(decision=decision, tool="shell", command=parse_pattern(command), network=hosts)


ALL = Enclosure(Profile.WORKSPACE, Network.ALL, widened=True)
NAMED = Enclosure(Profile.WORKSPACE, Network.HOSTS, hosts=(parse("a.com"), parse("*.b.com")))


@pytest.mark.parametrize(
    ("enclosure", "named", "most", "expected"),
    [
        (ALL, [], None, "workspace, with network"),
        (ALL, [["x.com"]], None, "workspace, with network: x.com, a.com, *.b.com"),
        (ALL, [["x.com", "y.com"], ["y.com"]], None, "workspace, with network: y.com, a.com, *.b.com"),
        (ALL, [["x.com"], ["y.com"]], None, "workspace, with network: a.com, *.b.com"),
        (ALL, [], ["x.com"], "workspace, with network: x.com"),
        (ALL, [["x.com"]], ["a.com:443"], "workspace, with network: a.com:443"),
        (ALL, [["x.com"]], [], "workspace"),
        (NAMED, [], None, "workspace, with network: a.com, *.b.com"),
        (NAMED, [], ["x.b.com", "c.com"], "workspace, with network: x.b.com"),
        (NAMED, [], [], "workspace"),
        (Enclosure(Profile.WORKSPACE, Network.LOOPBACK), [], ["x.com"], "workspace, with a loopback of its own"),
        (Enclosure(Profile.WORKSPACE), [], ["x.com"], "workspace"),
        (Enclosure(Profile.READ), [], ["x.com"], "read"),
        (Enclosure(Profile.OPEN, Network.ALL), [], ["x.com"], "open"),
        (Enclosure(None, Network.ALL), [], ["x.com"], "off"),
    ],
)
def test_lists_of_hosts_only_ever_take_away(
    base: Path, enclosure: Enclosure, named: list[list[str]], most: list[str] | None, expected: str
) -> None:
    sandbox = Sandbox(said(base, "a.com", "*.b.com"), BUBBLEWRAP_ONLY)
    made = sandbox.confined(enclosure, named, most)
    assert str(made) == expected
    assert made.widened is enclosure.widened


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as started:
        yield started.sockets[0].getsockname()[1]


FETCH = "curl -s http://127.0.0.1:{port}/; curl -s -o /dev/null http://evil.example.com/; true"


async def fetched(run: Bench, port: int, **more: Any) -> tuple[str, Any]:
    result = await run.run("shell", {"command": FETCH.format(port=port), **more})
    assert result.ok, result.error
    return result.text, (result.meta or {}).get("network")


async def test_the_result_says_what_was_blocked_and_how_much_was_reached(base: Path, backends: Any) -> None:
    async with server() as port:
        sandbox = Sandbox(said(base, f"127.0.0.1:{port}"), backends)
        try:
            run = Bench(base / "ws", Shell, sandbox=sandbox, mode=Mode.WRITE)
            text, network = await fetched(run, port)
        finally:
            sandbox.close()
    assert text == "hello\n[blocked: evil.example.com:80]"
    assert network == {"blocked": ["evil.example.com:80"], "reached": 1}


async def test_a_rule_gives_a_command_its_hosts_and_no_more_without_a_question(base: Path, backends: Any) -> None:
    async with server() as port:
        rules = (allow(f"127.0.0.1:{port}"), allow("other.com", command="true"))
        sandbox = Sandbox(said(base), backends)
        try:
            run = Bench(base / "ws", Shell, sandbox=sandbox, policy=Policy(rules=(rules[0],)))
            once = {"command": f"curl -s http://127.0.0.1:{port}/", "network": True}
            reached = await run.run("shell", once)
            run = Bench(base / "ws", Shell, sandbox=sandbox, policy=Policy(rules=rules))
            neither = await run.run("shell", {**once, "command": once["command"] + " && true"})
            alone = await run.run("shell", {"command": once["command"]})
        finally:
            sandbox.close()
    (record, _) = run.recorder.records
    assert (reached.text, record.sandbox) == ("hello\n", "workspace")
    assert [each.value["exit_code"] for each in (neither, alone)] == [7, 7]


async def test_the_question_names_the_hosts_also_where_a_person_changes_the_call(base: Path, backends: Any) -> None:
    sandbox = Sandbox(said(base), backends)
    changed = {"command": "curl --version > /dev/null; env | grep -c ^http_proxy", "network": True}
    human = FakeHuman(True, Answer(decision=Outcome.ALLOW, arguments=changed))
    policy = Policy(rules=(allow("a.com", "*.b.com", decision=Outcome.ASK),))
    run = Bench(base / "ws", Shell, sandbox=sandbox, policy=policy, human=human)
    try:
        await run.run("shell", {"command": "curl --version", "network": True})
        result = await run.run("shell", {"command": "true"})
    finally:
        sandbox.close()
    assert [asked.sandbox for asked in human.questions] == [
        "workspace, with network: a.com, *.b.com",
        "workspace",
    ]
    assert result.text == "1\n"
    assert [record.sandbox for record in run.recorder.records] == ["workspace, with network: a.com, *.b.com"] * 2


async def test_a_workspace_narrows_what_the_settings_give(base: Path, backends: Any) -> None:
    async with server() as port:
        sandbox = Sandbox(said(base, f"127.0.0.1:{port}"), backends)
        cap = Policy(hosts=("pkgs.example.org",))
        try:
            run = Bench(base / "ws", Shell, sandbox=sandbox, mode=Mode.WRITE, narrowed_by=cap)
            given = await fetched(run, port)
            asked = await fetched(run, port, network=True)
        finally:
            sandbox.close()
    assert given == ("", None)
    assert asked[1] == {"blocked": ["evil.example.com:80"], "reached": 0}
    assert [record.sandbox for record in run.recorder.records] == [
        "workspace",
        "workspace, with network: pkgs.example.org",
    ]


async def test_where_named_hosts_cannot_be_kept_the_call_is_refused_by_that_name(base: Path) -> None:
    sandbox, human = Sandbox(said(base, "pkgs.example.org"), BUBBLEWRAP_ONLY), FakeHuman()
    run = Bench(base / "ws", Shell, sandbox=sandbox, human=human)
    result = await run.run("shell", {"command": "true"})
    assert (result.error.reason, dict(result.error.details), human.questions) == (
        "sandbox_unavailable",
        {"missing": ["named_hosts"], "problems": ["user namespaces are off"]},
        [],
    )


def test_switched_off_nothing_is_bounded() -> None:
    assert Sandbox(OFF).confined(Enclosure(None, Network.ALL), [["a.com"]]) == Enclosure(None, Network.ALL)


async def test_a_command_does_not_get_the_hosts_of_the_one_before_it(base: Path, backends: Any) -> None:
    async with server() as port:
        rules = (allow(f"127.0.0.1:{port}"), allow("other.com", command="env *"))
        sandbox = Sandbox(said(base), backends)
        run = Bench(base / "ws", Shell, sandbox=sandbox, policy=Policy(rules=rules))
        fetch = f"curl -s --noproxy x http://127.0.0.1:{port}/"
        try:
            results = [
                await run.run("shell", {"command": command, "network": True})
                for command in (fetch, f"env A=1 {fetch}", fetch)
            ]
        finally:
            sandbox.close()
    refused = f"[blocked: 127.0.0.1:{port}]"
    assert [result.text.splitlines()[-1] for result in results] == ["hello", refused, "hello"]
