"""What one program sees of a hidden directory: its own part of it, as readable or as writable."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from callgate.core.sessions import Root
from callgate.sandbox import profiles
from callgate.sandbox.backends import restrict
from callgate.sandbox.jails import Jail
from callgate.sandbox.plans import choose
from callgate.sandbox.profiles import SandboxPaths
from tests.kernel.sandbox.test_escapes import USERS, needed
from tests.kernel.sandbox.worlds import PYTHON, World, as_user, run
from tests.needs import needs

pytestmark = needs("linux", "bash", PYTHON)

BACKENDS = {
    "namespaces": {"namespaces", "seccomp"},
    "bubblewrap": {"bubblewrap", "seccomp"},
}


@pytest.fixture(params=USERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    for name in ("mcp/x/install/program", "mcp/x/cache/old", "mcp/other/install/program", "token"):
        path = world.callgate_home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n")
    (world.home / ".npmrc").write_text("registry\n")
    (world.home / ".netrc").write_text("password\n")
    if os.getuid() == 0:
        for path in (world.home, *world.home.rglob("*"), *world.callgate_home.rglob("*")):
            os.chown(path, world.user, world.user, follow_symlinks=False)
    yield world
    world.remove()


SCRIPT = """
    cd /
    cat {home}/mcp/x/install/program {user}/.npmrc
    cat {home}/token {home}/mcp/other/install/program {user}/.netrc
    echo changed > {home}/mcp/x/install/program && echo CHANGED
    echo more > {home}/mcp/x/install/more && echo ADDED
    mv {home}/mcp/x {home}/mcp/y && echo MOVED
    echo new > {home}/mcp/x/cache/new && echo CACHED
    echo new > {home}/planted && echo PLANTED
    echo done
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("where", ["beside", "home"])
@pytest.mark.parametrize("profile", ["workspace", "open"])
def test_a_program_sees_its_own_part_of_our_home_and_no_other(
    world: World, backend: str, where: str, profile: str
) -> None:
    """Also where the workspace is the home directory that ours is in."""
    if where == "home":
        world.workspace = world.home
    jail = getattr(profiles, profile)(_places(world))
    script = SCRIPT.format(home=world.callgate_home, user=world.home)
    printed = output(world, backend, jail, script).split("\n")
    expected = ["content of mcp/x/install/program", "registry", "CACHED", "done"]
    if profile == "open":
        expected.insert(2, "password")
    assert [line for line in printed if line] == expected
    assert (world.callgate_home / "mcp/x/install/program").read_text().startswith("content")
    assert (world.callgate_home / "mcp/x/cache/new").read_text() == "new\n"


def test_landlock_grants_what_is_revealed_and_nothing_beside_it(world: World) -> None:
    rules = dict(restrict.rules(profiles.workspace(_places(world))))
    own = {path: rights for path, rights in rules.items() if str(world.callgate_home) in path}
    assert own == {
        str(world.callgate_home / "mcp/x/install"): restrict.READ,
        str(world.callgate_home / "mcp/x/cache"): restrict.READ | restrict.WRITE,
    }


def _places(world: World) -> SandboxPaths:
    home = world.callgate_home
    return SandboxPaths(
        workspace=str(world.workspace),
        home=str(world.home),
        callgate_home=str(home),
        revealed=(
            Root(str(home / "mcp/x/install")),
            Root(str(home / "mcp/x/cache"), writable=True),
            Root(str(world.home / ".npmrc")),
        ),
    )


def output(world: World, backend: str, jail: Jail, script: str) -> str:
    chosen = needed(BACKENDS[backend])
    bwrap = next((getattr(each, "path", None) for each in chosen if hasattr(each, "path")), None)
    plan = choose(jail, chosen)

    def work() -> str:
        argv = ("/bin/bash", "-c", script)
        return asyncio.run(run(plan, argv, str(world.workspace), bwrap=bwrap))[1]

    printed: str = as_user(world.user, work)
    return printed
