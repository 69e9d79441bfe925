"""What docs/build/socket.md shows of the client is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.client.instances import LIMIT_S, Served

PAGE = Path(__file__).parents[3] / "docs" / "build" / "socket.md"
BLOCKS = re.findall(r"^```python[^\n]*\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_snippet_runs_beside_an_instance(block: str, asking: Served) -> None:
    (asking.ws / "README.md").write_text("# A small project\n")
    ran = subprocess.run(
        [sys.executable, "-c", block],
        cwd=asking.ws,
        capture_output=True,
        text=True,
        env={**os.environ, "CALLGATE_HOME": str(asking.home)},
        timeout=LIMIT_S,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "tool.completed" in ran.stdout or ran.stdout.startswith("# A small project")


def test_the_page_has_snippets() -> None:
    assert len(BLOCKS) >= 2
