"""The recording of `callgate demo` in README: it shows the whole demo, and nothing of this machine."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.cli.commands.demo_narration import NEXT
from scripts.record_demo import COMMAND
from tests.needs import needs

PROJECT = Path(__file__).parents[2]
IMAGES = PROJECT / "docs/images"
SHOWN = (
    f"$ {COMMAND}",
    "refused: Path '../.ssh/id_ed25519' escapes workspace boundary",
    "Allow this edit?  [y]es  [n]o > y",
    "Allowed at this terminal.",
    "Good morning, Ada",
    "[not visible in the sandbox: ",
    "greet.sh is as it was before.",
    "(answered by terminal)",
    "intact: records 5, ",
    *(command for command, _ in NEXT),
)
LONGEST_S = 60.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


def faults(directory: Path) -> list[str]:
    head, *lines = (directory / "demo.cast").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    text = _ESCAPES.sub("", "".join(event[2] for event in events))
    joined = re.sub(r"\n +", " ", text)
    found = [f"not shown: {words}" for words in SHOWN if words not in text and words not in joined]
    places = ("/root", str(PROJECT), socket.gethostname())
    found += [place for place in places if re.search(rf"(?<![\w/-]){re.escape(place)}(?![\w-])", text)]
    found += re.findall(r"^(?i:error|traceback|hint).*", text, re.MULTILINE)
    if events[-1][0] > LONGEST_S:
        found.append(f"takes {events[-1][0]} s")
    if json.loads(head)["version"] != 2:
        found.append("not version 2")
    picture = (directory / "demo.svg").read_text()
    return found + [f"not drawn: {command}" for command, _ in NEXT if command not in picture]


def test_the_recording_shows_the_whole_demo_in_under_a_minute() -> None:
    assert faults(IMAGES) == []


def test_readme_shows_the_recording() -> None:
    assert "](docs/images/demo.svg)" in (PROJECT / "README.md").read_text()


@needs("linux", "unshare", "bwrap")
def test_the_recording_can_be_made_again(tmp_path: Path) -> None:
    mapped = () if os.geteuid() == 0 else ("--map-root-user",)
    if subprocess.run(["unshare", "--mount", "--uts", *mapped, "true"], capture_output=True).returncode:
        pytest.skip("needs unshare: this user may not mount")
    made = subprocess.run(
        [sys.executable, "-m", "scripts.record_demo", str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=110,
    )
    assert made.returncode == 0, made.stderr
    assert faults(tmp_path) == []
