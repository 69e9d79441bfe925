"""Directories and files that are the user's alone, whatever the umask is."""

from __future__ import annotations

import os


def make_private_directory(path: str) -> None:
    """Make a directory, and what is missing above it, with mode 0700. Idempotent.

    `os.makedirs` gives its mode to the last one only.
    """
    parent = os.path.dirname(path)
    if parent and not os.path.lexists(parent):
        make_private_directory(parent)
    os.makedirs(path, mode=0o700, exist_ok=True)


def write_private(path: str, text: str) -> None:
    """Replace a file in one step, readable by its owner only."""
    make_private_directory(os.path.dirname(path))
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
