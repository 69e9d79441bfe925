"""MCP servers that are packages: fetched in a sandbox of their own, and run without being changed."""

from __future__ import annotations

import json
import stat
import threading

import pytest

from callgate.cli.errors import EXIT_CODES
from callgate.core.errors import ToolErrorClass
from tests.features.mcp.packages.registries import TOKEN, Registry, serving
from tests.features.mcp.packages.worlds import World
from tests.needs import needs

UNAVAILABLE = EXIT_CODES[ToolErrorClass.HOST_UNAVAILABLE]
NPX = ("npx", "-y", "greedy-server")
PIPX = ("pipx", "run", "greedy-server")
UVX = ("uvx", "greedy-server")


MANAGERS = [
    pytest.param(NPX, marks=needs("npm", "node"), id="npx"),
    pytest.param(PIPX, marks=pytest.mark.soak, id="pipx"),
    pytest.param(UVX, marks=[needs("uv"), pytest.mark.soak], id="uvx"),
]


@pytest.mark.parametrize("command", MANAGERS)
def test_a_server_that_is_a_package_changes_nothing_but_its_own_cache(
    world: World, registry: Registry, command: tuple[str, ...]
) -> None:
    """On a home without any cache."""
    added = world.add(*command)
    assert added.code == 0, added
    assert "fetching greedy-server" in added.err and "1.0.0" in added.err
    assert world.succeeds() == ["read workspace", "secret", "write cache"]
    world.ensure_untouched()
    assert stat.S_IMODE(world.installation.stat().st_mode) == 0o700
    assert "writable" not in (world.callgate_home / "settings.toml").read_text()


@needs("npm", "node")
def test_an_install_script_reaches_nothing_but_what_is_installed(world: World, registry: Registry) -> None:
    assert world.add(*NPX).code == 0
    package = world.installation / "node_modules/greedy-server"
    # The registry's settings and the token in them are for npm alone, which runs before the script.
    assert json.loads((package / "attempts.json").read_text()) == [
        "change program",
        "write cache",
        "write installation",
    ]
    assert f"Bearer {TOKEN}" in registry.tokens
    for path in world.installation.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
    world.ensure_untouched()


@pytest.mark.soak
@needs("npm", "node")
def test_versions_stay_until_an_update_and_a_changed_installation_is_fetched_again(
    world: World, registry: Registry
) -> None:
    assert world.add(*NPX).code == 0
    registry.versions.append("2.0.0")
    server = world.installation / "node_modules/greedy-server/server.py"
    before = server.read_text()
    server.write_text(before + "\nraise SystemExit('changed')\n")
    world.succeeds()
    assert (world.installation / "node_modules/greedy-server/server.py").read_text() == before
    assert world.record["versions"] == {"greedy-server": "1.0.0"}
    updated = world.run("mcp", "update", "greedy", "--yes")
    assert updated.code == 0, updated
    assert "greedy-server 1.0.0 -> 2.0.0" in updated.err
    assert "+ Tries, 2.0.0." in updated.out
    assert world.record["versions"] == {"greedy-server": "2.0.0"}
    world.succeeds()
    assert len([*(world.callgate_home / "mcp/greedy").glob("install-*")]) == 1


def test_fetching_has_a_limit_of_its_own_and_leaves_nothing(world: World, registry: Registry) -> None:
    registry.held = threading.Event()
    world.callgate_home.mkdir(mode=0o700)
    (world.callgate_home / "settings.toml").write_text(
        '[mcp.greedy]\ncommand = "pipx"\nargs = ["run", "greedy-server"]\nfetch_timeout_s = 0.5\n'
    )
    ran = world.run("mcp", "approve", "greedy", "--yes")
    assert (ran.code, "fetch_timeout_s" in ran.err) == (UNAVAILABLE, True), ran
    assert [*(world.callgate_home / "mcp/greedy").glob("install-*")] == []


def test_fetching_is_ended_when_it_takes_more_of_the_disk_than_it_may(world: World, registry: Registry) -> None:
    registry.held = threading.Event()  # by itself it would go on until its time is over
    world.callgate_home.mkdir(mode=0o700)
    (world.callgate_home / "settings.toml").write_text(
        '[mcp.greedy]\ncommand = "pipx"\nargs = ["run", "greedy-server"]\nfetch_max_bytes = 1000000\n'
    )
    ran = world.run("mcp", "approve", "greedy", "--yes")
    assert ran.code == UNAVAILABLE, ran
    assert "exceed 1,000,000 bytes of disk space (fetch_max_bytes)" in ran.err
    assert [*(world.callgate_home / "mcp/greedy").glob("install-*")] == []


@needs("npm", "node")
def test_a_package_that_is_not_there_is_told_of_in_the_words_of_its_manager(world: World, registry: Registry) -> None:
    ran = world.add("npx", "-y", "no-such-server")
    assert ran.code != 0
    assert "its packages were not fetched: 404 Not Found" in ran.err and "no-such-server" in ran.err


@needs("npm", "node")
def test_a_removed_server_leaves_no_packages(world: World, registry: Registry) -> None:
    assert world.add(*NPX).code == 0
    assert world.run("mcp", "remove", "greedy").code == 0
    assert [each.name for each in (world.callgate_home / "mcp/greedy").iterdir()] == ["home"]
    assert world.run("mcp", "remove", "greedy", "--data").code == 0
    assert not (world.callgate_home / "mcp/greedy").exists()


def test_a_directory_that_a_server_may_write_is_made(world: World) -> None:
    world.callgate_home.mkdir(mode=0o700)
    (world.callgate_home / "settings.toml").write_text(
        f'[mcp.greedy]\ncommand = "python3"\nargs = ["server.py"]\nwritable = ["{world.home}/.cache/greedy"]\n'
    )
    with serving(world.workspace) as registry:
        (world.workspace / "server.py").write_bytes(registry._source("1.0.0"))
    ran = world.run("mcp", "approve", "greedy", "--yes")
    assert ran.code == 0, ran
    assert (world.home / ".cache/greedy").is_dir()


@pytest.mark.parametrize("name", ["../../victim", "..", ".", "", "victim/..", "/victim"])
def test_a_name_that_is_a_path_removes_no_directory(world: World, name: str) -> None:
    """`mcp remove --data` deletes `home` below the directory of a server."""
    homes = [world.home / "victim/home", world.callgate_home / "home", world.callgate_home / "mcp/home"]
    for each in homes:
        each.mkdir(parents=True)
        (each / "file").write_text("mine")
    assert world.run("mcp", "remove", name, "--data").code != 0
    assert all((each / "file").read_text() == "mine" for each in homes)
