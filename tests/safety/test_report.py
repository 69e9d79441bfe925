"""The tables, and how they get into the page."""

from __future__ import annotations

import msgspec
import pytest

from safety import report, verdicts
from safety.report import Row
from safety.values import Call, Episode, Step
from safety.verdicts import Layout, Verdict, VerdictRow

_STEP = Step(call=Call("w", {}), ran=True, has_effects=True, questions=1)
_ONE = report.summarize(
    [
        Episode("one", "t1", None, (_STEP,), done=True, questions=("w: why",)),
        Episode("one", "t1", "a1", (), done=True),
        Episode("one", "t1", "a2", (), done=False, task_done=True),
    ]
)
_TWO = report.summarize([Episode("two", "t2", None, (_STEP,), done=False)])
_OURS = Row("ask", "ours", {"one": _ONE, "two": _TWO})
_THEIRS = Row("srt", "theirs", missing="not installed")


def test_a_row_has_the_seven_columns_and_a_missing_one_says_why():
    _, _, ours, theirs = report.table([_OURS, _THEIRS]).splitlines()
    assert ours == "| ours | 1 of 2 (50.0%) | 1 of 2 | 1 of 1 | 1.00 | 0 | 0% |"
    assert theirs == "| theirs | not run: not installed |  |  |  |  |  |"


def test_suites_are_columns_of_their_own():
    head, _, ours = report.by_suite([_OURS, _THEIRS]).splitlines()
    assert head == "| gate | one | two |"
    assert ours == "| ours | 1 of 2; 1 of 1; 1.00 | 0 of 0; 0 of 1; 1.00 |"


def test_a_summary_names_the_attacks_that_got_through_and_what_was_asked():
    assert (_ONE.reached, _ONE.not_done, _ONE.asked) == (("t1/a1",), (), {"t1": ("w: why",)})
    assert _TWO.not_done == ("t2",)


def test_a_run_of_a_part_replaces_that_part_and_keeps_the_rest():
    again = report.summarize([Episode("two", "t2", None, (), done=True)])
    rows = report.merged([_OURS, _THEIRS], [Row("ask", "ours", {"two": again})])
    assert rows == (Row("ask", "ours", {"one": _ONE, "two": again}), _THEIRS)
    assert report.in_order(rows, ["srt", "none", "ask"]) == (rows[1], rows[0])


def test_results_survive_the_file_they_are_kept_in():
    results = report.Results(halves={"dojo": (_OURS, _THEIRS)})
    assert msgspec.json.decode(msgspec.json.encode(results), type=report.Results) == results


def test_tables_are_written_between_their_markers_and_nothing_else_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x -->\nold\n<!-- end x -->\nb\n<!-- y -->\n<!-- end y -->\n")
    report.write_between(page, {"x": "new\n"})
    report.write_between(page, {"x": "new\n"})
    assert page.read_text() == "a\n<!-- x -->\n\nnew\n\n<!-- end x -->\nb\n<!-- y -->\n<!-- end y -->\n"


def test_a_page_without_a_place_for_a_table_is_an_error_and_stays_as_it_was(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- x -->\n")
    with pytest.raises(SystemExit, match="no place for the table 'x'"):
        report.write_between(page, {"x": "new\n"})
    assert page.read_text() == "<!-- x -->\n"


def test_verdicts_are_counted_by_outcome_and_one_outcome_by_group():
    found = (
        Verdict("1", "verbs", "pays", "through"),
        Verdict("2", "verbs", "sends", "asked"),
        Verdict("3", "links", "sends", "denied"),
        Verdict("4", "links", "sends", "through"),
    )
    rows = [VerdictRow("a", "gate a", {"apps": found}), VerdictRow("b", "gate b", missing="absent")]
    layout = Layout("adaptive", ("apps",), "group")
    assert verdicts.table(rows, layout).splitlines() == [
        "| gate | through | asked | refused | verbs | links |",
        "| --- | --- | --- | --- | --- | --- |",
        "| gate a | 2 of 4 (50.0%) | 1 | 1 | 1 of 2 | 1 of 2 |",
        "| gate b | not run: absent |  |  |  |  |",
    ]
