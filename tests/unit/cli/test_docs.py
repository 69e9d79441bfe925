"""The examples of docs/cli.md, run from top to bottom: what the page says is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.cli.running import LIMIT_S, environment

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
BLOCK = re.compile(r"^```console\n(\$ .*?)^```$", re.DOTALL | re.MULTILINE)


def examples() -> list[tuple[str, str]]:
    """Each command of the page, with what it prints; `...` stands for anything."""
    found = []
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


def test_every_example_prints_what_the_page_says(ws: Path, home: Path) -> None:
    (ws / "a.txt").unlink()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    commands = examples()
    assert len(commands) > 15
    for command, printed in commands:
        ran = subprocess.run(
            ["bash", "--norc", "-c", command],
            cwd=ws,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment({"PATH": path}),
            start_new_session=True,
            timeout=LIMIT_S,
            text=True,
        )
        pattern = ".*".join(map(re.escape, printed.rstrip("\n").split("...")))
        if not re.fullmatch(pattern, ran.stdout.rstrip("\n"), re.DOTALL):
            pytest.fail(f"$ {command}\n{ran.stdout}\nbut the page says\n{printed}")
