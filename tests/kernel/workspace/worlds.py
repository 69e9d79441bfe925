"""The fixture tree of the path corpus, and a picture of a directory to compare later."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

_CORPUS = Path(__file__).parents[2] / "corpus" / "path_escapes.json"
CORPUS: dict[str, Any] = json.loads(_CORPUS.read_text())


def filled(text: str, base: Path) -> str:
    """A corpus text with its placeholders replaced."""
    return (
        text.replace("{ROOT}", str(base / "ws"))
        .replace("{BASENAME}", base.name)
        .replace("{BASE}", str(base))
        .replace("{PID}", str(os.getpid()))
    )


def build(base: Path) -> None:
    for step in CORPUS["setup"]:
        path = base / step["path"]
        match step["op"]:
            case "mkdir":
                path.mkdir()
            case "file":
                path.write_text(step["text"])
            case "symlink":
                path.symlink_to(filled(step["target"], base))
            case "hardlink":
                path.hardlink_to(base / step["target"])
            case "fifo":
                os.mkfifo(path)
            case "socket":
                _bind(path)
            case "symlink_chain":
                for i in range(step["count"]):
                    target = f"{path.name}{i - 1}" if i else step["target"]
                    path.with_name(f"{path.name}{i}").symlink_to(target)
            case unknown:
                raise AssertionError(unknown)


def _bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path may only be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def picture(*places: Path) -> dict[str, Any]:
    """Everything in and about these directories that an operation could have changed."""
    seen: dict[str, Any] = {}
    for place in places:
        for path in [place, *place.rglob("*")]:
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
            seen[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, content)
    return seen
