"""The measurements of the store run, and give a figure for everything they name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_section_gives_figures() -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/store.py"), "--quick", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    [line] = ended.stdout.splitlines()
    values = json.loads(line)
    sections = {name: values[name] for name in ("appends", "replay", "large", "calls", "hints")}
    assert all(sections.values())
    figures = [figure for section in sections.values() for figure in section.values()]
    assert all(isinstance(figure, int | float) and figure >= 0 for figure in figures)
