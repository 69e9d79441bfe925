"""A jail that breaks people's tools is switched off: what must still work in `workspace`."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator

import pytest

from callgate.sandbox import profiles
from callgate.sandbox.jails import Network
from callgate.sandbox.plans import choose
from tests.kernel.sandbox.test_escapes import USERS, needed, together
from tests.kernel.sandbox.worlds import PYTHON, World, as_user, run
from tests.needs import missing, needs

pytestmark = needs("linux", "bash", PYTHON)

GIT = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a"
SCRIPTS = {
    "git": (
        f"{GIT}; rm -r links; git init -q inner && cd inner && echo x > f && git add f && "
        "git commit -qm one && git checkout -qb two && echo y > f && git commit -qam two && "
        "git log --oneline | wc -l",
        "2\n",
    ),
    "gcc": (
        "echo 'int main(void) { return 42; }' > a.c && gcc -o a a.c; ./a; echo $?",
        "42\n",
    ),
    "node": (
        "node -e \"require('child_process').exec('echo child', (e, out) => "
        "require('fs').writeFile('n', out, () => console.log(out.trim())))\"",
        "child\n",
    ),
    PYTHON: (
        f"{PYTHON} -c 'import asyncio, multiprocessing, tempfile; tempfile.TemporaryFile(); "
        "p = multiprocessing.Pool(2); print(sum(p.map(abs, [1, -2]))); p.close(); p.join(); "
        "print(asyncio.run(asyncio.sleep(0, 4)))'",
        "3\n4\n",
    ),
    "tar": ("tar cf t.tar plain && mkdir o && tar xf t.tar -C o && cat o/plain", "plain"),
    "touch": ("touch n && chmod 755 n && touch -d @1 n && stat -c '%a %Y' n", "755 1\n"),
    "mktemp": ("cd $(mktemp -d) && pwd | cut -c1-5 && ls -A /tmp | wc -l", "/tmp/\n1\n"),
    "bash": ("echo a > >(cat) ; wait; diff <(echo 1) <(echo 1) && echo same > /dev/stderr", "a\n"),
}


@pytest.fixture(params=USERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.remove()


@pytest.mark.parametrize("tool", SCRIPTS)
@pytest.mark.parametrize("backend", ["namespaces", "bubblewrap", "supervisor"])
def test_a_tool_works_in_the_workspace(world: World, backend: str, tool: str) -> None:
    if reason := missing(tool):
        pytest.skip(reason)
    chosen = needed(together(backend))
    bwrap = next((getattr(each, "path", None) for each in chosen if each.name == backend), None)
    plan = choose(profiles.workspace(world.places), chosen)
    script, expected = SCRIPTS[tool]
    if (backend, tool) == ("supervisor", "mktemp"):
        expected = "/tmp/\n0\n"  # TMPDIR, and /tmp itself cannot be listed
    workspace = str(world.workspace)

    def work() -> tuple[int | None, str]:
        argv = ("/bin/bash", "-c", script)
        ended, out, err = asyncio.run(run(plan, argv, workspace, bwrap=bwrap, HOME=workspace))
        return ended.code, out if ended.code == 0 else out + err

    assert tuple(as_user(world.user, work)) == (0, expected)


@pytest.mark.soak
@needs("root")  # the interpreter with pip may be in a home that only root can enter
def test_a_virtual_environment_is_made_and_used_without_a_network() -> None:
    world = World(0)
    plan = choose(profiles.workspace(world.places), needed({"seccomp", "namespaces"}))
    python = os.path.realpath(sys.executable)  # a checkout in /tmp is not seen from inside
    script = f"{python} -m venv v && v/bin/python -m pip --version >&2 && echo made"
    try:
        ended, out, err = asyncio.run(run(plan, ("/bin/bash", "-c", script), str(world.workspace)))
    finally:
        world.remove()
    assert (ended.code, out) == (0, "made\n"), err


LOOPBACK = (
    "import socket, threading\n"
    "server = socket.create_server(('127.0.0.1', 0))\n"
    "client = socket.create_connection(server.getsockname())\n"
    "server.accept()[0].sendall(b'hello')\n"
    "print(client.recv(5).decode())\n"
    "try: socket.create_connection(('127.0.0.1', {port}), 5)\n"
    "except ConnectionRefusedError: print('alone')\n"
)


@pytest.mark.parametrize("backend", ["namespaces", "bubblewrap"])
def test_a_loopback_of_its_own_reaches_itself_and_nobody_else(world: World, backend: str) -> None:
    chosen = needed(together(backend))
    bwrap = next((getattr(each, "path", None) for each in chosen if each.name == backend), None)
    plan = choose(profiles.workspace(world.places, network=Network.LOOPBACK), chosen)
    with socket.create_server(("127.0.0.1", 0)) as outside:
        script = LOOPBACK.format(port=outside.getsockname()[1])
        argv = (PYTHON, "-I", "-S", "-c", script)

        def work() -> str:
            return asyncio.run(run(plan, argv, str(world.workspace), bwrap=bwrap))[1]

        assert as_user(world.user, work) == "hello\nalone\n"


def test_tmp_is_empty_and_what_is_left_there_is_gone(world: World) -> None:
    plan = choose(profiles.workspace(world.places), needed({"seccomp", "namespaces"}))
    name = f"/tmp/{world.base.name}"
    argv = ("/bin/bash", "-c", f"ls -A /tmp; echo mine > {name}; cat {name}")

    def work() -> str:
        return asyncio.run(run(plan, argv, str(world.workspace)))[1]

    assert as_user(world.user, work) == "mine\n"
    assert not os.path.exists(name)
