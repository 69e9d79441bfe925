"""The screen of a chat: text in any pieces, lines between it, rows that go away."""

from __future__ import annotations

import io
import os
import stat
import threading
from pathlib import Path

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.cli.ui.terminal import Paint
from callgate.cli.ui.visible import visible_text
from callgate.features.chat.commands import screen as chat_lines
from callgate.features.chat.commands.screen import Screen, read_history, read_message, remember
from callgate.redaction.data import in_words


def screen(width: int | None = 20, *, moves: bool = True) -> tuple[Screen, io.StringIO]:
    written = io.StringIO()
    return Screen(written, Paint(False), width=width, moves=moves), written


def seen(written: io.StringIO, width: int = 20) -> list[str]:
    """The rows that a terminal shows."""
    terminal = pyte.Screen(width, 50)
    pyte.Stream(terminal).feed(written.getvalue().replace("\n", "\r\n"))
    return "\n".join(row.rstrip() for row in terminal.display).rstrip().split("\n")


def test_lines_break_between_words_and_a_long_word_is_not_lost() -> None:
    shown, written = screen()
    shown.text("one two three four five " + "x" * 45 + " done")
    shown.settle()
    assert seen(written)[:2] == ["one two three four", "five"]
    assert "".join(seen(written)[2:]).replace("x", "").strip() == "done"
    assert "".join(seen(written)).count("x") == 45


@given(st.text(max_size=80), st.integers(1, 7))
@pytest.mark.spec("T16")
def test_however_it_is_cut_a_text_is_shown_without_a_character_that_acts(text: str, size: int) -> None:
    shown, written = screen(None)
    for start in range(0, len(text), size):
        shown.text(text[start : start + size])
    assert visible_text(written.getvalue()) == written.getvalue()


def test_a_mark_that_comes_apart_from_its_letter_is_shown_on_it() -> None:
    shown, written = screen(None)
    for piece in ("cafe", "\u0301", " ok"):
        shown.text(piece)
    assert written.getvalue() == "cafe\u0301 ok"


def test_live_rows_go_away_with_the_next_thing_that_is_shown() -> None:
    shown, written = screen()
    shown.text("said")
    shown.live(["one", "two"])
    shown.live(["three"])
    shown.line("done")
    assert seen(written) == ["said", "done"]


def test_where_the_cursor_stays_nothing_is_live() -> None:
    shown, written = screen(moves=False)
    shown.live(["one"])
    shown.line("done")
    shown.clear()
    assert written.getvalue() == "done\n"


def test_what_is_held_back_comes_when_the_terminal_is_free() -> None:
    shown, written = screen()
    shown.text("said")
    with shown.quiet():
        assert written.getvalue() == "said\n"
        shown.text("more")
        shown.live(["never"])
        shown.line("line")
        assert written.getvalue() == "said\n"
    assert seen(written) == ["said", "more", "line"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "a", "content": "x"}, "a content=x"),
        ({"limit": 2, "command": "ls"}, "ls limit=2"),
        ({}, ""),
        ({"api_key": "sk-ant-REDACTED"}, None),
        ([1], "[1]"),
    ],
)
def test_arguments_are_said_without_secrets(arguments: object, words: str | None) -> None:
    if words is None:
        assert "abcdefgh" not in in_words(arguments)
    else:
        assert in_words(arguments) == words


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        (["one", "two"], ["one", "two"]),
        (["one\\", "two\\", "three"], ["one\ntwo\nthree"]),
        (["one\\"], ["one"]),
        (["```py", "a", "```", "b"], ["```py\na\n```", "b"]),
        (["```a```", "b"], ["```a```", "b"]),
        (["```", "a"], ["```\na"]),
    ],
)
def test_lines_become_messages(lines: list[str], messages: list[str]) -> None:
    coming = iter(lines)
    read = []
    while (message := read_message(lambda _: next(coming, None), "", "")) is not None:
        read.append(message)
    assert read == messages


def test_history_survives_a_torn_line_and_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_lines, "_HISTORY_LINES", 10)
    path = tmp_path / "home" / "chat_history"
    for number in range(25):
        remember(str(path), f"line {number}\n\u00e9\ud800")
    with path.open("a") as file:
        file.write('"torn')
    assert read_history(str(path)) == [f"line {number}\n\u00e9?" for number in range(15, 25)]
    assert len(path.read_text().splitlines()) == 10
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_history_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    os.symlink(elsewhere, tmp_path / "chat_history")
    remember(str(tmp_path / "chat_history"), "secret")
    assert elsewhere.read_text() == ""


def test_a_question_waits_until_a_line_that_is_being_written_is_out() -> None:
    order: list[str] = []
    writing, go_on = threading.Event(), threading.Event()

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            writing.set()
            assert go_on.wait(60)
            order.append("line")
            return len(text)

    shown = Screen(Slow(), Paint(False), width=20, moves=True)

    def ask() -> None:
        with shown.quiet():
            order.append("question")

    line = threading.Thread(target=shown.line, args=("policy",))
    line.start()
    assert writing.wait(60)
    question = threading.Thread(target=ask)
    question.start()
    question.join(0.2)  # without the lock it is asked now
    go_on.set()
    line.join(60)
    question.join(60)
    assert order == ["line", "question"]
