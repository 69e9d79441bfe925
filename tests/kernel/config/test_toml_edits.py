"""Edits of settings: the meaning changes as it should, and every other byte stays."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.settings_file import (
    NotATableError,
    SettingsFile,
    editing,
    table_text,
    with_first,
    with_table,
    with_value,
    without_table,
)
from callgate.features.chat.commands.keys import choose_model

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
TABLES = st.dictionaries(TEXTS, VALUES, max_size=4)
NAMES = ("a", "ab", "b-1", "quoted name", "é")

TOP = [
    '# mine\nmodel = "local/x"\n',
    "\n\n  # indented\n",
    'workspace = """\n[mcp.a]\ncommand = "no table"\n"""\n',
    "tools.disable = [ # why\n  'shell',\n\n  'x', # [mcp.a]\n]\n",
    "web.hosts = { a = [1, 2], 'é ü' = \"x\" }\n",
]
OTHERS = [
    '[policy.default]\nWRITE = "auto" # not asked\n\n',
    '[[policy.rules]]\ntool = "x"\n[[policy.rules]]\ntool = "y"\n[policy.rules.arguments]\na = "[mcp.a]"\n',
    "[hosts.a]\ncommand = ['a', '''\n[mcp.a]\n''']\n",
    '[ models . "a" ] # é\nprice = { input = 3 }\nnested.deep.key = 1e3\n\n# ends\n\n',
    "[mcp]\ninline = { command = 'i' }\ndotted.command = 'd' # [mcp.a]\n",
    "[mcpx.a]\nx = 1979-05-27T07:32:00Z\n",
]


def server(name: str, style: int) -> list[str]:
    """A server's table, in one of the ways in which people write it."""
    bare = name if name.replace("-", "").isascii() and " " not in name else f'"{name}"'
    body = f'command = "{name}"\n'
    return [
        [f"[mcp.{bare}]\n{body}"],
        [f"[ mcp . '{name}' ] # [mcp.other]\n{body}args = [\n  '[mcp.a]', # [mcp.b]\n]\n\n"],
        [f"[mcp.{bare}]\n{body}", f'[mcp.{bare}.set_env]\nX = "1"\n\n'],
        [f'[mcp.{bare}.set_env]\nX.y = "1"\n', f'  [mcp."{name}"]\n  {body}'],
        [f'[mcp.{bare}]\ncommand = """\n[mcp.ab]\n[[x]]\n"""\n'],
    ][style]


