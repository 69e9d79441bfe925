"""Keys become lines: edited, and known from what was pasted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.cli.ui.tty import Keys


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        (b"y\n", ["y"]),
        (b"y\r", ["y"]),
        (b"nx\x7f\n", ["n"]),
        (b"\x7f\x7fy\n", ["y"]),
        (b"nonsense\x15y\n", ["y"]),
        (b"\x04", [None]),
        (b"y\x04\n", ["y"]),
        (b"\x1b[A\x1b[1;5Cy\x1bOP\n", ["y"]),
        (b"\x1byn\n", ["n"]),
        (b"\x00\x01\ty\n", ["y"]),
        ("é\n".encode(), ["é"]),
        (b"\xff\n", ["�"]),
        (b"one\ntwo\nthr", ["one", "two"]),
    ],
)
def test_lines_are_what_was_typed(typed: bytes, lines: list[str | None]) -> None:
    assert Keys().feed(typed) == lines
    one_by_one = Keys()
    assert [line for key in typed for line in one_by_one.feed(bytes([key]))] == lines


@given(st.binary(max_size=20).filter(lambda data: b"\x1b" not in data))
def test_what_is_pasted_is_no_line_and_part_of_none(pasted: bytes) -> None:
    keys = Keys()
    assert keys.feed(b"\x1b[200~" + pasted) == []
    assert keys.pending
    assert keys.feed(b"\x1b[201~") == []
    assert not keys.pending
    assert keys.feed(b"\x15n\n")[-1] == "n"


def test_a_pattern_can_be_pasted_but_not_the_end_of_its_line() -> None:
    keys = Keys()
    keys.takes_paste = True
    assert keys.feed(b"\x1b[200~git status\n *\x1b[201~") == []
    assert keys.feed(b"\n") == ["git status *"]


@pytest.mark.parametrize("begun", [b"y", b"\x1b", b"\x1b[", b"\x1b[200~", b"\xe2", b"a\nb", b"a\nb\x7fc"])
def test_a_line_that_was_begun_is_pending(begun: bytes) -> None:
    keys = Keys()
    keys.feed(begun)
    assert keys.pending


@pytest.mark.parametrize("ended", [b"", b"y\n", b"y\x7f", b"abc\x15", b"\x1b[A"])
def test_a_line_that_ended_or_was_deleted_is_not(ended: bytes) -> None:
    keys = Keys()
    keys.feed(ended)
    assert not keys.pending
