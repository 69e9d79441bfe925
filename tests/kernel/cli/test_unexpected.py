"""What nobody foresaw is said in one line, and as one JSON object where that was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CALLGATE = str(Path(sys.executable).with_name("callgate"))


@pytest.mark.parametrize("command", [["tools"], ["call", "list_dir"], ["policy", "explain", "list_dir"]], ids=" ".join)
def test_a_directory_that_is_gone_is_named_also_as_json(tmp_path: Path, command: list[str]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'rmdir "$PWD" && exec {CALLGATE} {" ".join(command)} --json'
    ran = subprocess.run(["sh", "-c", script], cwd=gone, capture_output=True, text=True)
    assert ran.returncode == 1
    assert json.loads(ran.stdout)["error"]["message"] == "the current directory no longer exists"
    assert "Traceback" not in ran.stderr
