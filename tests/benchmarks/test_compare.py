"""Two files of measured rows become a table of ratios that does not take noise for a change."""

from __future__ import annotations

import random

import pytest

from benchmarks import compare
from benchmarks.rows import Row, read_rows, write_rows


def _row(rounds, *, name="add/gate", calls=None, run="one"):
    return Row(name=name, unit="µs", rounds=rounds, function_calls=calls, run=run)


def _noisy(around, seed, *, count=40, by=0.3):
    chance = random.Random(seed)
    return [around * (1 + chance.uniform(-by, by)) for _ in range(count)]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, "same"), (1.4, "worse"), (0.6, "better")],
)
def test_rows_of_different_runs_are_judged_by_their_medians(factor, verdict):
    [found] = compare.compare([_row(_noisy(50, 1, by=0.05))], [_row(_noisy(50 * factor, 2, by=0.05), run="two")])
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(factor, rel=0.05)


def test_noise_larger_than_the_difference_is_unclear():
    [found] = compare.compare([_row(_noisy(50, 1, by=0.5))], [_row(_noisy(52, 2, by=0.5), run="two")])
    assert found.verdict == "unclear"


def test_interleaved_rounds_are_compared_within_each_round():
    machine = _noisy(50, 1, by=0.6)  # the same noise falls on both
    old, new = _row(machine), _row([each * 1.1 for each in machine])
    [found] = compare.compare([old], [new])
    assert (found.ratio, found.verdict) == (pytest.approx(1.1), "worse")
    [apart] = compare.compare([old], [_row(new.rounds, run="two")])
    assert apart.verdict == "unclear"


def test_a_change_below_the_tolerance_is_the_same():
    machine = _noisy(50, 1)
    [found] = compare.compare([_row(machine)], [_row([each * 1.02 for each in machine])])
    assert found.verdict == "same"


def test_function_calls_are_compared_exactly():
    machine = _noisy(50, 1)
    [found] = compare.compare([_row(machine, calls=197)], [_row(machine, calls=198)])
    assert found.verdict == "same"
    assert "197 → 198" in compare.table([found])


def test_a_row_that_only_one_side_has_is_named_and_not_judged():
    found = compare.compare([_row([1.0], name="gone")], [_row([1.0], name="new")])
    assert [(each.name, each.ratio, each.verdict) for each in found] == [
        ("gone", None, "only old"),
        ("new", None, "only new"),
    ]


def test_rows_of_two_units_are_not_compared():
    other = Row(name="add/gate", unit="ms", rounds=[1.0])
    with pytest.raises(ValueError):
        compare.compare([_row([1.0])], [other])


def test_the_command_prints_the_table_and_ends_with_1_if_something_is_worse(tmp_path, capsys):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    write_rows(str(old), [_row([10.0] * 9)])
    write_rows(str(new), [_row([20.0] * 9)])
    assert compare.main([str(old), str(new)]) == 1
    assert "| add/gate | 10.00 | 20.00 µs | 2.00 | 2.00 to 2.00 | – | worse |" in capsys.readouterr().out
    assert compare.main([str(old), str(old)]) == 0


def test_rows_come_back_from_a_file_as_they_were(tmp_path):
    path = str(tmp_path / "rows.jsonl")
    rows = [_row([1.5, 2.5, 9.0], calls=197.0), _row([3.0], name="memory/tool")]
    write_rows(path, rows)
    assert read_rows(path) == rows
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert '"median":2.5' in lines[0]
    assert '"spread":' in lines[0]


def test_a_file_of_something_else_is_refused_with_its_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"name": 1}\n')
    with pytest.raises(SystemExit, match="line 1"):
        read_rows(str(path))
