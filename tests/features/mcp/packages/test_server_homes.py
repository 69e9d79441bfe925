"""The private home of an MCP server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callgate.features.mcp.client import directories
from callgate.features.mcp.client.directories import Installation


class Homes:
    def __init__(self, base: Path) -> None:
        self.user = base / "user"
        self.user.mkdir()
        self.installation = Installation(str(base / "callgate"), "memory")
        self.home, self.cache = Path(self.installation.home), Path(self.installation.cache)

    def prepare(self, *visible: str) -> dict[str, str]:
        paths = [str(self.user / each) for each in visible]
        return directories.prepare(str(self.home), str(self.cache), str(self.user), paths)


@pytest.fixture
def homes(tmp_path: Path) -> Homes:
    return Homes(tmp_path)


def test_variables_lead_to_private_directories(homes: Homes) -> None:
    variables = homes.prepare()
    assert variables == {
        "HOME": str(homes.home),
        "XDG_CONFIG_HOME": str(homes.home / ".config"),
        "XDG_DATA_HOME": str(homes.home / ".local/share"),
        "XDG_STATE_HOME": str(homes.home / ".local/state"),
        "XDG_CACHE_HOME": str(homes.cache),
    }
    for path in variables.values():
        assert Path(path).stat().st_mode & 0o777 == 0o700
    assert (homes.home / ".cache").resolve() == homes.cache


def test_what_the_sandbox_shows_of_the_users_home_is_found_below_the_new_one(homes: Homes) -> None:
    (homes.user / ".gitconfig").write_text("[user]\n")
    (homes.user / ".local/lib").mkdir(parents=True)
    (homes.user / ".cache/uv").mkdir(parents=True)
    (homes.user / ".cache/ms-playwright/chromium-1").mkdir(parents=True)
    for _ in range(2):
        homes.prepare(".gitconfig", ".local/lib", ".cache/uv", ".cache/ms-playwright", "../elsewhere")
    assert (homes.home / ".gitconfig").read_text() == "[user]\n"
    assert (homes.home / ".local/lib").resolve() == homes.user / ".local/lib"
    assert not (homes.cache / "uv").exists(), "the cache of a package manager is the server's own"
    assert not (homes.cache / "ms-playwright").is_symlink(), "a browser's server writes there, too"
    browser = homes.home / ".cache/ms-playwright/chromium-1"
    assert browser.resolve() == homes.user / ".cache/ms-playwright/chromium-1"


def test_links_that_a_server_left_lead_callgate_nowhere(homes: Homes, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (homes.user / ".local/lib").mkdir(parents=True)
    (homes.user / ".cache/ms-playwright/chromium-1").mkdir(parents=True)
    (homes.home / ".local").symlink_to(elsewhere)
    (homes.home / ".config").symlink_to(elsewhere)
    (homes.cache / "ms-playwright").symlink_to(elsewhere)
    homes.prepare(".local/lib", ".cache/ms-playwright")
    assert os.listdir(elsewhere) == []


@pytest.mark.parametrize(
    "command",
    [
        ("npx", "-y", "@modelcontextprotocol/server-memory"),
        ("npx", "-y", "@modelcontextprotocol/server-memory@2026.1.1"),
        ("node", "/x/node_modules/@modelcontextprotocol/server-memory/dist/index.js"),
        ("/usr/local/bin/mcp-server-memory",),
    ],
)
def test_a_known_program_stores_its_file_there(command: tuple[str, ...]) -> None:
    assert directories.own_file_variables(command, "/h") == {"MEMORY_FILE_PATH": "/h/memory.jsonl"}
    assert directories.own_file_variables(("npx", "server-memory-2"), "/h") == {}


def test_data_outlives_the_packages_until_it_is_removed_by_name(homes: Homes) -> None:
    (homes.home / "graph").write_text("data")
    homes.installation.remove()
    assert (homes.home / "graph").read_text() == "data"
    assert not homes.cache.exists()
    assert homes.installation.remove_home()
    assert not Path(homes.installation.path).exists()
    assert not homes.installation.remove_home()
