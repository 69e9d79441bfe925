"""Matching lines ends in a bounded time, whatever the pattern."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.errors import ToolCancelled, ToolExecutionError, ToolValidationError
from callgate.workspace import search
from callgate.workspace.search import LineMatcher, is_quick

ENDLESS = [
    r"(a+)+$",
    r"(a|aa)+$",
    r"(?:a?){40}a{40}$",
    r"(.*a){25}$",
    r"(a*)*\1b",
    r"a*a*a*a*a*a*a*b",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(?=(a+)+$)b",
]


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_pattern_that_takes_forever_is_ended(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_SECONDS", 0.3)
    text = ("a" * 1_500 + "!\n").encode()
    with LineMatcher(pattern) as matcher:
        with pytest.raises(ToolExecutionError) as refused:
            matcher.lines(text, 10)
        assert refused.value.reason == "pattern_too_slow"
        assert matcher.lines(b"zzz", 10) == []  # and the next text has its chance


def test_matching_stops_when_the_call_does() -> None:
    with LineMatcher(r"(a+)+$", should_stop=lambda: True) as matcher:
        with pytest.raises(ToolCancelled):
            matcher.lines(b"a" * 1_000 + b"!", 10)


@pytest.mark.parametrize("pattern", [r"def \w+", "plain", r"a.*b", r"[a-z]x", r"^x$", "a|b", r"\bfoo\b"])
def test_a_simple_pattern_needs_no_process(pattern: str) -> None:
    assert is_quick(pattern)


@pytest.mark.parametrize("pattern", [*ENDLESS, "(a)", "a{2}", r"x\1", "a*b*", "a+?"])
def test_a_pattern_with_any_doubt_gets_one(pattern: str) -> None:
    assert not is_quick(pattern)


@pytest.mark.parametrize("pattern", ["(", "*", "[a", "(?P<n", "a{2,1}", "x" * 1_001, "(" * 999, "(?z)"])
def test_what_is_no_pattern_is_invalid(pattern: str) -> None:
    with pytest.raises(ToolValidationError) as refused:
        LineMatcher(pattern)
    assert refused.value.reason == "invalid_pattern"


@pytest.mark.parametrize("pattern", ["needle", "(needle)"])
def test_lines_are_told_by_number_up_to_a_bound(pattern: str) -> None:
    text = b"x\nneedle\r\n\xff needle\n\nNEEDLE\nneedle"
    with LineMatcher(pattern) as matcher:
        assert matcher.lines(text, 10) == [1, 2, 5]
        assert matcher.lines(text, 2) == [1, 2]
        assert matcher.lines(b"", 2) == []
    with LineMatcher(pattern, ignore_case=True) as matcher:
        assert matcher.lines(text, 10) == [1, 2, 4, 5]


def test_a_large_text_with_many_matches_comes_back_whole() -> None:
    with LineMatcher("(x)") as matcher:
        assert matcher.lines(b"x\n" * 200_000, 1_000_000) == list(range(200_000))


@given(text=st.text(alphabet="ab\r\n\u2028é", max_size=30))
def test_both_ways_of_matching_agree(text: str) -> None:
    expected = [n for n, line in enumerate(text.split("\n")) if re.search("a.*b", line)]
    with LineMatcher("a.*b") as here:
        assert here.lines(text.encode(), 100) == expected
