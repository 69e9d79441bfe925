"""What the system knows of the process behind a call."""

from __future__ import annotations

import os

from callgate.core.clients import Client
from callgate.redaction.texts import redact

_LONGEST_NAME = 80


def client_of(process: int | None, name: str | None = None) -> Client:
    """`name` is what the client calls itself. Process 0 or None: the system does not say."""
    return Client(
        process=process or None,
        program=_link(process, "exe") if process else None,
        directory=_link(process, "cwd") if process else None,
        name=None if name is None else redact(name[:_LONGEST_NAME]),
    )


def this_process() -> Client:
    return client_of(os.getpid())


def _link(process: int | None, name: str) -> str | None:
    try:
        return os.readlink(f"/proc/{process}/{name}")
    except OSError:  # no such file system, another user's, or gone
        return None
