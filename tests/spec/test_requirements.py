"""Rows and tests belong together: no covered row without a test, no test without a row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.spec.requirements import (
    CAPABILITIES,
    Proof,
    expected_ids,
    load,
    marks,
    proofs,
)


def test_the_table_has_each_item_once_and_in_order() -> None:
    assert [row.id for row in load()] == list(expected_ids())


def test_every_row_says_what_its_status_asks_for() -> None:
    wrong = [
        row.id
        for row in load()
        if row.status not in ("covered", "open", "diverged")
        or (row.status == "open") != (row.brought_by in CAPABILITIES)
        or (row.status == "diverged" and not row.why)
        or not set(row.label.split("/")) <= {"S", "O", "D"}
        or not row.behaviour.endswith(".")
    ]
    assert wrong == []


def test_no_two_rows_say_the_same() -> None:
    said = Counter(row.behaviour for row in load())
    assert [behaviour for behaviour, times in said.items() if times > 1] == []


def test_rows_and_tests_name_each_other() -> None:
    found = list(proofs())  # takes its time, so all is asked of it at once
    proven, known = {proof.id for proof in found}, set(expected_ids())
    status = {row.id: row.status for row in load()}
    unproven = [id for id, said in status.items() if said == "covered" and id not in proven]
    unknown = [proof for proof in found if proof.id not in known]
    proven_yet_open = [proof for proof in found if status.get(proof.id) == "open"]
    assert (unproven, unknown, proven_yet_open) == ([], [], [])


def test_marks_are_found_on_functions_classes_parameters_and_modules() -> None:
    source = """
import pytest
pytestmark = [pytest.mark.spec("A"), pytest.mark.soak]

@pytest.mark.spec("B", "C")
async def test_one(): ...

@pytest.mark.spec("D")
class TestMore:
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.spec("E"))])
    def test_two(self, x): ...
"""
    found = {proof.id: proof.test for proof in marks(source, Path("t.py"))}
    assert found == {"A": "t.py:3", "B": "t.py:5", "C": "t.py:5", "D": "t.py:8", "E": "t.py:10"}


def test_a_mark_in_a_comment_or_a_string_proves_nothing() -> None:
    assert list(marks('# pytest.mark.spec("A")\nx = \'pytest.mark.spec("B")\'', Path("t.py"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.spec(*IDS)\ndef test_x(): ...",
        "@pytest.mark.spec(IDS[0])\ndef test_x(): ...",
        "@pytest.mark.spec()\ndef test_x(): ...",
        "@pytest.mark.spec(1)\ndef test_x(): ...",
        "@pytest.mark.spec(id='A')\ndef test_x(): ...",
        "@pytest.mark.spec('A')\ndef helper(): ...",
    ],
)
def test_a_mark_that_cannot_be_counted_is_an_error(source: str) -> None:
    with pytest.raises(ValueError):
        list(marks(source, Path("t.py")))


def test_a_mark_knows_where_it_stands() -> None:
    source = "\n@pytest.mark.spec('A')\ndef test_x(): ..."
    assert list(marks(source, Path("tests/t.py"))) == [Proof("A", "tests/t.py:2")]
