"""A workspace and a home for the command line, and tools that end in each way a call can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel.cli.running import not_within_a_call

TOOLS = '''
import json
from typing import Any, Literal

from callgate import ImageBlock, ImageSource, ToolContext, tool
from callgate.core import errors


@tool(side_effects="none")
async def show(
    text: str = "", count: int = 0, size: float = 0.0, deep: bool = False,
    tags: list[str] = [], numbers: list[int] = [], at: dict[str, Any] = {},
    kind: Literal["a", "b"] = "a",
) -> dict[str, Any]:
    """Give the arguments back."""
    return {name: value for name, value in locals().items()}


@tool(side_effects="none")
async def fail(kind: str) -> None:
    """End in an error of some class."""
    raise getattr(errors, kind)("as asked")


@tool(side_effects="none")
async def crash() -> None:
    """End in an exception with a secret in it."""
    raise RuntimeError("secret-9c1f")


@tool(side_effects="none")
async def nothing() -> None:
    """Return nothing."""


@tool(side_effects="none")
async def image() -> ImageBlock:
    """Return an image of four bytes."""
    return ImageBlock(source=ImageSource(kind="base64", data="iVBORw=="), media_type="image/png")


@tool(side_effects="none")
async def escape() -> str:
    """Return text that would clear a terminal."""
    return "\\x1b[2Jgone\\x9b1A"


@tool(side_effects="none", isolate=False)
def stuck() -> None:
    """Wait in a thread for longer than anybody has patience."""
    import time

    time.sleep(600)


@tool(side_effects="network", destructive=True)
async def post(url: str, body: str = "") -> str:
    """Send something somewhere."""
    return "sent"
'''


@pytest.fixture(autouse=True)
def _not_within_a_call() -> None:
    not_within_a_call()


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "a.txt").write_text("one\ntwo\nthree\n")
    return workspace


@pytest.fixture
def tools(home: Path) -> Path:
    """A home that loads the tools above."""
    (home / "mine.py").write_text(TOOLS)
    (home / "settings.toml").write_text('[tools]\nload = ["mine.py"]\n')
    return home
