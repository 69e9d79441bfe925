"""A command with the whole network: it reaches no local service but its own and the listed ones."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from callgate.sandbox import profiles
from callgate.sandbox.allowed_hosts import parse
from callgate.sandbox.jails import Guarantee, Network
from callgate.sandbox.plans import SandboxPlan, choose
from tests.kernel.sandbox.test_escapes import USERS, needed
from tests.kernel.sandbox.worlds import PYTHON, World, as_user, run
from tests.needs import needs

pytestmark = needs("linux", PYTHON)
BACKENDS = {"namespaces": {"seccomp", "namespaces"}, "supervisor": {"seccomp", "landlock", "supervisor"}}
MakePlan = Callable[..., SandboxPlan]

CLIENT = """
import errno, json, socket, sys, threading
def tried(address, family=socket.AF_INET, flags=0):
    try:
        with socket.socket(family) as each:
            each.settimeout(10)
            if flags:
                each.sendto(b"x", flags, address)
            else:
                each.connect(address)
            return each.recv(5).decode()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
"""


def own_address() -> str | None:
    """An address of this machine that is not on its loopback."""
    with socket.socket(type=socket.SOCK_DGRAM) as each:
        try:
            each.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found: str = each.getsockname()[0]
        return None if found.startswith("127.") else found


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A service on every address of this machine."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.send(b"hello")

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture(params=USERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.remove()


@pytest.fixture(params=BACKENDS)
def plan(request: pytest.FixtureRequest) -> MakePlan:
    chosen = needed(BACKENDS[request.param])

    def make(world: World, *services: str) -> SandboxPlan:
        jail = profiles.workspace(world.places, network=Network.ALL)
        return choose(msgspec.structs.replace(jail, services=tuple(map(parse, services))), chosen)

    return make


def ran(world: World, plan: SandboxPlan, script: str) -> tuple[Any, list[str]]:
    def work() -> list[Any]:
        argv = (PYTHON, "-I", "-S", "-c", CLIENT + script)
        ended, out, err = asyncio.run(run(plan, argv, str(world.workspace)))
        assert ended.code == 0, err
        return [json.loads(out), ended.blocked]

    said, blocked = as_user(world.user, work)
    return said, list(blocked)


def test_a_service_of_this_machine_is_out_of_reach_by_every_address(world: World, port: int, plan: MakePlan) -> None:
    script = f"""
six = socket.AF_INET6
print(json.dumps([
    tried(("127.0.0.1", {port})), tried(("127.9.9.9", {port})), tried(("0.0.0.0", {port})),
    tried(("::1", {port}), six), tried(("::", {port}), six), tried(("::ffff:127.0.0.1", {port}), six),
    tried(("127.0.0.1", {port}), flags=socket.MSG_FASTOPEN),
]))"""
    said, blocked = ran(world, plan(world), script)
    assert said == ["ECONNREFUSED"] * 6 + ["ENOTSUP"]
    assert blocked == [f"127.0.0.1:{port}", f"127.9.9.9:{port}", f"0.0.0.0:{port}", f"[::1]:{port}", f"[::]:{port}"]


def test_a_listed_service_and_other_addresses_are_reached(world: World, port: int, plan: MakePlan) -> None:
    outside = own_address() or "127.0.0.1"
    script = f'print(json.dumps([tried(("127.0.0.1", {port})), tried(("{outside}", {port}))]))'
    assert ran(world, plan(world, f"localhost:{port}"), script) == (["hello"] * 2, [])
    script = f'print(json.dumps([tried(("127.0.0.2", {port})), tried(("127.0.0.1", {port}))]))'
    said, blocked = ran(world, plan(world, f"127.0.0.1:{port}"), script)
    assert (said, blocked) == (["ECONNREFUSED", "hello"], [f"127.0.0.2:{port}"])


def test_a_command_reaches_its_own_services(world: World, plan: MakePlan) -> None:
    script = """
listener = socket.create_server(("127.0.0.1", 0))
def serve():
    peer, _ = listener.accept()
    with peer:
        peer.send(b"mine!")
threading.Thread(target=serve, daemon=True).start()
print(json.dumps(tried(listener.getsockname())))"""
    assert ran(world, plan(world), script) == ("mine!", [])


def test_an_address_that_changes_during_the_check_opens_nothing(world: World, port: int, plan: MakePlan) -> None:
    """One thread changes the port of the address between an own service and the one outside."""
    script = f"""
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
own = socket.create_server(("127.0.0.1", 0), backlog=128)
def serve():
    while True:
        peer, _ = own.accept()
        peer.send(b"mine!"); peer.close()
threading.Thread(target=serve, daemon=True).start()
ports = [struct.pack("!H", each) for each in (own.getsockname()[1], {port})]
address = ctypes.create_string_buffer(struct.pack("=H2s4s8x", 2, ports[0], bytes((127, 0, 0, 1))), 16)
def flip():
    while True:
        ctypes.memmove(ctypes.addressof(address) + 2, ports[1], 2)
        ctypes.memmove(ctypes.addressof(address) + 2, ports[0], 2)
threading.Thread(target=flip, daemon=True).start()
said = set()
for _ in range(300):
    with socket.socket() as each:
        each.settimeout(None)
        if libc.connect(each.fileno(), address, 16) == 0:
            said.add(each.recv(5).decode())
        else:
            said.add(errno.errorcode[ctypes.get_errno()])
print(json.dumps(sorted(said)))"""
    said, _ = ran(world, plan(world), script)
    assert "hello" not in said
    assert "mine!" in said


def test_a_backend_that_cannot_check_names_the_missing_guarantee(world: World) -> None:
    jail = profiles.workspace(world.places, network=Network.ALL)
    plan = choose(jail, needed({"seccomp", "bubblewrap"}))
    assert Guarantee.NO_LOCAL_SERVICES in plan.missing
