"""`[mcp.NAME]` in settings: what is taken, what is refused and where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.features.mcp.settings import McpSettings, McpTable, MissingVariable, OAuthTable, filled


def loaded(home: Path, text: str) -> dict[str, McpTable]:
    (home / "settings.toml").write_text(text)
    return load_user(Home(str(home)))[0].of(McpSettings).mcp


def test_a_command_and_an_address_are_read(home: Path) -> None:
    text = '[mcp.git]\ncommand = "uvx"\nargs = ["mcp-server-git"]\n[mcp.web-2]\nurl = "https://x.example/mcp?a=1"\n'
    assert loaded(home, text) == {
        "git": McpTable(command="uvx", args=["mcp-server-git"]),
        "web-2": McpTable(url="https://x.example/mcp?a=1"),
    }


@pytest.mark.spec("T25")
@pytest.mark.parametrize(
    ("body", "line"),
    [
        ('command = "x"\nurl = "https://x"', 2),
        ("args = []", 1),
        ('url = "file:///etc/passwd"', 2),
        ('url = "javascript:alert(1)"', 2),
        ('url = "https://"', 2),
        ('url = "https://a b/"', 2),
        ('url = "https://x\\u0000/"', 2),
        ('url = "https://user:word@x/"', 2),
        ('url = "https://x"\nargs = ["a"]', 3),
        ('command = ""', 2),
        ('command = "a\\u0000"', 2),
        ('command = "x"\nheaders = { A = "b" }', 3),
        ('command = "x"\nnetwork = ["a b"]', 3),
        ('command = "x"\nunknown = 1', 3),
        ('command = "x"\neffect = "harmless"', 3),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(home: Path, body: str, line: int | None) -> None:
    with pytest.raises(SettingsError) as refused:
        loaded(home, f"[mcp.s]\n{body}\n")
    assert refused.value.line == line


@pytest.mark.parametrize("name", ["A", "a__b", "a_", "1a", "a.b", "a b", "x" * 33, "-a", "é"])
def test_a_name_that_could_be_read_in_two_ways_is_refused(home: Path, name: str) -> None:
    with pytest.raises(SettingsError):
        loaded(home, f'[mcp."{name}"]\ncommand = "x"\n')


@pytest.mark.spec("T20")
@pytest.mark.parametrize(
    "other",
    [
        McpTable(command="b"),
        McpTable(command="a", args=["x"]),
        McpTable(command="a", cwd="x"),
        McpTable(command="a", env=["X"]),
        McpTable(command="a", set_env={"X": "1"}),
        McpTable(command="a", network="all"),
        McpTable(command="a", network=["x.example"]),
        McpTable(command="a", profile="open"),
        McpTable(command="a", writable=["~/x"]),
        McpTable(url="https://a"),
        McpTable(url="https://a", headers={"A": "b"}),
    ],
)
def test_what_is_started_and_with_what_is_part_of_the_identity(other: McpTable) -> None:
    assert other.identity not in (McpTable(command="a").identity, McpTable(url="https://b").identity)


def test_variables_are_filled_in_and_a_missing_one_is_named() -> None:
    assert filled({"a": "Bearer ${X}", "b": "${env:X}$Y"}, {"X": "1"}) == {"a": "Bearer 1", "b": "1$Y"}
    with pytest.raises(MissingVariable):
        filled({"a": "${X}"}, {})


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("https://me.example/client.json", True),
        ("http://me.example/client.json", False),
        ("https://me.example/", False),
        ("https://u:p@me.example/c", False),
        ("file:///c", False),
    ],
)
def test_where_we_are_described_is_a_page_by_https(home: Path, url: str, good: bool) -> None:
    text = f'[mcp.a]\nurl = "https://x.example"\noauth = {{ client_metadata_url = "{url}" }}\n'
    if good:
        oauth = loaded(home, text)["a"].oauth
        assert isinstance(oauth, OAuthTable) and oauth.client_metadata_url == url
        return
    with pytest.raises(SettingsError):
        loaded(home, text)
