"""What a tool says while it works: whole lines, no halves of secrets."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.events import OUTPUT_DELTA, PROGRESS
from callgate.dispatch.tool_output import KEPT_OUTPUT, OutputRedactor

SECRET = "AKIAIOSFODNN7EXAMPLE"


def shown(*pieces: str) -> list[str]:
    output = OutputRedactor()
    said: list[dict[str, Any]] = []
    for piece in pieces:
        said += output.of(OUTPUT_DELTA, {"stream": "stdout", "text": piece})
    said += output.flush()
    return [each["text"] for each in said]


@pytest.mark.parametrize("cut", range(1, len(SECRET)))
def test_a_secret_that_comes_in_two_pieces_is_not_shown(cut: int) -> None:
    assert SECRET not in "".join(shown(f"key {SECRET[:cut]}", f"{SECRET[cut:]}\n"))


@pytest.mark.parametrize("pieces", [["password: ", "hunter2secret\n"], ["password", ": hunter2secret"]])
def test_a_name_and_its_secret_belong_together(pieces: list[str]) -> None:
    assert "hunter2secret" not in "".join(shown(*pieces))


def test_nothing_that_is_no_secret_is_lost_or_reordered() -> None:
    pieces = ["one ", "two\nthr", "ee", "\r\nfour" + " x" * 2_000, "\nfive"]
    assert "".join(shown(*pieces)) == "".join(pieces)
    assert shown("a\n", "b\n") == ["a\n", "b\n"]


def test_what_is_no_data_and_what_is_nested_is_shown_without_secrets() -> None:
    (said,) = OutputRedactor().of(PROGRESS, {"message": {"k": [SECRET]}, "fraction": 0.5, "odd": object()})
    assert (said["fraction"], SECRET in str(said)) == (0.5, False)
    assert isinstance(said["odd"], str)


@pytest.mark.parametrize(
    "said",
    [
        (OUTPUT_DELTA, {"stream": "stdout", "text": "x\n" * (KEPT_OUTPUT // 3)}),
        (PROGRESS, {"message": {"deep": ["x" * (KEPT_OUTPUT * 2 // 3)]}}),
    ],
)
def test_only_so_much_of_what_is_said_is_worth_keeping(said: tuple[str, dict[str, Any]]) -> None:
    output = OutputRedactor()
    assert output.worth_keeping
    for _ in range(2):
        list(output.of(*said))
    assert not output.worth_keeping
