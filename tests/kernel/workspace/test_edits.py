"""Changes to text, and how they look."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.errors import ToolExecutionError, ToolValidationError
from callgate.workspace.excerpts import diff, replace_once


@pytest.mark.spec("S4-41")
def test_the_one_place_is_replaced() -> None:
    assert replace_once("a b c", "b", "x\\1") == "a x\\1 c"
    assert replace_once("a b c", "b", "") == "a  c"


@pytest.mark.spec("S4-41")
@pytest.mark.parametrize(
    ("text", "old", "reason"),
    [
        ("a b c", "d", "no_match"),
        ("", "d", "no_match"),
        ("a\r\nb", "a\nb", "no_match"),
        ("b b", "b", "many_matches"),
        ("aaa", "aa", "many_matches"),
    ],
)
def test_any_other_number_of_places_is_refused(text: str, old: str, reason: str) -> None:
    with pytest.raises(ToolExecutionError) as refused:
        replace_once(text, old, "x")
    assert refused.value.reason == reason


def test_nothing_cannot_be_replaced() -> None:
    with pytest.raises(ToolValidationError):
        replace_once("a", "", "x")


def test_a_change_is_shown_with_the_lines_around_it() -> None:
    old = "".join(f"line {n}\n" for n in range(1, 21))
    new = old.replace("line 10\n", "ten\n").replace("line 20\n", "twenty")
    assert diff(old, new, "a.txt").split("\n") == [
        "--- a.txt",
        "+++ a.txt",
        "@@ -7,7 +7,7 @@",
        " line 7",
        " line 8",
        " line 9",
        "-line 10",
        "+ten",
        " line 11",
        " line 12",
        " line 13",
        "@@ -17,4 +17,4 @@",
        " line 17",
        " line 18",
        " line 19",
        "-line 20",
        "+twenty",
        "\\ No newline at end of file",
    ]


def test_a_new_file_is_shown_as_such_and_no_change_as_nothing() -> None:
    assert diff("", "a\nb\n", "x").split("\n") == [
        "--- /dev/null",
        "+++ x",
        "@@ -0,0 +1,2 @@",
        "+a",
        "+b",
    ]
    assert diff("same\n", "same\n", "x") == ""
    assert diff("", "", "x") == ""


def test_a_long_change_says_how_much_is_not_shown() -> None:
    shown = diff("", "x\n" * 100, "a", max_lines=10).split("\n")
    assert shown[9:] == ["+x", "[93 more lines of this change are not shown]"]


def test_a_huge_change_is_shown_as_one_block() -> None:
    old = "".join(f"old {n % 7}\n" for n in range(5_000))
    new = "".join(f"new {n % 7}\n" for n in range(5_000))
    assert diff(old, new, "a", max_lines=4).split("\n")[2] == "@@ -1,5000 +1,5000 @@"


lines = st.lists(st.sampled_from(["a\n", "b\n", "c\n"]), max_size=12)


@given(old=lines, new=lines)
def test_a_diff_leads_from_the_old_text_to_the_new(old: list[str], new: list[str]) -> None:
    shown = diff("".join(old), "".join(new), "f").splitlines()[2:]
    assert applied(old, shown) == new
    if old and new:
        theirs = list(difflib.unified_diff(old, new, "f", "f"))
        assert bool(shown) == bool(theirs)


def applied(old: list[str], shown: list[str]) -> list[str]:
    """The old lines with the hunks of a diff carried out, each checked against its header."""
    result: list[str] = []
    at = 0
    for line in shown:
        if line.startswith("@@"):
            before, after = line.split()[1:3]
            start, _, count = before[1:].partition(",")
            begin = int(start) - (1 if count != "0" else 0)
            result += old[at:begin]
            at = begin
            to, _, made = after[1:].partition(",")
            assert int(to) - (1 if made != "0" else 0) == len(result)
        elif line.startswith("+"):
            result.append(line[1:] + "\n")
        else:
            assert old[at] == line[1:] + "\n"
            if line.startswith(" "):
                result.append(old[at])
            at += 1
    return result + old[at:]


def test_lines_that_are_equal_over_and_over_are_shown_as_one_block() -> None:
    old, new = "x\n" * 19_000, "x\ny\n" * 99
    lines = diff("first\n" + old, "first\n" + new, "f", max_lines=100_000).split("\n")
    assert [line for line in lines if line.startswith("@@")] == ["@@ -1,19001 +1,199 @@"]
