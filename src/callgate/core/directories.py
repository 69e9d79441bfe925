"""Directories that are the user's alone, whatever the umask is."""

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
