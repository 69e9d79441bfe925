"""What a failed MCP server is told that the sandbox refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.features.mcp.client.processes import Access
from callgate.sandbox import allowed_hosts
from callgate.sandbox.jails import Jail, Network


def access(base: Path, network: Network = Network.NONE, *hosts: str, **jail: bool) -> Access:
    home = base / "user"
    own = home / ".callgate/mcp/notes/home"
    own.mkdir(parents=True, exist_ok=True)
    return Access(
        name="notes",
        jail=Jail(
            writable=(str(base / "ws"), str(own)),
            opaque=(str(home),),
            hidden=(str(home / ".callgate"),),
            network=network,
            hosts=tuple(map(allowed_hosts.parse, hosts)),
            **jail,
        ),
        user_home=str(home),
        private_home=str(own),
        table="[mcp.notes]",
    )


@pytest.mark.parametrize(
    "words",
    [
        "EROFS: read-only file system, open '{}/notes.db'",
        "[Errno 30] Read-only file system: '{}/notes.db'",
        "Error: EACCES: permission denied, mkdir '{}/notes.db'",
        "open {}/notes.db: read-only file system",
    ],
)
def test_a_refused_write_names_the_path_and_the_setting(tmp_path: Path, words: str) -> None:
    place = tmp_path / "user/notes/data"
    told = access(tmp_path).explain(words.format(place))
    assert f"refused MCP server 'notes' to write '{place}/notes.db'" in told
    assert f'`writable = ["{place}"]` in `[mcp.notes]`' in told
    assert "callgate mcp approve notes" in told


@pytest.mark.parametrize("where", [".ssh", ".npm/_npx", ".local", ".cache/uv", ".callgate/mcp", ""])
def test_no_setting_is_proposed_for_secrets_and_code(tmp_path: Path, where: str) -> None:
    told = access(tmp_path).explain(f"EROFS: read-only file system, open '{tmp_path / 'user' / where}/x'")
    assert "refused" in told
    assert "writable = " not in told


@pytest.mark.parametrize(
    "where",
    [
        "bin",
        "go/bin",
        ".local/bin",
        ".local/share",
        ".local/share/applications",
        ".config/autostart",
        ".config/systemd/user",
        ".config/fish/conf.d",
        ".oh-my-zsh/custom",
        ".vscode/extensions/x",
        ".claude/commands",
        ".nvm/versions/node",
        "projects/site/.git/hooks",
        "Library/LaunchAgents",
    ],
)
def test_no_writable_directory_is_proposed_from_which_programs_run(tmp_path: Path, where: str) -> None:
    told = access(tmp_path).explain(f"EROFS: read-only file system, open '{tmp_path / 'user' / where}/x'")
    assert "to write" in told
    assert "writable = " not in told


@pytest.mark.parametrize("where", ["Library", ".local/share", ".config"])
def test_no_directory_with_secrets_is_proposed_to_be_shown(tmp_path: Path, where: str) -> None:
    (tmp_path / "user" / where).mkdir(parents=True)
    told = access(tmp_path).explain(f"ENOENT: no such file or directory, open '{tmp_path}/user/{where}'")
    assert "to read" in told
    assert "readable" not in told


@pytest.mark.parametrize("mark", ["\x1bc", "\u202e", "\x9b2J"])
def test_a_path_that_acts_on_a_terminal_is_named_without_a_setting(tmp_path: Path, mark: str) -> None:
    place = tmp_path / "user" / f"notes{mark}" / "data"
    place.mkdir(parents=True)
    told = access(tmp_path).explain(f"EROFS: read-only file system, open '{place}/x'")
    assert "refused" in told
    assert "writable = " not in told and "readable" not in told
    assert mark not in told


@pytest.mark.parametrize("host", ["169.254.169.254", "169.254.169.254:80", "http://169.254.169.254/latest"])
def test_no_setting_is_proposed_for_a_metadata_service(tmp_path: Path, host: str) -> None:
    assert f'"{host}' not in access(tmp_path).explain(f"fetch failed: connect ECONNREFUSED {host}")
    assert "169.254" not in access(tmp_path, Network.HOSTS, "other.example").explain("", ["169.254.169.254:80"])


@pytest.mark.parametrize("path", ["/etc/cron.d/x", "/usr/lib/x"])
def test_no_setting_is_proposed_for_the_system(tmp_path: Path, path: str) -> None:
    told = access(tmp_path).explain(f"EACCES: permission denied, open '{path}'")
    assert f"to write '{path}'" in told
    assert "writable = " not in told


def test_a_program_that_writes_beside_its_code_is_sent_to_its_own_directory(tmp_path: Path) -> None:
    code = "/opt/x/node_modules/notes/dist/notes.db"
    told = access(tmp_path).explain(f"EROFS: read-only file system, open '{code}'")
    assert "Its own code is read-only" in told
    assert str(tmp_path / "user/.callgate/mcp/notes/home") in told


def test_paths_that_are_writable_are_not_blamed_on_the_sandbox(tmp_path: Path) -> None:
    told = access(tmp_path).explain(f"EACCES: permission denied, open '{tmp_path}/ws/file'")
    assert told == ""


def test_a_file_out_of_sight_is_named(tmp_path: Path) -> None:
    found = access(tmp_path)
    (tmp_path / "user/papers").mkdir()
    told = found.explain(f"ENOENT: no such file or directory, open '{tmp_path}/user/papers'")
    assert f"to read '{tmp_path}/user/papers'" in told
    assert f'Add "{tmp_path}/user/papers" to `readable` in `[sandbox]`' in told


@pytest.mark.parametrize(
    ("words", "entry"),
    [
        ("getaddrinfo ENOTFOUND api.example.com", "api.example.com"),
        ("getaddrinfo EAI_AGAIN api.example.com", "api.example.com"),
        ("connect ECONNREFUSED 192.0.2.1:8443", "192.0.2.1:8443"),
        ("curl: (6) Could not resolve host: api.example.com", "api.example.com"),
        ("net::ERR_NAME_NOT_RESOLVED at https://api.example.com/x", "api.example.com"),
        ("net::ERR_CONNECTION_REFUSED at http://localhost:3000/", "private:localhost:3000"),
    ],
)
def test_a_refused_host_is_named_with_those_that_are_allowed(tmp_path: Path, words: str, entry: str) -> None:
    told = access(tmp_path).explain(words)
    assert f'`network = ["{entry}"]` in `[mcp.notes]`' in told
    told = access(tmp_path, Network.HOSTS, "other.example").explain(words)
    assert f'`network = ["other.example", "{entry}"]`' in told
    allowed_hosts.parse(entry)  # the settings take it
    assert access(tmp_path, Network.ALL).explain(words) == ""


def test_a_host_that_the_proxy_refused_is_named_without_the_servers_words(tmp_path: Path) -> None:
    told = access(tmp_path, Network.HOSTS, "other.example").explain("it failed", ["api.example.com:443"])
    assert "the network host 'api.example.com'" in told
    assert access(tmp_path, Network.HOSTS, "api.example.com").explain("", ["api.example.com:443"]) == ""


def test_a_python_error_is_no_network_error(tmp_path: Path) -> None:
    assert access(tmp_path).explain("ModuleNotFoundError: No module named 'mcp'") == ""


def test_a_browser_is_told_of_sockets_and_of_its_own_sandbox(tmp_path: Path) -> None:
    words = "FATAL:process_singleton_posix.cc: socket() failed: Operation not permitted (1)"
    assert "`unix_sockets = true` in `[mcp.notes]`" in access(tmp_path).explain(words)
    assert access(tmp_path, own_sockets=True).explain(words) == ""
    told = access(tmp_path).explain("FATAL:zygote_host_impl_linux.cc: No usable sandbox!")
    assert "--no-sandbox" in told
