"""A command in a jail that may reach some hosts: these, and by no other way anything else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from callgate.sandbox import profiles
from callgate.sandbox.allowed_hosts import parse
from callgate.sandbox.jails import Jail, Network
from callgate.sandbox.plans import Command, SandboxPlan, choose
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from tests.kernel.sandbox.test_escapes import USERS, needed
from tests.kernel.sandbox.worlds import PYTHON, World, as_user, run
from tests.needs import needs

pytestmark = needs("linux", PYTHON)
MakePlan = Callable[..., SandboxPlan]


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # noqa: N802
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello " + self.path.encode())

    def log_message(self, *_: object) -> None:
        pass


class Many(ThreadingHTTPServer):
    request_queue_size = 128


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with Many(("127.0.0.1", 0), Hello) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(params=USERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.remove()


BACKENDS = {"namespaces": {"seccomp", "namespaces"}, "supervisor": {"seccomp", "landlock", "supervisor"}}


@pytest.fixture(params=BACKENDS)
def plan(request: pytest.FixtureRequest) -> MakePlan:
    chosen = needed(BACKENDS[request.param])

    def make(world: World, *hosts: str) -> SandboxPlan:
        entries = tuple(map(parse, hosts))
        return choose(profiles.workspace(world.places, network=Network.HOSTS, hosts=entries), chosen)

    return make


def ran(world: World, plan: SandboxPlan, script: str, **env: str) -> tuple[Any, list[str], int]:
    """What a script in the jail printed as JSON; what was blocked; how much was reached."""

    def work() -> list[Any]:
        argv = (PYTHON, "-I", "-S", "-c", script)
        ended, out, err = asyncio.run(run(plan, argv, str(world.workspace), **env))
        assert ended.code == 0, err
        return [json.loads(out), ended.blocked, ended.reached]

    said, blocked, reached = as_user(world.user, work)
    return said, list(blocked), reached


FETCHES = """
import json, urllib.error, urllib.request
def fetch(url):
    try:
        return urllib.request.urlopen(url, timeout=60).read().decode()
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return str(error.reason)
print(json.dumps([fetch(url) for url in {urls}]))
"""


def test_a_command_reaches_the_named_host_and_no_other(world: World, port: int, plan: MakePlan) -> None:
    urls = [
        f"http://127.0.0.1:{port}/x",
        f"http://127.0.0.1:{port + 1}/",
        "http://evil.example.com/",
        "https://evil.example.com/",
        f"http://[::ffff:127.0.0.1]:{port}/y",
    ]
    assert ran(world, plan(world, f"127.0.0.1:{port}"), FETCHES.format(urls=urls)) == (
        ["hello /x", 403, 403, "Tunnel connection failed: 403 Forbidden", "hello /y"],
        [f"127.0.0.1:{port + 1}", "evil.example.com:80", "evil.example.com:443"],
        2,
    )


WAYS_ROUND = """
import errno, json, socket
def tried(family, kind, address, send=False, protocol=0):
    try:
        with socket.socket(family, kind, protocol) as each:
            each.settimeout(5)
            each.sendto(b"x", address) if send else each.connect(address)
        return "reached"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
