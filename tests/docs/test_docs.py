"""What the documents show is what happens: every snippet and every example is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.config.load import load_user
from callgate.config.places import Home

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def fences(language: str) -> list[object]:
    """Every block of a language; one marked `no-test` is shown only."""
    return [
        pytest.param(block, id=f"{page.name}:{text[: found.start()].count(chr(10)) + 1}")
        for page in PAGES
        for text in [page.read_text()]
        for found in _FENCE.finditer(text)
        for lang, mark, block in [found.groups()]
        if lang == language and "no-test" not in mark
    ]


def environment() -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "100"}


@pytest.mark.parametrize("block", fences("python"))
def test_every_python_snippet_runs(block: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", fences("toml"))
def test_every_settings_snippet_is_valid(block: str, home: Path) -> None:
    (home / "settings.toml").write_text(block)
    load_user(Home(str(home)))


@pytest.mark.parametrize("block", fences("console"))
def test_every_command_prints_what_the_page_shows(block: str, tmp_path: Path) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    (workspace / "README.md").write_text("# A small project\n\nIt has seven words in it.\n")
    steps = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert steps[0] == "", "a console block starts with a command"
    for step in steps[1:]:
        command, _, expected = step.partition("\n")
        done = subprocess.run(["bash", "-c", command], cwd=workspace, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment())
        shown = (done.stdout + done.stderr).replace(str(workspace), "~/project").replace(os.environ["HOME"], "~")
        assert matches(expected, shown), f"$ {command}\n{shown}"


def matches(expected: str, shown: str) -> bool:
    """Line by line; `...` inside a line stands for anything, alone on a line for any lines."""
    lines = expected.rstrip("\n").split("\n")
    pattern = "\n".join(
        r"(?:.*\n?)*?" if line.strip() == "..." else ".*?".join(map(re.escape, line.split("...")))
        for line in lines
    )
    return re.fullmatch(pattern, shown.rstrip("\n")) is not None


@pytest.mark.parametrize("example", sorted((PROJECT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_every_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, env=environment(), timeout=100)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*PAGES, *PROJECT.glob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
