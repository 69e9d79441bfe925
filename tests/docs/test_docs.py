"""What the documents show is what happens: every snippet and every example is run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.config.home import Home
from callgate.config.load import load_user
from tests import postgres
from tests.needs import missing, needs

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def fences(language: str, about: str = "") -> list[object]:
    """Every block of a language about something; one marked `no-test` is shown only."""
    return [
        pytest.param(block, id=f"{name(page)}:{text[: found.start()].count(chr(10)) + 1}")
        for page in PAGES
        for text in [page.read_text()]
        for found in _FENCE.finditer(text)
        for lang, mark, block in [found.groups()]
        if lang == language and "no-test" not in mark and about in block
    ]


def environment() -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "100"}


@pytest.mark.parametrize("block", fences("python"))
def test_every_python_snippet_runs(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, env=environment()
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", fences("toml"))
def test_every_settings_snippet_is_valid(block: str, home: Path) -> None:
    (home / "settings.toml").write_text(block)
    load_user(Home(str(home)))


_DATABASE = "CALLGATE_STORE_URL"


@pytest.fixture
def database() -> Iterator[str]:
    """The address of a PostgreSQL, for the pages that use one."""
    with postgres.running() as cluster:
        yield cluster.url


def commands(page: Path) -> list[tuple[str, str]]:
    """Each command of a page, with what it prints; `...` stands for anything."""
    steps = []
    for language, mark, block in _FENCE.findall(page.read_text()):
        if language == "console" and "no-test" not in mark:
            assert block.startswith("$ "), "a console block starts with a command"
            steps += re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, printed) for command, _, printed in (step.partition("\n") for step in steps)]


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=name)
def test_every_command_prints_what_the_page_shows(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """From top to bottom, in one workspace and one home."""
    if "--lang node" in str(commands(page)) and (reason := missing("node")):
        pytest.skip(reason)
    workspace = tmp_path / "project"
    workspace.mkdir()
    (workspace / "README.md").write_text("# A small project\n\nIt has seven words in it.\n")
    database = request.getfixturevalue("database") if _DATABASE in str(commands(page)) else ""
    for command, printed in commands(page):
        ran = subprocess.run(
            ["bash", "--norc", "-c", command],
            cwd=workspace,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment(), _DATABASE: database},
            start_new_session=True,
            timeout=60,
        )
        shown = ran.stdout.replace(str(workspace), "~/project").replace(os.environ["HOME"], "~")
        pattern = ".*".join(map(re.escape, printed.rstrip("\n").split("...")))
        if not re.fullmatch(pattern, shown.rstrip("\n"), re.DOTALL):
            pytest.fail(f"$ {command}\n{shown}\nbut the page says\n{printed}")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace with an instance at the usual place, and the packages for Node installed."""
    base = Path(tempfile.mkdtemp(prefix="cg"))  # a short path: sockets have no long ones
    workspace = base / "project"
    workspace.mkdir()
    (workspace / "README.md").write_text("# A small project\n")
    installed = workspace / "node_modules" / "@callgate"
    installed.mkdir(parents=True)
    (installed / "client").symlink_to(PROJECT / "packages" / "client-node")
    monkeypatch.setenv("HOME", str(base))
    monkeypatch.delenv("CALLGATE_HOME")
    with subprocess.Popen(
        [sys.executable, "-m", "callgate", "serve"], cwd=workspace, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"callgate: listening on ")
        yield workspace
        process.send_signal(signal.SIGTERM)
    shutil.rmtree(base)


@needs("node")
@pytest.mark.parametrize("block", fences("js"))
def test_every_javascript_snippet_runs(block: str, served: Path) -> None:
    (served / "snippet.mjs").write_text(block)
    with subprocess.Popen(
        ["node", "snippet.mjs"],
        cwd=served,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        lines = []
        for line in running.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("callgate "):  # what a person is to type at another terminal
                command = [sys.executable, "-m", *line.split(), "--json"]
                subprocess.run(command, check=True, capture_output=True, env=environment(), timeout=60)
        errors = running.stderr.read()
    assert (running.returncode, errors) == (0, "")
    assert (lines[0], lines[-1]) == ("# A small project", "true")


@pytest.mark.parametrize("block", fences("sh", about="callgate.sock"))
def test_every_call_without_a_client_prints_its_result(block: str, served: Path) -> None:
    for program in ("socat", "nc"):
        if re.search(rf"\b{program}\b", block) and (reason := missing(program)):
            pytest.skip(reason)
    ran = subprocess.run(
        ["bash", "--norc", "-c", block], cwd=served, capture_output=True, text=True, env=environment(), timeout=60
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    shown = json.loads(ran.stdout)
    assert (shown["type"], shown["result"]["ok"], shown["result"]["content"]) == (
        "tool_result",
        True,
        "# A small project\n",
    )


@pytest.mark.parametrize("example", sorted((PROJECT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_every_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, env=environment(), timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_the_readme_fits_in_150_lines() -> None:
    assert len((PROJECT / "README.md").read_text().splitlines()) <= 150, "move what is long to a page"
