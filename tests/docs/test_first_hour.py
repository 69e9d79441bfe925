"""The recording of docs/start/first-hour.md: nothing in it goes wrong, and the page lists its commands."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.first_hour_steps import COMMANDS
from tests.needs import needs

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs/start/first-hour.md"
IMAGES = PROJECT / "docs/images"
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07)|\r")
_WRONG = re.compile(r"^(?i:error|fatal|warning|traceback|npm err|bash: |hint: ).*", re.MULTILINE)


def shown(directory: Path) -> str:
    """All that the terminal showed, from first to last."""
    head, *events = (directory / "first-hour.cast").read_text().splitlines()
    assert json.loads(head)["version"] == 2
    times = [json.loads(event)[0] for event in events]
    assert times == sorted(times)
    return _ESCAPES.sub("", "".join(json.loads(event)[2] for event in events))


def faults(directory: Path) -> list[str]:
    text = shown(directory)
    found = _WRONG.findall(text)
    places = ["/root", "/tmp", "/opt", str(PROJECT), socket.gethostname()]
    found += [place for place in places if re.search(rf"(?<![\w/]){re.escape(place)}\b", text)]
    typed = re.findall(r"^\$ (.+)$", text, re.MULTILINE)
    if tuple(typed) != COMMANDS:
        found.append(f"typed: {typed}")
    for answered in ("[d]etails  [n]o > r", "ne[v]er in this session > y", "(y/N) y"):
        if answered not in text:
            found.append(f"not answered: {answered}")
    return found


def test_the_recording_shows_every_command_and_answer_and_nothing_wrong() -> None:
    assert faults(IMAGES) == []


def test_the_page_lists_the_commands_of_the_recording() -> None:
    page = PAGE.read_text()
    assert [command for command in COMMANDS if command not in page] == []


def test_the_moving_picture_shows_the_end_of_the_recording() -> None:
    picture = (IMAGES / "first-hour.svg").read_text()
    *_, last = (line for line in shown(IMAGES).splitlines() if len(line) > 2)
    assert last in picture


def apart() -> bool:
    """Whether the user may have mounts of their own."""
    mapped = () if os.geteuid() == 0 else ("--map-root-user",)
    return subprocess.run(["unshare", "--mount", "--uts", *mapped, "true"], capture_output=True).returncode == 0


def registry() -> bool:
    asked = ["npm", "view", "@modelcontextprotocol/server-filesystem", "version"]
    return subprocess.run(asked, capture_output=True, timeout=60).returncode == 0


@pytest.mark.soak
@pytest.mark.timeout(1200)
@needs("linux", "unshare", "git", "npm", "npx", "acp clients")
def test_the_recording_can_be_made_again(tmp_path: Path) -> None:
    if not apart():
        pytest.skip("needs unshare: this user may not mount")
    if not registry():
        pytest.skip("needs npm: its registry does not answer")
    made = subprocess.run(
        [sys.executable, "-m", "scripts.record_first_hour", str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert made.returncode == 0, made.stderr
    assert faults(tmp_path) == []