@st.composite
def files(draw: st.DrawFn) -> tuple[str, str, str]:
    """A file, a server that it has as a table, and the file without that."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    styles = [draw(st.integers(0, 4)) for _ in names]
    pieces = [(name, piece) for name, style in zip(names, styles) for piece in server(name, style)]
    pieces += [("", each) for each in draw(st.lists(st.sampled_from(OTHERS), unique=True))]
    pieces = draw(st.permutations(pieces))
    removed = draw(st.sampled_from(names))
    whole = rest = "".join(draw(st.lists(st.sampled_from(TOP), unique=True)))
    before = ""
    for name, piece in pieces:
        # A comment directly above a header is about what follows, and stays.
        comment = draw(st.sampled_from(["", "# about é\n", "# [mcp.a]\n# two\n"]))
        if name and name == before:
            comment = ""
        whole += comment + piece
        rest += comment + ("" if name == removed else piece)
        before = name
    if draw(st.booleans()):
        whole, rest = whole.replace("\n", "\r\n"), rest.replace("\n", "\r\n")
    return whole, removed, rest


@given(files())
def test_a_table_is_taken_out_and_every_other_byte_stays(case: tuple[str, str, str]) -> None:
    text, name, rest = case
    expected = tomllib.loads(text)
    del expected["mcp"][name]
    edited = without_table(text, "mcp", name)
    assert edited == rest
    assert {"mcp": {}} | tomllib.loads(edited) == expected


@given(files(), TABLES, st.booleans())
def test_a_table_is_added_behind_all_that_is_there(
    case: tuple[str, str, str], table: dict[str, Any], cut: bool
) -> None:
    text = case[0].rstrip("\r\n") if cut else case[0]
    edited = with_table(text, ("mcp", "new one"), table)
    assert edited.startswith(text)
    expected = tomllib.loads(text)
    expected["mcp"]["new one"] = table
    assert tomllib.loads(edited) == expected
    assert edited.count("\n") == edited.count("\r\n") or "\r" not in edited


@given(files(), TEXTS)
def test_a_key_is_added_before_all_that_is_there(case: tuple[str, str, str], value: str) -> None:
    edited = with_first(case[0], "new", value)
    assert edited.endswith(case[0])
    assert tomllib.loads(edited) == {"new": value, **tomllib.loads(case[0])}


@given(st.lists(TEXTS, min_size=1, max_size=3), TABLES)
def test_any_table_is_read_as_it_was_written(names: list[str], table: dict[str, Any]) -> None:
    expected: Any = table
    for name in reversed(names):
        expected = {name: expected}
    assert tomllib.loads(table_text(names, table)) == expected


@pytest.mark.parametrize(
    "text",
    [
        'mcp.a = { command = "a" }\n',
        'mcp = { a = { command = "a" }, b = {} }\n',
        'mcp.a.command = "a"\n[policy]\n',
        '[mcp]\na.command = "a"\nb.command = "b"\n',
        '[mcp]\na = { command = "a" }\n',
    ],
)
def test_what_is_not_a_table_of_its_own_is_refused(text: str) -> None:
    with pytest.raises(NotATableError):
        without_table(text, "mcp", "a")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(str(tmp_path / "home"))
    home.make()
    return home


def test_a_model_is_chosen_whatever_characters_its_name_has(home: Home) -> None:
    Path(home.settings).write_bytes(b"# mine\r\n[policy]\r\n")
    choose_model(home, 'local/😀 "x"\x7f.gguf')
    assert Path(home.settings).read_bytes().endswith(b"\r\n# mine\r\n[policy]\r\n")
    tree = tomllib.loads(Path(home.settings).read_bytes().decode())
    assert tree["model"] == 'local/😀 "x"\x7f.gguf'


def test_settings_that_would_be_wrong_are_not_written(home: Home) -> None:
    Path(home.settings).write_text('model = "a"\n')
    with pytest.raises(SettingsError):
        choose_model(home, "b")
    assert Path(home.settings).read_text() == 'model = "a"\n'
    Path(home.settings).write_bytes(b"# \xff\n")
    with pytest.raises(SettingsError):
        SettingsFile(home)


def test_a_model_is_chosen_while_nobody_else_edits(home: Home) -> None:
    with editing(home) as settings:
        directory = os.open(home.path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        settings.put_first("model", "a")
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(directory)


@pytest.mark.parametrize("words", ["--version", "call list_dir", "tools", "acp", "mcp list", "host --help"])
def test_commands_that_edit_no_settings_load_neither_tomlkit_nor_yaml(words: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "callgate", *words.split()],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    modules = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "callgate.cli" in modules, ran.stderr
    assert modules.isdisjoint({"tomlkit", "yaml"})


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ("", '\n[policy]\nkey = "new"\n'),
        ("# a\n[policy] # b\nother = 1\n", '# a\n[policy] # b\nkey = "new"\nother = 1\n'),
        ("[policy]\n  key = 'old' # c\n", '[policy]\nkey = "new"\n'),
        ("[policy.default]\nread = 'auto'\n", "[policy.default]\nread = 'auto'\n\n[policy]\nkey = \"new\"\n"),
        ("[x]\nkey = 'x'\n[policy]\n", "[x]\nkey = 'x'\n[policy]\nkey = \"new\"\n"),
    ],
)
def test_a_value_is_set_and_the_rest_stays(text: str, edited: str) -> None:
    assert with_value(text, "policy", "key", "new") == edited


@pytest.mark.parametrize("text", ["policy = {}\n", "policy.other = 1\n"])
def test_a_value_of_a_table_that_is_written_inline_is_not_set(text: str) -> None:
    with pytest.raises(NotATableError):
        with_value(text, "policy", "key", "new")
