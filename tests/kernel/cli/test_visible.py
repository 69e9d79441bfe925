"""What somebody else wrote cannot act on a terminal, and cannot hide on it."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.cli.ui.terminal import safe
from callgate.cli.ui.visible import clip, excerpt, visible, visible_text

CHARACTERS = [*range(0x20000), *range(0xE0000, 0xE1000), *range(0x20000, 0x110000, 97)]
"""Wherever something is assigned, all of them; elsewhere some."""


@pytest.mark.spec("T16")
def test_every_control_format_and_separator_character_becomes_an_escape() -> None:
    wrong = [
        hex(ord(char))
        for char in map(chr, CHARACTERS)
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") and not visible(char).isascii()
    ]
    assert wrong == []


@pytest.mark.spec("T16")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J\x9d", r"\x9b2J\x9d"),
        ("a\rb\bc\x7f", r"a\rb\x08c\x7f"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\u202ecba", r"\u202ecba"),
        ("\u2066\u200b\ufeff\u00ad", r"\u2066\u200b\ufeff\xad"),
        ("\u2028\u2029\x85", r"\u2028\u2029\x85"),
        ("\u00a0\u3000\u2003", r"\xa0\u3000\u2003"),
        ("\u3164\u115f\u2800\uffa0\u034f", r"\u3164\u115f\u2800\uffa0\u034f"),
        ("a\ufe0f\U000e0100", r"a\ufe0f\U000e0100"),
        ("\U000e0041\U000e007f", r"\U000e0041\U000e007f"),
        ("\ud800", r"\ud800"),
        ("naïve 中文 ñ ​".replace("\u200b", ""), "naïve 中文 ñ "),
        ("e\u0301", "e\u0301"),
        ("\u0301", r"\u0301"),
    ],
)
def test_what_is_not_plainly_seen_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.spec("T16")
def test_a_tower_of_marks_is_cut_down() -> None:
    assert visible("a" + "\u0301" * 100) == "a" + "\u0301" * 4 + r"\u0301" * 96


def test_many_lines_keep_their_ends_and_tabs() -> None:
    assert visible_text("a\tb\n\x1bc\r\n") == "a\tb\n\\x1bc\\r\n"


@given(st.text())
def test_one_line_stays_one_printable_line(text: str) -> None:
    assert visible(text).isprintable()


def width(text: str) -> int:
    return sum(
        0 if unicodedata.category(char) in ("Mn", "Me") else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


@given(st.text(max_size=400), st.integers(12, 60), st.integers(2, 9))
def test_no_row_is_wider_and_no_excerpt_higher_than_asked_for(text: str, columns: int, rows: int) -> None:
    found = excerpt(text, width=columns, rows=rows)
    shown = [*found.head, *found.tail]
    assert len(shown) <= rows
    assert max(width(row.text) for row in shown) <= columns


@given(st.text(max_size=400), st.integers(12, 60), st.integers(2, 9))
def test_what_is_shown_and_what_is_left_out_are_the_whole_text(text: str, columns: int, rows: int) -> None:
    found = excerpt(text, width=columns, rows=rows)
    shown = [*found.head, *found.tail]
    assert (shown[0].start, shown[-1].end) == (0, len(text))
    left_out = [
        text[before.end : after.start].removeprefix("\n").removesuffix("\n") for before, after in pairwise(shown)
    ]
    assert sum(map(len, left_out)) == found.characters
    assert all(row.text.startswith(visible(text[row.start : row.end])[:1]) for row in shown)


def test_a_text_that_fits_is_not_cut() -> None:
    found = excerpt("a\nb", width=20, rows=2)
    assert [row.text for row in found.head] == ["a", "b"]
    assert (found.tail, found.cut) == ([], None)


@pytest.mark.spec("T16")
def test_a_long_text_keeps_both_ends_and_says_what_is_missing() -> None:
    found = excerpt("\n".join(map(str, range(10_000))), width=20, rows=4)
    assert [row.text for row in found.head] == ["0", "1"]
    assert [row.text for row in found.tail] == ["9998", "9999"]
    assert (found.lines, found.characters) == (9_996, 48_875)


@pytest.mark.spec("T16")
def test_a_long_line_keeps_both_ends() -> None:
    found = excerpt("a" * 10 + "x" * 1_000_000 + "z" * 10, width=10, rows=2)
    assert [row.text for row in (*found.head, *found.tail)] == ["a" * 10, "z" * 10]
    assert found.characters == 1_000_000


def test_blank_lines_that_are_left_out_are_counted() -> None:
    assert excerpt("a" + "\n" * 50 + "b", width=20, rows=4).lines == 47


@given(st.text(), st.integers(8, 60))
def test_a_clipped_text_fits(text: str, columns: int) -> None:
    assert width(clip(text, columns)) <= columns
    assert clip(text, columns).isprintable()


def test_a_clipped_text_keeps_both_ends() -> None:
    assert clip("begin" + "x" * 1_000_000 + "end\n", 20) == "beginxxxx...xxxend\\n"


@given(st.text())
def test_a_text_is_as_safe_where_most_are_plain(text: str) -> None:
    assert safe(text) == visible_text(text)
