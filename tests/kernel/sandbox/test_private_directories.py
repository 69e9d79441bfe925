"""The private directories of an MCP server, wherever they and the workspace are in each other."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from callgate.core.sessions import Root
from callgate.sandbox import profiles
from callgate.sandbox.jails import Jail, Names
from callgate.sandbox.profiles import SandboxPaths
from callgate.workspace import protected as names
from callgate.workspace.protected_places import protected_places
from tests.kernel.sandbox.test_escapes import USERS
from tests.kernel.sandbox.test_revealed import BACKENDS, output
from tests.kernel.sandbox.worlds import PYTHON, World
from tests.needs import needs

pytestmark = needs("linux", "bash", PYTHON)

HOMES = ("home/.callgate", "home/.local/share/callgate", "outside/callgate")
"""Locations of callgate's home."""
WORKSPACES = {
    "the user's home": "home",
    "above all homes": ".",
    "above callgate's home": "{home}/..",
    "callgate's home": "{home}",
    "above the private home": "{home}/mcp/x",
    "the private home": "{home}/mcp/x/home",
    "in the private home": "{home}/mcp/x/home/project",
}
FILES = ("settings.toml", "mcp/x/install.json", "mcp/x/home/old", "mcp/x/cache/old", "mcp/other/home/old")


@pytest.fixture(params=USERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    (world.home / "notes").write_text("as it was\n")
    yield world
    world.remove()


def _fill(world: World, where: str) -> None:
    """A home of callgate with two servers. One of them has made links in its private home."""
    home = world.callgate_home = world.base / where
    for name in FILES:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("as it was\n")
    private = home / "mcp/x/home"
    for directory in (private / ".git", private / "project/.git"):
        (directory / "hooks").mkdir(parents=True)
        (directory / "config").write_text("[core]\n")
    (private / ".cache").symlink_to(home / "mcp/x/cache")
    (private / "other").symlink_to(home / "mcp/other/home")
    (private / ".vscode").mkdir()
    (private / ".vscode/x").symlink_to(world.home / "notes")
    if os.getuid() == 0:
        for path in (world.base, *world.base.rglob("*")):
            os.chown(path, world.user, world.user, follow_symlinks=False)


def _jail(world: World, *, writes: bool) -> Jail:
    home, workspace = world.callgate_home, str(world.workspace)
    paths = SandboxPaths(
        workspace=workspace,
        home=str(world.home),
        callgate_home=str(home),
        protected=protected_places(workspace, str(home / "mcp")),
        revealed=tuple(Root(str(home / "mcp/x" / name), writable=True) for name in ("home", "cache")),
        names=Names(
            names=names.NAMES,
            pairs=names.PAIRS,
            suffixes=names.SUFFIXES,
            exempt=names.EXEMPT,
            allowed=names.ALLOWED,
        ),
    )
    jail = profiles.workspace(paths)
    return jail if writes else profiles.without_writes(jail, paths)


SCRIPT = """
    try() {{ name=$1; shift; "$@" >/dev/null 2>&1 && echo "$name"; }}
    put() {{ echo new > "$1"; }}
    cd {workspace}
    try "read in the workspace" cat install.json
    try "read in the workspace" cat settings.toml
    cd /
    for own in home cache; do
        try "write $own" put {home}/mcp/x/$own/new
        try "read $own" cat {home}/mcp/x/$own/old
    done
    try "configure" put {home}/mcp/x/home/.npmrc
    try "link" cat {home}/mcp/x/home/.cache/old
    try "hook" put {home}/mcp/x/home/project/.git/hooks/pre-commit
    try "file" put {home}/mcp/x/home/project/file
    for hidden in settings.toml mcp/x/install.json mcp/other/home/old mcp/x/home/other/old; do
        try "read $hidden" cat {home}/$hidden
        try "change $hidden" put {home}/$hidden
    done
    try "create" put {home}/planted
    try "create in mcp" put {home}/mcp/x/planted
    try "move directories" mv {home}/mcp/x {home}/mcp/y
    try "move callgate" mv {home} {home}.moved
    try "move the directory around callgate" mv {home}/.. {base}/moved
    try "move the private home" mv {home}/mcp/x/home {home}/mcp/x/homes
    try "key" cat {user}/.ssh/id
    try "notes" cat {user}/notes
    try "change notes" put {user}/notes
    echo done
"""
OWN = {"write home", "write cache", "read home", "read cache", "configure", "link", "hook", "file", "done"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("writes", [True, False], ids=["writes", "reads"])
@pytest.mark.parametrize("where", WORKSPACES)
@pytest.mark.parametrize("home", HOMES)
def test_a_server_has_its_private_directories_and_nothing_else_of_our_home(
    world: World, backend: str, home: str, where: str, writes: bool
) -> None:
    _fill(world, home)
    workspace = os.path.normpath(world.base / WORKSPACES[where].format(home=home))
    world.workspace = world.base / os.path.relpath(workspace, world.base)
    script = SCRIPT.format(workspace=workspace, home=world.callgate_home, user=world.home, base=world.base)
    printed = output(world, backend, _jail(world, writes=writes), script)
    expected = set(OWN)
    if f"{world.home}/".startswith(f"{workspace}/"):
        expected |= {"notes", "change notes"} if writes else {"notes"}
    if where == "the private home":  # as a workspace it has protected names
        expected -= {"hook", "configure"} if writes else {"hook", "configure", "file", "write home"}
    if where == "in the private home":
        expected -= {"hook"} if writes else {"hook", "file"}
    assert set(printed.splitlines()) - {""} == expected
    for name in FILES:
        assert (world.callgate_home / name).read_text() == "as it was\n"
    assert {path.name for path in world.callgate_home.iterdir()} <= {"mcp", "settings.toml", "token"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("home", HOMES)
def test_another_directory_of_our_home_is_no_workspace(world: World, backend: str, home: str) -> None:
    _fill(world, home)
    world.workspace = world.callgate_home / "mcp/other/home"
    jail = _jail(world, writes=True)
    try:
        printed = output(world, backend, jail, "cat old; echo new > new; echo started")
    except (AssertionError, OSError):  # of another user's process only the text arrives
        printed = ""
    assert printed == ""
    assert not (world.workspace / "new").exists()


def test_links_that_a_server_made_protect_nothing(world: World) -> None:
    _fill(world, "home/.callgate")
    found = protected_places(str(world.home), str(world.callgate_home / "mcp"))
    assert found == (str(world.home / ".callgate"), str(world.home / ".ssh"))
