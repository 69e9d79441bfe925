"""The screen in docs/use/chat.md is one that a terminal has shown."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.features.chat.commands.chatting import Chatting

PROJECT = Path(__file__).parents[4]
SCRIPT = "examples/chat/notes.toml"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short enough for one row."""
    base = Path(tempfile.mkdtemp(prefix="cg"))
    workspace = base / "project"
    workspace.mkdir()
    (workspace / "README.md").write_text("# A small project\n\nIt has seven words in it.\n")
    (workspace / SCRIPT).parent.mkdir(parents=True)
    shutil.copy(PROJECT / SCRIPT, workspace / SCRIPT)
    yield workspace
    shutil.rmtree(base)


def test_the_page_shows_what_the_terminal_shows(place: Path) -> None:
    talk = Chatting("chat", "--model", f"scripted/{SCRIPT}", cwd=place, rows=40)
    talk.say("What is this?").until("write that down?")
    talk.say("Yes, please.").until("session >")
    talk.press("y\r").until("takes it back.")
    screen = talk.prompted().replace(str(place), "~/project")
    assert talk.press("\x04").end() == 0
    assert (place / "NOTES.md").read_text() == "It is small.\n"
    page = (PROJECT / "docs" / "use" / "chat.md").read_text()
    shown = re.search(r"^```text screen\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert shown is not None
    assert timeless(screen) == timeless(shown[1].rstrip("\n"))


def timeless(screen: str) -> str:
    """Without what differs from run to run: times, the policy, and the process that asks."""
    asks = re.sub(r"(  from       ).*(?:\n {13}.*)*", r"\1somebody", screen)
    return re.sub(r"\d+ ms|(?<=policy    )[0-9a-f]{12}", "N", asks)
