"""What both clients know of reaching a socket: when to try again, and why it is not reached."""

from __future__ import annotations

import time
from _socket import socket
from collections.abc import Iterator
from errno import EACCES, EAGAIN

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.2


def pauses() -> Iterator[float]:
    """Seconds between two tries at a socket in whose queue there is no room (`EAGAIN`): such a
    connection is not under way, so nobody tells us when there is."""
    pause = _FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE_S)


def connect_again(connection: socket, path: str, patience_s: float) -> None:
    """Connect to a socket whose queue was full; `BlockingIOError` if it stays so."""
    until = time.monotonic() + patience_s
    for pause in pauses():
        time.sleep(pause)
        try:
            connection.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise


def why_not(error: Exception) -> str:
    """Why a socket was not reached."""
    code = getattr(error, "errno", None)
    if code == EAGAIN:
        return "too many others wait for it"
    if code == EACCES:
        return "it is not open to this user"
    if isinstance(error, TimeoutError):
        return "it took too long"
    return getattr(error, "strerror", None) or str(error)
