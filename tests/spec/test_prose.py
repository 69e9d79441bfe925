"""The prose counter of `make lint`: it finds planted sentences, and budgets only fall."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.prose import PATTERNS, SLACK, areas, main, read_budgets, write_budgets

PLANTED = {
    "whoever, whatever, whichever": "It answers whoever waits.",
    "anew": "It starts the server anew.",
    "of its own": "It has a thread of its own.",
    "relative clause as subject": "What a command may touch is listed here.",
    "relative clause as object": "It shows what the tool returns.",
    "passive everyday verb": "The caller is told about it.",
    "says which": "The table says which one applies.",
    "nobody, somebody": "Here nobody answers the question.",
    "stands": "The reason stands in the log.",
    "beside": "The preview is beside it.",
    "by itself": "The server restarts by itself.",
    "those that": "It deletes those that expired.",
    "goes on, comes of": "The turn goes on afterwards.",
    "meanwhile, hence": "The store is meanwhile closed.",
    "fronted phrase": "With a token, the client connects.",
    "have X done": "Editors have the file opened.",
    "as any other": "It is a call as any other.",
}
ODD = "It starts the server anew."
PLAIN = "Restart the server and wait for its first answer."


def project(root: Path, files: dict[str, str], budgets: dict[str, int]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "scripts").mkdir(exist_ok=True)
    write_budgets(root, budgets)
    return root


def flagged(root: Path) -> set[tuple[str, str, int]]:
    return {(area, row.path, row.line) for area, rows in areas(root).items() for row in rows if row.problems()}


def test_every_pattern_has_a_planted_sentence() -> None:
    assert PLANTED.keys() == PATTERNS.keys()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_sentence_is_found_by_its_pattern_alone(tmp_path: Path, name: str) -> None:
    project(tmp_path, {"docs/a.md": f"# Title\n\n{PLAIN} {PLANTED[name]}\n"}, {})
    assert [row.problems() for row in areas(tmp_path)["docs"]] == [[], [name]]


def test_sentences_are_found_in_pages_docstrings_comments_and_messages(tmp_path: Path) -> None:
    module = f'"""{PLAIN}\n\n{ODD}\n"""\n\n# It starts the\n# server anew.\nx = 1  # {ODD}\nraise ValueError("{ODD}")\n'
    page = f"{PLAIN}\n\n- {PLAIN}\n- It starts the\n  server [anew](x.md).\n\n| a | {ODD} |\n"
    files = {
        "README.md": page,
        "docs/use/a.md": page,
        "packages/x/README.md": page,
        "src/callgate/cli/main.py": module,
        "src/callgate/gate.py": module,
        "src/callgate/features/__init__.py": module,
        "src/callgate/features/web/routes/a.py": module,
        "src/other/inner/a.py": module,
        "scripts/a.py": module,
    }
    project(tmp_path, files, {})
    in_pages = {("README", "README.md"), ("docs", "docs/use/a.md")}
    in_pages |= {("other pages", "packages/x/README.md")}
    in_code = {("callgate.cli", "src/callgate/cli/main.py"), ("callgate", "src/callgate/gate.py")}
    in_code |= {("callgate.features", "src/callgate/features/__init__.py")}
    in_code |= {("callgate.features.web", "src/callgate/features/web/routes/a.py")}
    in_code |= {("other", "src/other/inner/a.py"), ("scripts", "scripts/a.py")}
    in_messages = {path for _, path in in_code if path.startswith("src/")}
    assert flagged(tmp_path) == (
        {(*place, line) for place in in_pages for line in (4, 7)}
        | {(*place, line) for place in in_code for line in (1, 6, 8)}
        | {("messages", path, 9) for path in in_messages}
    )


def test_code_headings_drawings_and_queries_are_not_prose(tmp_path: Path) -> None:
    page = f"# {ODD}\n\n```\n{ODD}\n```\n\n<!-- {ODD} -->\n"
    module = f'"""Title of the module.\n\n    a -> {ODD}\n"""\nx = "SELECT what the row says anew"\n'
    project(tmp_path, {"README.md": page, "src/callgate/cli/a.py": module}, {})
    assert flagged(tmp_path) == set()


@pytest.mark.parametrize(("budget", "code"), [(0, 1), (1, 1), (2, 0), (2 + SLACK, 0), (3 + SLACK, 1)])
def test_a_budget_that_is_exceeded_or_too_generous_fails(
    tmp_path: Path, budget: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, {"docs/a.md": f"{ODD}\n\n{ODD}\n"}, {"docs": budget})
    assert main([], tmp_path) == code
    assert capsys.readouterr().err.startswith("docs: ") == bool(code)


@pytest.mark.parametrize(("odd", "code"), [(1, 0), (2, 1)])
def test_an_area_without_budget_may_have_eight_percent(tmp_path: Path, odd: int, code: int) -> None:
    text = "\n\n".join([PLAIN] * (20 - odd) + [ODD] * odd)
    project(tmp_path, {"docs/a.md": text}, {})
    assert main([], tmp_path) == code


def test_update_lowers_budgets_removes_gone_areas_and_raises_nothing(tmp_path: Path) -> None:
    files = {"docs/a.md": ODD, "README.md": f"{ODD}\n\n{ODD}\n", "SECURITY.md": PLAIN}
    project(tmp_path, files, {"docs": 40, "README": 1, "callgate.gone": 7})
    assert main(["--update"], tmp_path) == 1  # the README still exceeds its budget
    assert read_budgets(tmp_path) == {"docs": 1, "README": 1}


def test_rebalancing_moves_budgets_between_packages(tmp_path: Path) -> None:
    project(tmp_path, {"src/callgate/new/a.py": f'"""{ODD}"""\n'}, {"callgate.old": 1})
    assert main([], tmp_path) == 1
    assert main(["--rebalance"], tmp_path) == 0
    assert read_budgets(tmp_path) == {"callgate.new": 1, "messages": 0}


def test_rebalancing_refuses_a_higher_sum(tmp_path: Path) -> None:
    source = f'"""{ODD}\n\n{ODD}\n"""\n'
    project(tmp_path, {"src/callgate/new/a.py": source}, {"callgate.old": 1})
    assert main(["--rebalance"], tmp_path) == 1
    assert read_budgets(tmp_path) == {"callgate.old": 1}


def test_make_lint_runs_the_counter() -> None:
    makefile = (Path(__file__).resolve().parents[2] / "Makefile").read_text()
    recipe = makefile.partition("\nlint:")[2].partition("\n\n")[0]
    assert "python -m scripts.prose\n" in f"{recipe}\n"
