"""Lists at terminals of every width: each word whole, each id whole, nothing cut in the middle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from callgate.cli.ui.tables import Cell, Column, list_lines, reflow, word_rows, wrap
from callgate.cli.ui.terminal import Paint
from callgate.cli.ui.visible import shorten, visible, width_of
from tests.kernel.cli.running import LIMIT_S, Ran, at_width, callgate, not_within_a_call, start

WIDTHS = (40, 50, 80, 200)
TEXT = "Wrap 漢字の長い文章を、ここで 🎉🎉🎉 at words, not in /a/path/that/is/longer/than/the/terminal/is/wide"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Used(NamedTuple):
    """A workspace with records of every kind, one of them a call that waits for approval."""

    workspace: Path
    env: dict[str, str]

    def run(self, *words: str) -> Ran:
        return callgate(*words, cwd=self.workspace, env=self.env)

    def rows(self, columns: int, *words: str) -> list[str]:
        """What a command writes to a terminal of some width."""
        ran = at_width(columns, *words, cwd=self.workspace, env=self.env)
        assert ran.out, (words, ran.err)
        return _COLOUR.sub("", ran.out).split("\n")[:-1]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    not_within_a_call()
    home, workspace = (tmp_path_factory.mktemp(name) for name in ("home", "workspace"))
    home.chmod(0o700)
    (home / "settings.toml").write_text(
        '[models.my-claude]\nkind = "anthropic"\nmodel = "claude-sonnet-4-5"\n'
        '[mcp.files]\ncommand = "npx"\nargs = ["-y", "@modelcontextprotocol/server-filesystem", "/srv/data"]\n'
        '[hosts.a-host-of-my-own]\ncommand = ["python3", "-c", "import a_module_that_is_not_there"]\n'
    )
    used = Used(workspace, {"CALLGATE_HOME": str(home)})
    name = "src/a-file-with-a-name-that-does-not-fit-into-forty-columns.txt"
    for words in (
        ("call", "write_file", f"path={name}", f"content={TEXT} \x1b[2J", "--yes"),
        ("call", "shell", "command=echo one two three four five six seven eight nine ten", "--yes"),
        ("call", "read_file", "path=../../etc/passwd"),
        ("call", "memory_add", f"content={TEXT}", "--yes"),
        ("skills", "new", "a-skill-with-a-long-name"),
        ("workers", "token", "create", "--pool", "linux", "--name", "build-machines"),
    ):
        used.run(*words)
    waiting = start("call", "write_file", "path=c.txt", "content=x", "--wait", cwd=workspace, env=used.env)
    try:
        assert waiting.stderr is not None
        while b"callgate confirmations" not in (line := waiting.stderr.readline()):
            assert line, "it has ended"
        yield used
    finally:
        waiting.terminate()
        waiting.communicate(timeout=LIMIT_S)


LISTS = (
    "tools --all", "tools read_file shell", "sessions list --all", "audit tail", "events", "undo",
    "confirmations", "skills list", "memory list", "hosts list",
    "mcp list", "keys list", "keys status", "workers token list", "store status",
    "policy explain shell command=ls", "status", "doctor", "doctor -v", "help", "help --all", "help mcp",
    "mcp add --help", "policy suggest",
)  # fmt: skip
_CUT = {"tools", "audit", "events", "sessions"}
"""Lists whose long texts end in `...`; `--json` has them whole."""


@pytest.mark.parametrize("words", LISTS)
def test_every_list_is_readable_at_every_width(words: str, used: Used) -> None:
    piped = used.run(*words.split()).out
    known = {*re.split(r"\s+", piped), *TEXT.split()}
    for columns in WIDTHS:
        rows = used.rows(columns, *words.split())
        for row in rows:
            longest = max(map(width_of, row.split()), default=0)
            assert width_of(row) < columns or longest > columns - 22 or "callgate " in row, row
            assert "\x1b" not in row
        if words.split()[0] in _CUT or words == "confirmations":
            continue
        shown = {word for row in rows for word in row.split()}
        lasting = {word for word in known if word.isascii() and not re.fullmatch(r"[\d:.,]*", word)}
        assert lasting - {*TEXT.split()} <= shown


def test_help_fits_the_terminal_whatever_width_the_environment_exports(used: Used) -> None:
    plain = used.rows(40, "mcp", "add", "--help")
    other = Used(used.workspace, {**used.env, "COLUMNS": "200"})
    assert other.rows(40, "mcp", "add", "--help") == plain


@pytest.mark.parametrize("columns", WIDTHS)
def test_an_id_that_is_listed_can_be_given_to_the_next_command(columns: int, used: Used) -> None:
    found = used.run("confirmations", "--json").json["confirmations"]
    sessions = {row.split()[0] for row in used.rows(columns, "sessions", "list") if row[:5] == "sess_"}
    assert {each["session_id"] for each in found} <= sessions
    assert {used.run("sessions", "show", each).code for each in sessions} == {0}
    changed = [row.split()[0] for row in used.rows(columns, "undo") if row[:3] == "tu_"]
    assert {used.run("undo", each, "--dry-run").code for each in changed} == {0}
    assert used.rows(columns, "confirmations")[0] == found[0]["id"]


@pytest.mark.parametrize("width", [16, 24, 31, 40, 80])
def test_text_is_wrapped_between_words_and_wide_characters(width: int) -> None:
    rows = wrap(TEXT, width)
    assert "".join(rows).replace(" ", "") == TEXT.replace(" ", "")
    assert all(width_of(row) <= width or " " not in row for row in rows)
    assert "terminal/is/wide" in rows[-1]
    narrow = [word for word in TEXT.split() if word.isascii()]
    assert {*narrow} <= {word for row in rows for word in row.split()}


def test_a_mark_stays_on_its_letter_and_an_escape_is_not_split() -> None:
    rows = wrap("e\u0301e\u0301e\u0301 \x1b[2J漢\u0301字", 4)
    assert rows == ["e\u0301e\u0301e\u0301", "\\x1b[2J", "漢\u0301字"]


def test_a_long_text_ends_with_a_mark_at_the_end_of_a_word() -> None:
    assert wrap("one two three four five six", 10, 2) == ["one two", "three ..."]
    assert shorten("one two three four", 14) == "one two ..."
    assert shorten("x" * 40, 10) == "x" * 7 + "..."
    assert width_of(shorten("漢" * 40, 10)) <= 10


@pytest.mark.parametrize("width", [8, 13, 30])
def test_the_fields_of_a_question_show_every_character(width: int) -> None:
    text = f"Calls with effect write need approval. {TEXT} \u202e"
    rows = word_rows(text, width)
    assert "".join(rows) == visible(text)
    assert all(width_of(row) <= width for row in rows)
    if width == 30:
        assert rows[0] == "Calls with effect write need "


def test_help_is_filled_again_and_keeps_its_layout() -> None:
    text = "One two three\nfour five six.\n\n  first   with words\n  second\n"
    assert reflow(text, 80) == text
    assert reflow(text, 15) == "One two three\nfour five six.\n\n  first   with\n          words\n  second\n"


HEADINGS = (Column("name"), Column("effect", least=8), Column("about"))
ROWS = [
    (Cell("read_file"), "read", "Read a text file, or look at an image."),
    (Cell("write_file"), "write", ""),
]


def lines(room: int | None) -> list[str]:
    return list(list_lines(HEADINGS, ROWS, room, Paint(False)))


def test_a_list_takes_the_widest_layout_that_fits() -> None:
    whole = [
        "read_file   read      Read a text file, or look at an image.",
        "write_file  write",
    ]
    assert lines(None) == lines(60) == whole
    assert lines(55) == [
        "read_file   read      Read a text file, or look at an",
        "                      image.",
        "write_file  write",
    ]
    assert lines(40) == [
        "read_file   read",
        "    Read a text file, or look at an",
        "    image.",
        "write_file  write",
    ]
    assert lines(19) == [
        "read_file",
        "  effect  read",
        "  about   Read a text",
        "          file, or look at",
        "          an image.",
        "write_file",
        "  effect  write",
    ]


def test_colour_takes_no_columns() -> None:
    painted = [_COLOUR.sub("", line) for line in list_lines(HEADINGS, ROWS, 40, Paint(True))]
    assert painted == lines(40)
