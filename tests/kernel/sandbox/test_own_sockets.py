"""Unix sockets among the processes of one server, and no service of the machine behind one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from callgate.sandbox import profiles, sight
from callgate.sandbox.jails import Network
from callgate.sandbox.plans import CannotGuarantee, Landlock, Namespaces, Seccomp, choose
from tests.kernel.sandbox.test_escapes import USERS
from tests.kernel.sandbox.test_revealed import BACKENDS, output
from tests.kernel.sandbox.worlds import PYTHON, World, listening
from tests.needs import needs

pytestmark = needs("linux", "bash", PYTHON)

SCRIPT = """{python} -I -c '
import socket, threading
server = socket.socket(socket.AF_UNIX)
server.bind("own.sock")
server.listen()
threading.Thread(target=server.accept, daemon=True).start()
for name in ("own.sock", "{path}", "\\0{abstract}"):
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name)
        print("reached", name.split("/")[-1].strip("\\0"))
    except OSError as error:
        print("refused", type(error).__name__)
'"""


@pytest.fixture(params=USERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.remove()


@pytest.mark.parametrize("backend", BACKENDS)
def test_its_own_sockets_work_and_those_of_services_are_out_of_reach(world: World, backend: str) -> None:
    with listening(world) as services:
        places = profiles.without_service_sockets(world.places)
        jail = msgspec.structs.replace(profiles.workspace(places), own_sockets=True)
        script = SCRIPT.format(python=PYTHON, path=services["socket"], abstract=services["abstract"])
        printed = output(world, backend, jail, script).splitlines()
    assert printed[0] == "reached own.sock"
    assert [line.split()[0] for line in printed[1:3]] == ["refused", "refused"]


def test_the_directories_of_services_are_found_where_they_listen_now(world: World) -> None:
    with listening(world):
        found = sight.service_directories()
    assert str(world.outside) in found
    assert "/run" in found
    assert not {"/", "/tmp", "/proc"} & {*found}


def test_with_the_whole_network_only_landlock_keeps_abstract_names_out(world: World) -> None:
    jail = profiles.workspace(world.places, network=Network.ALL)
    jail = msgspec.structs.replace(jail, own_sockets=True)
    new = (Landlock(6), Seccomp(works=True), Namespaces())
    assert "landlock" in choose(jail, new).backends
    with pytest.raises(CannotGuarantee, match="abstract_sockets_blocked"):
        choose(jail, (Landlock(5), Seccomp(works=True), Namespaces()))