def looked_up(name):
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        return "unknown"
inet, inet6 = socket.AF_INET, socket.AF_INET6
print(json.dumps([
    tried(inet, socket.SOCK_STREAM, ("127.0.0.1", {port})),
    tried(inet, socket.SOCK_STREAM, ("192.0.2.1", 443)),
    tried(inet6, socket.SOCK_STREAM, ("2001:db8::1", 443)),
    tried(inet, socket.SOCK_DGRAM, ("192.0.2.1", 53), True),
    tried(inet, socket.SOCK_RAW, ("192.0.2.1", 0), protocol=1),
    tried(socket.AF_UNIX, socket.SOCK_STREAM, "/run/x"),
    tried(socket.AF_NETLINK, socket.SOCK_RAW, (0, 0)),
    looked_up("pkgs.example.org"),
    tried(inet, socket.SOCK_STREAM, ("127.0.0.1", 3128)),
]))
"""


def test_without_the_proxy_no_unlisted_host_is_reached(world: World, port: int, plan: MakePlan) -> None:
    named = plan(world, f"127.0.0.1:{port}", "pkgs.example.org")
    isolated = "namespaces" in named.backends
    assert ran(world, named, WAYS_ROUND.format(port=port)) == (
        [
            "ECONNREFUSED" if isolated else "reached",  # its own loopback, or this machine's
            "EACCES",
            "EACCES",
            "ENETUNREACH" if isolated else "EPERM",
            "EPERM",
            "EPERM",
            "EPERM",
            "198.18.0.1",
            "reached",
        ],
        ["192.0.2.1:443", "[2001:db8::1]:443"],
        0 if isolated else 1,
    )


ON_THIS_MACHINE = """
import errno, json, os, socket
def tried(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode.get(error.errno)
    return "done"
def reach(address, family=socket.AF_INET, **more):
    with socket.socket(family, **more) as each:
        each.settimeout(5)
        each.connect((address, {port}))
print(json.dumps([
    [tried(lambda: reach(address)) for address in ("127.0.0.1", "127.9.9.9", "0.0.0.0", "localhost")],
    [tried(lambda: reach(address, socket.AF_INET6)) for address in ("::1", "::", "::ffff:127.0.0.1")],
    [tried(lambda: reach("127.0.0.1", proto=proto)) for proto in (6, 132, 262)],
    tried(lambda: socket.socket().bind(("127.0.0.1", 0))),
    tried(lambda: socket.socket().listen()),
    tried(lambda: socket.socket(type=socket.SOCK_DGRAM)),
    tried(lambda: socket.socketpair()),
]))
"""


def test_services_of_this_machine_that_nobody_named_are_out_of_reach(world: World, port: int) -> None:
    hosts = tuple(map(parse, ("pkgs.example.org", f"127.0.0.1:{port + 1}", f"localhost:{port}")))
    jail = profiles.workspace(world.places, network=Network.HOSTS, hosts=hosts)
    plan = choose(jail, needed(BACKENDS["supervisor"]))
    refused = "ECONNREFUSED"
    assert ran(world, plan, ON_THIS_MACHINE.format(port=port)) == (
        [[refused] * 4, [refused] * 3, [refused, "EPERM", "EPERM"], "EPERM", "EPERM", "EPERM", "done"],
        [],
        0,
    )


def test_a_loopback_that_is_not_its_own_is_reported(world: World) -> None:
    jail = profiles.workspace(world.places, network=Network.HOSTS)
    plan = choose(jail, needed(BACKENDS["supervisor"]))
    assert any(grade.startswith("own_loopback: it cannot listen") for grade in plan.grades)


HOLDS = """
import json, os, socket
with socket.socket() as taken:
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        taken.bind(("127.0.0.1", 3128))
        taken.listen()
        held = "ours"
    except OSError:
        held = "not ours"
proxies = {name: value for name, value in os.environ.items() if "proxy" in name.lower()}
numbers = [n for n in map(int, os.listdir("/proc/self/fd")) if n < 3]
others = len(os.listdir("/proc/self/fd")) - 1 - len(numbers)
print(json.dumps([held, proxies, others]))
"""


def test_a_command_is_told_of_the_proxy_and_holds_nothing_of_it(world: World, plan: MakePlan) -> None:
    said = {"HTTP_PROXY": "http://127.0.0.1:3128", "NO_PROXY": "localhost,::1"}
    said |= dict.fromkeys(("HTTPS_PROXY", "ALL_PROXY"), said["HTTP_PROXY"])
    said |= {name.lower(): value for name, value in said.items()}
    theirs = {"http_proxy": "http://elsewhere:1", "FTP_PROXY": "http://elsewhere:1"}
    named = plan(world, "127.0.0.1:9")
    assert ran(world, named, HOLDS, **theirs) == (["not ours", said, 0], [], 0)


MANY = """
import json, socket, threading
answers = []
def one():
    with socket.create_connection(("127.0.0.1", 3128), 30) as each:
        each.sendall(b"GET http://127.0.0.1:{port}/x HTTP/1.1\\r\\n\\r\\n")
        answers.append(each.makefile("rb").read().split()[1].decode())
threads = [threading.Thread(target=one) for _ in range(50)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps([len(answers), sorted(set(answers))]))
"""


def test_fifty_connections_of_a_command_are_served(world: World, port: int, plan: MakePlan) -> None:
    named = plan(world, f"127.0.0.1:{port}")
    assert ran(world, named, MANY.format(port=port)) == ([50, ["200"]], [], 50)


def test_two_commands_at_once_have_a_proxy_each(world: World, port: int, plan: MakePlan) -> None:
    urls = [f"http://127.0.0.1:{port}/", "http://a.example.com/"]
    argv = (PYTHON, "-I", "-S", "-c", FETCHES.format(urls=urls))
    both = [plan(world, f"127.0.0.1:{port}"), plan(world, "b.example.com")]

    def work() -> list[Any]:
        async def at_once() -> list[Any]:
            ran = await asyncio.gather(*(run(each, argv, str(world.workspace)) for each in both))
            return [[json.loads(out), list(ended.blocked)] for ended, out, _ in ran]

        return asyncio.run(at_once())

    assert as_user(world.user, work) == [
        [["hello /", 403], ["a.example.com:80"]],
        [["[Errno 111] Connection refused", 403], ["a.example.com:80"]],
    ]


TUNNEL = """
import socket, sys
with socket.create_connection(("127.0.0.1", 3128)) as each:
    each.sendall(b"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n")
    each.recv(100)
    print("open", flush=True)
    each.recv(100)
"""


@pytest.mark.parametrize("backends", BACKENDS)
@pytest.mark.parametrize("how", ["stop", "abandon"])
async def test_a_command_that_is_stopped_takes_its_connections_along(how: str, backends: str) -> None:
    gone, opened = asyncio.Event(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()
        gone.set()

    chosen = needed(BACKENDS[backends])
    async with asyncio.timeout(60), await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        hosts = (parse(f"127.0.0.1:{port}"),)
        jail = Jail(network=Network.HOSTS, hosts=hosts, pid_namespace=True)
        broker = BrokerProcess(PYTHON)
        try:
            command = Command(argv=(PYTHON, "-c", TUNNEL.format(port=port)), cwd="/", env={})
            launcher = BrokerLauncher(broker, choose(jail, chosen))
            kept = await launcher.start(command, lambda *_: opened.set())
            await opened.wait()
            kept.stop(0) if how == "stop" else kept.abandon()
            ended = await kept.wait()
            await gone.wait()
        finally:
            broker.close()
    assert (ended.stopped, ended.reached) == (True, 1)


def test_hosts_are_named_only_where_they_are_what_is_reached() -> None:
    with pytest.raises(ValueError):
        Jail(network=Network.ALL, hosts=(parse("pkgs.example.org"),))
