"""The command: what it prints, what it keeps, and what it says where something is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest

from safety import run
from safety.values import Call, Episode, Step
from safety.verdicts import Verdict
from safety.work import Found, Piece

_STEP = Step(call=Call("shell", {}), ran=True, has_effects=True, questions=0)


def _played(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Found]]:
    """One benign task and one attack that succeeds, or one verdict, for each piece."""
    for piece in pieces:
        if piece.half in run.LAYOUTS:
            yield piece, [Verdict("t", "verbs", "sends", "through")]
            continue
        benign = Episode(piece.suite, "t", None, (_STEP,), done=True)
        yield piece, [benign, Episode(piece.suite, "t", "a", (), done=True)]


@pytest.fixture
def without_work(monkeypatch):
    monkeypatch.setattr(run.suites, "missing", lambda: None)
    monkeypatch.setattr(run, "run_all", _played)


def test_without_its_environment_the_command_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(run.suites, "missing", lambda: "agentdojo is not installed")
    with pytest.raises(SystemExit, match="`make safety` sets everything up"):
        run.main([])


def test_a_part_is_printed_and_kept_and_a_later_part_is_added(without_work, tmp_path, capsys):
    out = tmp_path / "safety.json"
    run.main(["--half", "shell", "--suite", "own", "--only", "bare", "--out", str(out)])
    assert "| bare shell | 1 of 1 (100.0%) | 1 of 1 |  | 0.00 | 0 | 100% |" in capsys.readouterr().out
    run.main(["--half", "shell", "--only", "ask", "--out", str(out), "--update", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(out.read_text())
    rows = {row["name"]: list(row["suites"]) for row in shown["halves"]["shell"]}
    assert rows == {"bare": ["own"], "ask": ["own", "inspect-evals"]}


def test_who_cannot_take_part_is_a_row_that_says_why(without_work, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("safety.contestants.shells._RUNTIME", tmp_path)
    run.main(["--half", "shell", "--only", "sandbox-runtime", "--out", str(tmp_path / "x.json")])
    assert "not run: sandbox-runtime is not installed" in capsys.readouterr().out


def test_held_out_injections_are_left_out_unless_asked_for(without_work, tmp_path, capsys):
    run.main(["--only", "bare", "--only", "none", "--out", str(tmp_path / "x.json")])
    assert "held-out" not in capsys.readouterr().out
    run.main(["--only", "none", "--held-out", "--out", str(tmp_path / "y.json")])
    assert "held-out by suite" in capsys.readouterr().out


def test_the_page_has_a_place_for_every_table(without_work, tmp_path, monkeypatch, capsys):
    page = tmp_path / "safety.md"
    page.write_text(run.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(run, "PAGE", page)
    run.main(["--held-out", "--only", "none", "--only", "bare", "--out", str(tmp_path / "x.json"), "--write"])
    written = page.read_text(encoding="utf-8")
    assert "| no gate | 4 of 4 (100.0%) | 4 of 4 |" in written
    assert "| bare shell | 2 of 2 (100.0%) |" in written


def test_verdicts_are_printed_and_kept_with_earlier_ones(without_work, tmp_path, capsys):
    out = tmp_path / "safety.json"
    run.main(["--half", "coding", "--suite", "ordinary", "--only", "ask", "--out", str(out)])
    capsys.readouterr()
    run.main(["--half", "coding", "--suite", "dangerous", "--out", str(out), "--update"])
    printed = capsys.readouterr().out
    assert "| callgate `ask` (default), its own shell | 1 of 1 (100.0%) | 0 | 0 | 0 | 1 of 1 |" in printed
    rows = {row["name"]: list(row["suites"]) for row in json.loads(out.read_text())["verdicts"]["coding"]}
    assert rows["ask"] == ["ordinary", "dangerous"]
    assert rows["guarded"] == ["dangerous"]
