"""TCP connections of programs without a proxy: approved by name, made outside, handed in."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.commands import Command
from callgate.core.sessions import Mode, Session
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox, Surroundings
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.dispatch.permission.question_building import host_proposals
from callgate.policy.rules import Outcome, Policy, PolicyMode, Rule, Setting
from callgate.sandbox import machines
from callgate.sandbox.allowed_hosts import parse
from callgate.sandbox.jails import Network, Profile
from callgate.sandbox.plans import CannotGuarantee
from callgate.tools.shell import Shell
from tests.support import Bench

RUN_SHELL = Policy(per_tool={"shell": Setting(PolicyMode.AUTO)})
DIRECT = "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy; "
PYTHON = "/usr/bin/python3 -I -S -c"
_LOOK_UP = socket.getaddrinfo


@pytest.fixture(scope="module", params=["namespaces", "supervisor"])
def backends(request: pytest.FixtureRequest) -> Any:
    """The machine, or the same without namespaces."""
    found = {each.name: each for each in machines.look_now()}
    problem = found[request.param].problem
    if problem is not None:
        pytest.skip(f"needs {request.param}: {problem}")
    if request.param == "supervisor":
        del found["namespaces"], found["bubblewrap"]
    return tuple(found.values())


@pytest.fixture
def base() -> Iterator[Path]:
    """Not in /tmp, which commands do not see."""
    with tempfile.TemporaryDirectory(prefix="callgate-", dir="/var/tmp") as made:
        for name in ("ws", "home/.callgate"):
            (Path(made) / name).mkdir(parents=True)
        yield Path(made)


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name below `test` has the address of this machine, as we look it up."""

    def look_up(host: str, *args: Any, **more: Any) -> Any:
        return _LOOK_UP("127.0.0.1" if host.endswith(".test") else host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


class World:
    """A sandbox that asks about hosts, a server that answers, and who approves."""

    def __init__(self, base: Path, backends: Any, port: int) -> None:
        self.base, self.backends, self.port = base, backends, port
        self.isolated = any(each.name == "namespaces" for each in backends)
        self.questions: list[Confirmation] = []
        self.allows = True
        self.scope = Scope.RUN
        self.asked = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()
        self.bench: Bench | None = None

    async def approve(self, question: Confirmation) -> Answer:
        self.questions.append(question)
        self.asked.set()
        await self.release.wait()
        outcome = Outcome.ALLOW if self.allows else Outcome.DENY
        return Answer(decision=outcome, scope=self.scope if self.allows else Scope.ONCE)

    def start(self, *hosts: str, **more: Any) -> Bench:
        surroundings = Surroundings(
            home=str(self.base / "home"),
            callgate_home=str(self.base / "home/.callgate"),
            network=Network.ASK,
            hosts=tuple(map(parse, hosts)),
        )
        self.sandbox = Sandbox(surroundings, self.backends)
        more.setdefault("policy", RUN_SHELL)
        return Bench(self.base / "ws", Shell, sandbox=self.sandbox, human=self.approve, **more)

    async def run(self, command: str, *hosts: str, limit_s: int = 600, **more: Any) -> Any:
        bench = self.start(*hosts, **more)
        try:
            return await bench.run("shell", {"command": DIRECT + command, "timeout_seconds": limit_s})
        finally:
            self.sandbox.close()


@pytest.fixture
async def world(base: Path, backends: Any) -> AsyncIterator[World]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield World(base, backends, server.sockets[0].getsockname()[1])


async def test_a_program_without_a_proxy_reaches_a_listed_name_by_its_name(world: World) -> None:
    result = await world.run(f"curl -s http://srv.test:{world.port}/", f"private:srv.test:{world.port}")
    assert (result.text, world.questions) == ("hello\n", [])
    assert result.meta["network"] == {"blocked": [], "reached": 1}


async def test_an_unlisted_name_waits_in_connect_and_the_question_names_the_program(
    world: World,
) -> None:
    result = await world.run(f"curl -s http://srv.test:{world.port}/")
    assert result.text == "hello\n"
    assert [each.arguments["host"] for each in world.questions] == [
        f"srv.test:{world.port}",
        f"private:srv.test:{world.port}",
    ]
    assert world.questions[0].arguments["program"].endswith("curl")
    assert world.questions[1].arguments["address"] == "127.0.0.1"


async def test_the_name_of_a_program_cannot_pass_for_a_part_of_the_question(world: World) -> None:
    world.allows = False
    script = f"import socket; socket.socket().connect_ex((socket.gethostbyname('srv.test'), {world.port}))"
    (world.base / "ws" / "it.py").write_text(script)
    command = 'n=$\'curl\\nhost = fine.example \\xff\'; cp $(readlink -f /usr/bin/python3) "$n"; "./$n" -I -S it.py'
    result = await world.run(command)
    assert len(world.questions) == 1, result
    (question,) = world.questions
    assert '\\nhost = fine.example \ufffd" of "shell: ' in question.why
    assert "\n" not in question.why


async def test_a_rule_for_names_does_not_let_them_lead_into_this_network(world: World) -> None:
    """The owner of a name decides about its addresses, also after it was approved."""
    world.allows = False
    rule = Rule(decision=Outcome.ALLOW, tool="connect_host", arguments={"host": "*"})
    policy = Policy(per_tool=RUN_SHELL.per_tool, rules=(rule,))
    await world.run(f"curl -s http://srv.test:{world.port}/", policy=policy)
    assert [each.arguments["host"] for each in world.questions] == [f"private:srv.test:{world.port}"]


@pytest.mark.parametrize(
    ("host", "patterns"),
    [
        ("files.example.org", ["files.example.org", "*.example.org"]),
        ("private:git.team.corp:8443", ["private:git.team.corp:8443", "private:*.team.corp:8443"]),
        ("example.co.uk", ["example.co.uk"]),
        ("10.0.0.7:5432", ["10.0.0.7:5432"]),
        ("localhost", ["localhost"]),
    ],
)
def test_a_saved_rule_covers_the_host_or_names_beside_it(host: str, patterns: list[str]) -> None:
    assert [each.pattern for each in host_proposals(host)] == patterns


async def test_a_denied_connection_fails_with_permission_denied(world: World) -> None:
    world.allows = False
    script = f"import socket; print(socket.socket().connect_ex((socket.gethostbyname('srv.test'), {world.port})))"
    result = await world.run(f'{PYTHON} "{script}"')
    assert result.text.startswith("13\n[blocked: srv.test")
    assert f"[not connected to srv.test:{world.port}: User denied this operation.]" in result.text


async def test_a_program_has_no_time_limit_while_its_connection_waits(world: World) -> None:
    world.release.clear()
    bench = world.start()
    command = f"curl -s --connect-timeout 1 http://srv.test:{world.port}/"
    try:
        work = bench.start("shell", {"command": DIRECT + command})
        await asyncio.wait_for(world.asked.wait(), 30)
        await asyncio.sleep(2)
        world.release.set()
        result = await work
    finally:
        world.sandbox.close()
    assert result.text == "hello\n"


LOOP = """
import asyncio, os
async def main():
    ticks = 0
    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1
    ticking = asyncio.create_task(tick())
    reader, writer = await asyncio.wait_for(asyncio.open_connection("srv.test", {port}), 30)
    made = writer.get_extra_info("socket")
    writer.write(b"GET / HTTP/1.1\\r\\n\\r\\n")
    print((await reader.read()).split()[-1].decode(), os.get_blocking(made.fileno()), os.get_inheritable(made.fileno()))
asyncio.run(main())
"""


async def test_a_nonblocking_connection_of_an_event_loop_is_completed(world: World) -> None:
    script = world.base / "ws" / "loop.py"
    script.write_text(LOOP.format(port=world.port))
    result = await world.run("/usr/bin/python3 -I loop.py")
    assert result.text == "hello False False\n", result.text


OPTIONS = """
import os, socket
made = socket.socket()
made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
made.set_inheritable(True)
made.connect((socket.gethostbyname("srv.test"), {port}))
print(*(made.getsockopt(*each) for each in (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
)), os.get_blocking(made.fileno()), os.get_inheritable(made.fileno()))
"""


async def test_the_socket_has_the_options_of_the_one_that_it_replaces(world: World) -> None:
    (world.base / "ws" / "options.py").write_text(OPTIONS.format(port=world.port))
    result = await world.run("/usr/bin/python3 -I options.py", f"private:srv.test:{world.port}")
    assert result.text == "1 1 77 True True\n"


WAYS_OUT = """
import ctypes, socket, struct
def tried(make, act):
    try:
        with make() as each:
            each.settimeout(5)
            act(each)
        return "reached"
    except OSError as error:
        return error.errno
stub = socket.gethostbyname("srv.test")
out, port = "192.0.2.1", {port}
tcp, udp = socket.socket, lambda: socket.socket(type=socket.SOCK_DGRAM)
six = lambda: socket.socket(socket.AF_INET6)
fast = 0x20000000
print([
    tried(lambda: socket.socket(proto=262), lambda s: s.connect((stub, port))),
    tried(lambda: socket.socket(proto=132), lambda s: s.connect((stub, port))),
    tried(tcp, lambda s: s.sendto(b"x", fast, (stub, port))),
    tried(tcp, lambda s: s.sendmsg([b"x"], [], fast, (stub, port))),
    tried(tcp, lambda s: (s.setsockopt(6, 30, 1), s.connect((out, port)), s.send(b"x"))),
    tried(six, lambda s: s.connect((f"::ffff:{{out}}", port))),
    tried(udp, lambda s: s.sendto(b"x", (stub, port))),
    tried(udp, lambda s: (s.connect((out, port)), s.send(b"x"))),
    tried(tcp, lambda s: s.connect((out, port))),
    tried(tcp, lambda s: s.connect(("198.18.77.77", port))),
    tried(tcp, lambda s: (s.listen(), s.getsockname())),
])
libc = ctypes.CDLL(None, use_errno=True)
each = socket.socket()
print(libc.connect(each.fileno(), struct.pack("=H14x", 0), 16))
"""


async def test_no_other_way_leads_out_of_the_network(world: World) -> None:
    """Listening without a bind stays in the network of the command."""
    world.allows = False
    (world.base / "ws" / "ways.py").write_text(WAYS_OUT.format(port=world.port))
    result = await world.run("/usr/bin/python3 -I ways.py")
    assert result.ok, result.text
    tries, unspecified = result.text.splitlines()[:2]
    outcomes = eval(tries)  # noqa: S307
    assert outcomes[-1] == ("reached" if world.isolated else 1)
    assert "reached" not in outcomes[:-1]
    assert unspecified == ("0" if world.isolated else "-1")


RACE = """
import ctypes, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
listed = socket.inet_aton(socket.gethostbyname("srv.test"))
other = socket.inet_aton(sys.argv[1])
pack = lambda address: struct.pack("=H2s4s8x", 2, struct.pack("!H", {port}), address)
raw = ctypes.create_string_buffer(pack(listed), 16)
stop = False
def flip():
    while not stop:
        raw.raw = pack(other)
        raw.raw = pack(listed)
threading.Thread(target=flip, daemon=True).start()
wrong = 0
for _ in range({tries}):
    with socket.socket() as each:
        if libc.connect(each.fileno(), raw, 16) == 0 and each.getpeername()[0] != "127.0.0.1":
            wrong += 1
stop = True
print("wrong", wrong)
"""


REUSED = """
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
secret, reset = ("127.0.0.1", {secret}), {reset}
FAST, FAST_LATER = 0x20000000, 30
def connected(name, port):
    made = socket.socket()
    made.settimeout(10)
    made.connect((socket.gethostbyname(name), port))
    return made
def unspecified(each):
    libc.connect(each.fileno(), struct.pack("=H14x", 0), 16)
def was_reset(each):
    try:
        each.recv(1)
    except ConnectionResetError:
        pass
def connects(each):
    each.connect(secret)
def twice(each):
    try:
        each.connect(secret)
    except OSError:
        pass
    each.connect(secret)
def sends(each):
    try:
        each.sendto(b"x", FAST, secret)
    except OSError:
        pass
    each.sendto(b"x", FAST, secret)
def sends_a_message(each):
    each.sendmsg([b"x"], [], FAST, secret)
def sends_later(each):
    each.setsockopt(socket.IPPROTO_TCP, FAST_LATER, 1)
    each.connect(secret)
    each.send(b"x")
def listens(each):
    each.listen()
    sys.exit("listens outside")
def binds(each):
    each.bind("\\0callgate-test")
    sys.exit("has a name outside")
ends = []
for prepare, port in ((unspecified, {port}), (was_reset, reset), (lambda each: None, {port})):
    for attack in (connects, twice, sends, sends_a_message, sends_later, listens):
        each = connected("srv.test", port)
        prepare(each)
        try:
            attack(each)
            ends.append(each.recv(9))
        except OSError as error:
            ends.append(error.errno)
print(ends)
resolver = socket.socket(fileno=connected("srv.test", 53).detach())
try:
    binds(resolver)
except OSError as error:
    print(error.errno)
"""


async def test_a_socket_that_was_given_leads_nowhere_else(world: World) -> None:
    """It is in the network of this machine: without its connection it could reach all of it."""

    async def secret(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"secret")
        writer.close()

    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0" + b"\0" * 4)
        writer.close()

    async with (
        await asyncio.start_server(secret, "127.0.0.1", 0) as first,
        await asyncio.start_server(reset, "127.0.0.1", 0) as second,
    ):
        ports = [each.sockets[0].getsockname()[1] for each in (first, second)]
        script = REUSED.format(port=world.port, secret=ports[0], reset=ports[1])
        (world.base / "ws" / "reused.py").write_text(script)
        hosts = [f"private:srv.test:{each}" for each in (world.port, ports[1], 53)]
        result = await world.run("/usr/bin/python3 -I reused.py", *hosts)
    assert result.ok, result.text
    ends, bound = result.text.splitlines()
    refused = {22, 95, 103, 104, 106, 107, 32} | (set() if world.isolated else {1, 111})
    assert set(eval(ends)) <= refused, ends  # noqa: S307
    assert bound == ("22" if world.isolated else "1")


EXCHANGED = """
import ctypes, os, socket, struct, threading
libc = ctypes.CDLL(None, use_errno=True)
made = socket.socket()
made.connect((socket.gethostbyname("srv.test"), {port}))
own = socket.socket()
number = os.dup(own.fileno())
unspecified = struct.pack("=H14x", 0)
inside = struct.pack("=H2s4s8x", 2, struct.pack("!H", 9), socket.inet_aton("127.0.0.1"))
secret = struct.pack("=H2s4s8x", 2, struct.pack("!H", {secret}), socket.inet_aton("127.0.0.1"))
raw = ctypes.create_string_buffer(inside, 16)
stop = False
def exchange():
    while not stop:
        os.dup2(made.fileno(), number)
        raw.raw = unspecified
        os.dup2(own.fileno(), number)
        raw.raw = inside
threading.Thread(target=exchange, daemon=True).start()
for _ in range({tries}):
    libc.connect(number, raw, 16)
stop = True
libc.connect(made.fileno(), secret, 16)
print("connected to", made.getpeername()[1] == {port})
"""


async def _exchange(world: World, tries: int) -> None:
    script = EXCHANGED.format(port=world.port, secret=world.port + 1, tries=tries)
    (world.base / "ws" / "exchanged.py").write_text(script)
    result = await world.run("exec /usr/bin/python3 -I exchanged.py", f"private:srv.test:{world.port}")
    assert result.text == "connected to True\n"


async def test_a_descriptor_that_changes_meanwhile_does_not_lose_its_connection(world: World) -> None:
    await _exchange(world, 300)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_a_descriptor_that_changes_meanwhile_does_not_lose_its_connection_often(
    world: World,
) -> None:
    await _exchange(world, 10_000)


async def _race(world: World, tries: int) -> None:
    (world.base / "ws" / "race.py").write_text(RACE.format(port=world.port, tries=tries))
    world.allows = False
    result = await world.run("/usr/bin/python3 -I race.py 192.0.2.9", f"private:srv.test:{world.port}")
    assert result.text.startswith("wrong 0\n")


async def test_an_address_that_changes_in_memory_leads_nowhere_else(world: World) -> None:
    await _race(world, 300)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_an_address_that_changes_in_memory_leads_nowhere_else_often(world: World) -> None:
    await _race(world, 10_000)


SWAPPED = """
import os, socket, threading, time
made, file = socket.socket(), os.open("swapped", os.O_CREAT | os.O_RDWR)
number = made.fileno()
done = threading.Event()
def connect():
    try:
        made.connect((socket.gethostbyname("srv.test"), {port}))
    finally:
        done.set()
threading.Thread(target=connect).start()
time.sleep(0.5)
os.dup2(file, number)
open("ready", "w").close()
done.wait()
print(os.fstat(number).st_mode >> 12, made.getpeername()[1] == {port})
"""


async def test_a_descriptor_that_was_swapped_meanwhile_is_the_connection(world: World) -> None:
    world.release.clear()
    (world.base / "ws" / "swapped.py").write_text(SWAPPED.format(port=world.port))
    bench = world.start(f"private:listed.test:{world.port}")
    try:
        work = bench.start("shell", {"command": DIRECT + "/usr/bin/python3 -I swapped.py"})
        async with asyncio.timeout(30):
            while not (world.base / "ws" / "ready").exists():
                await asyncio.sleep(0.05)
        world.release.set()
        result = await work
    finally:
        world.sandbox.close()
    assert result.text == "12 True\n"


async def test_a_process_that_ends_while_it_waits_leaves_nothing(world: World) -> None:
    world.release.clear()
    result = await world.run(f"timeout 1 curl -s http://srv.test:{world.port}/; echo ended $?")
    assert result.text == "ended 124\n"
    assert len(world.questions) == 1


EXECUTED = """
import os, socket, threading, time
made = socket.socket()
made.set_inheritable(True)
threading.Thread(target=made.connect, args=((socket.gethostbyname("srv.test"), {port}),), daemon=True).start()
time.sleep(0.5)
os.execv("/bin/sh", ["sh", "-c", "readlink /proc/$$/fd/{{0}}; touch ready; while [ ! -e on ]; do sleep 0.05; done; readlink /proc/$$/fd/{{0}}".format(made.fileno())])
"""


async def test_an_answer_after_an_exec_gives_the_new_program_nothing(world: World) -> None:
    """The thread that waited is gone; its socket is the one that it had."""
    world.release.clear()
    (world.base / "ws" / "executed.py").write_text(EXECUTED.format(port=world.port))
    bench = world.start(f"private:listed.test:{world.port}")
    try:
        work = bench.start("shell", {"command": DIRECT + "/usr/bin/python3 -I executed.py"})
        async with asyncio.timeout(30):
            while not (world.base / "ws" / "ready").exists():
                await asyncio.sleep(0.05)
        world.release.set()
        async with asyncio.timeout(30):
            while await bench.confirmations.open():
                await asyncio.sleep(0.05)
        (world.base / "ws" / "on").touch()
        result = await work
    finally:
        world.sandbox.close()
    before, after = result.text.split()
    assert before == after


RATE = """
import os, socket, subprocess, sys, time
def rate():
    end, count = time.process_time() + 0.3, 0
    while time.process_time() < end:
        os.close(os.open("file", os.O_CREAT | os.O_RDWR))
        with socket.socket() as each:
            each.connect((socket.gethostbyname("listed.test"), {port}))
        count += 1
    return count
free = rate()
waiting = [subprocess.Popen(["curl", "-s", f"http://srv{{n}}.test:{port}/"]) for n in range(8)]
while not os.path.exists("held"):
    time.sleep(0.01)
held = rate()
for each in waiting:
    each.kill()
print(free, held)
"""


async def test_a_second_process_keeps_its_rate_while_connections_of_others_wait(world: World) -> None:
    """Counted per processor time of the second process, so that other load counts little."""
    world.release.clear()
    (world.base / "ws" / "rate.py").write_text(RATE.format(port=world.port))
    bench = world.start(f"private:listed.test:{world.port}")
    try:
        work = bench.start("shell", {"command": DIRECT + "/usr/bin/python3 -I rate.py"})
        async with asyncio.timeout(60):
            while len(world.questions) < 8:
                await asyncio.sleep(0.05)
        (world.base / "ws" / "held").touch()
        result = await asyncio.wait_for(work, 60)  # the questions are never answered
    finally:
        world.sandbox.close()
    free, held = map(int, result.text.splitlines()[0].split())
    assert held >= 0.5 * free > 0  # 0.9 without the noise of a busy machine


async def test_a_command_still_reaches_what_it_serves_itself(world: World) -> None:
    script = (
        "import socket; l = socket.create_server(('127.0.0.1', 0)); "
        "c = socket.create_connection(l.getsockname()); print(c.getpeername()[0])"
    )
    result = await world.run(f'{PYTHON} "{script}"')
    assert world.questions == []
    if world.isolated:
        assert result.text == "127.0.0.1\n"
    else:  # others on the machine could connect to it
        assert "Permission denied" in result.text or "Operation not permitted" in result.text


UNIX = """
import os, socket, threading
os.mkdir("place")
os.chdir("place")
names = "relative", os.path.abspath("absolute"), "\\0abstract"
for name in names:
    for waits in (True, False):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name)
        listener.listen()
        each = socket.socket(socket.AF_UNIX)
        each.setblocking(waits)
        each.connect(name)
        print(repr(listener.accept()[1]), each.getpeername() in (name, name.encode()))
        listener.close()
        if name[:1] != "\\0":
            os.unlink(name)
full = socket.socket(socket.AF_UNIX)
full.bind("full")
full.listen(0)
first, second = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
first.connect("full")
threading.Timer(0.2, full.accept).start()
second.connect("full")
print(socket.socket(socket.AF_UNIX).connect_ex("missing"))
"""


async def test_sockets_of_a_commands_own_processes_connect_as_always(world: World) -> None:
    """Unix sockets are for MCP servers that ask for them; a full one makes the caller wait."""
    script = world.base / "ws" / "unix.py"
    script.write_text(UNIX)
    world.start()
    enclosure = Enclosure(Profile.WORKSPACE, Network.HOSTS, own_sockets=True)
    session = Session(workspace=str(world.base / "ws"), mode=Mode.WRITE)
    if not world.isolated:
        with pytest.raises(CannotGuarantee):
            world.sandbox.process_launcher(enclosure, session)
        return
    launcher = world.sandbox.process_launcher(enclosure, session)
    output: list[bytes] = []
    argv = ("/usr/bin/python3", "-I", "unix.py")
    command = Command(argv=argv, cwd=str(world.base / "ws"), env={})
    try:
        running = await launcher.start(command, lambda stream, data: output.append(data))
        async with running:
            ended = await running.wait()
    finally:
        world.sandbox.close()
    assert (b"".join(output).decode(), ended.code) == ("'' True\n" * 6 + "2\n", 0)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
async def test_git_is_asked_about_by_the_name_of_its_remote(world: World) -> None:
    world.allows = False
    result = await world.run(f"git ls-remote git://srv.test:{world.port}/x 2>&1 | tail -3")
    assert "Permission denied" in result.text
    assert [each.arguments["host"] for each in world.questions] == [f"srv.test:{world.port}"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
async def test_node_fetches_what_was_approved(world: World) -> None:
    script = f"fetch('http://srv.test:{world.port}/').then(r => r.text()).then(console.log)"
    result = await world.run(f'node -e "{script}"')
    assert result.text == "hello\n\n"
