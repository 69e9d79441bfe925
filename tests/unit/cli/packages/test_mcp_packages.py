"""MCP servers that are packages: fetched in a sandbox of their own, and run without being changed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.cli.errors import EXIT_CODES
from callgate.core.errors import ToolErrorClass
from tests.needs import needs
from tests.unit.cli.packages.registries import TOKEN, Registry, serving
from tests.unit.cli.running import CALLGATE, Ran

LIMIT_S = 300.0
UNAVAILABLE = EXIT_CODES[ToolErrorClass.HOST_UNAVAILABLE]
NPX = ("npx", "-y", "greedy-server")
PIPX = ("pipx", "run", "greedy-server")
UVX = ("uvx", "greedy-server")


def _path() -> str:
    """Programs themselves: what stands for them in another home (pyenv) does not work in this one."""
    found = [shutil.which(name) for name in ("npm", "node", "uv")]
    places = [os.path.dirname(os.path.realpath(path)) for path in found if path is not None]
    return ":".join([f"{sys.base_prefix}/bin", "/usr/bin", "/bin", *places])


class World:
    """A home with settings of package managers, secrets and caches. Not in /tmp, which sandboxes
    replace."""

    def __init__(self, base: Path) -> None:
        self.home, self.workspace = base / "home", base / "workspace"
        self.callgate_home = self.home / ".callgate"
        for path in (self.workspace, self.home / ".ssh", self.home / ".config/pip"):
            path.mkdir(parents=True)
        (self.workspace / "file").write_text("mine")
        for name in (".ssh/id", "diary", ".bashrc"):
            (self.home / name).write_text("as it was\n")

    def set_up(self, registry: Registry) -> None:
        host = f"//127.0.0.1:{registry.port}/"
        (self.home / ".npmrc").write_text(f"registry={registry.url}/\n{host}:_authToken=${{NPM_TOKEN}}\n")
        (self.home / ".config/pip/pip.conf").write_text(f"[global]\nindex-url = {registry.url}/simple/\n")
        (self.home / ".config/uv").mkdir()
        (self.home / ".config/uv/uv.toml").write_text(f'index-url = "{registry.url}/simple/"\n')

    def run(self, *words: str, **env: str) -> Ran:
        secret = {"NPM_TOKEN": TOKEN, "SECRET_OF_THE_SERVER": "x"}
        own = {"HOME": str(self.home), "CALLGATE_HOME": str(self.callgate_home)}
        ran = subprocess.run(
            [CALLGATE, *words],
            cwd=self.workspace,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": _path(), **secret, **own, **env},
            start_new_session=True,
            timeout=LIMIT_S,
        )
        return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())

    def add(self, *command: str, name: str = "greedy") -> Ran:
        options = ("--effect", "read", "--env", "SECRET_OF_THE_SERVER", "--yes")
        return self.run("mcp", "add", name, *options, "--", *command)

    def succeeds(self) -> list[str]:
        """What the running server could do."""
        ran = self.run("call", "mcp.greedy/try_all", "--json")
        assert ran.code == 0, ran
        found: list[str] = json.loads(ran.json["content"][0]["text"])
        return found

    @property
    def record(self) -> dict[str, object]:
        text = (self.callgate_home / "mcp/greedy/install.json").read_text()
        return json.loads(text)  # type: ignore[no-any-return]

    @property
    def installation(self) -> Path:
        return self.callgate_home / "mcp/greedy" / str(self.record["directory"])

    def ensure_untouched(self) -> None:
        names = {path.name for path in self.home.iterdir()}
        assert names <= {".ssh", "diary", ".bashrc", ".npmrc", ".config", ".callgate", ".local"}
        assert (self.home / ".bashrc").read_text() == "as it was\n"
        assert [path.name for path in self.workspace.iterdir()] == ["file"]


@pytest.fixture
def world() -> Iterator[World]:
    base = Path(tempfile.mkdtemp(prefix="callgate-", dir="/var/tmp"))
    yield World(base)
    shutil.rmtree(base)


@pytest.fixture
def registry(world: World) -> Iterator[Registry]:
    with serving(world.workspace) as registry:
        world.set_up(registry)
        yield registry


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
    # The step itself needs the registry's settings, and the token in them.
    assert json.loads((package / "attempts.json").read_text()) == [
        "change program",
        "read ~/.npmrc",
        "token",
        "write cache",
        "write installation",
    ]
    assert f"Bearer {TOKEN}" in registry.tokens
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
    assert "take more than 1,000,000 bytes on the disk (fetch_max_bytes)" in ran.err
    assert [*(world.callgate_home / "mcp/greedy").glob("install-*")] == []


@needs("npm", "node")
def test_a_package_that_is_not_there_is_told_of_in_the_words_of_its_manager(world: World, registry: Registry) -> None:
    ran = world.add("npx", "-y", "no-such-server")
    assert ran.code != 0
    assert "could not be fetched" in ran.err and "no-such-server" in ran.err


@needs("npm", "node")
def test_a_removed_server_leaves_no_packages(world: World, registry: Registry) -> None:
    assert world.add(*NPX).code == 0
    assert world.run("mcp", "remove", "greedy").code == 0
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
