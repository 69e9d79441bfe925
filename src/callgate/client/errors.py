"""Errors between a program and an instance, and retries until a socket is reached.

ClientError
├── NoInstance       nothing listens: no request was sent
├── InstanceGone     the connection ended; tells whether the call may have run
└── RequestRefused   the instance refused a request

A call that fails is a result instead.
"""

from __future__ import annotations

import time
from _socket import socket
from collections.abc import Iterator
from errno import EACCES, EAGAIN

_WHY = {
    "closed": "This connection was closed.",
    "lost": "The connection to the instance was lost.",
    "shutting_down": "The instance was stopped.",
    "slow_reader": "The instance disconnected: its data was not read in time.",
    "protocol": "The instance disconnected: it could not parse the data.",
    "unreadable": "The peer does not speak the protocol of callgate.",
    "unresponsive": "The instance does not answer.",
}


class ClientError(Exception):
    """Base of all errors. `str(error)` is safe to show to a person."""


class NoInstance(ClientError):
    def __init__(self, why: str) -> None:
        super().__init__(f"{why} `callgate serve --workspace DIR` starts an instance.")


class InstanceGone(ClientError):
    def __init__(self, reason: str, *, may_have_run: bool) -> None:
        why = _WHY.get(reason, _WHY["lost"])
        fate = "The call was sent and may have run." if may_have_run else "Nothing was run."
        super().__init__(f"{why} {fate}")
        self.reason = reason
        """closed, lost, unreadable, unresponsive, or the reason from the instance."""
        self.may_have_run = may_have_run
        """False: this call was never sent, or the request was not a call."""


class RequestRefused(ClientError):
    """A refused request, such as an answer to a question that is no longer open."""


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.2


def pauses() -> Iterator[float]:
    """Yield delays between attempts to connect to a socket with a full queue (`EAGAIN`).

    The attempt has ended, so the system does not report when the socket has room.
    """
    pause = _FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE_S)


def connect_again(connection: socket, path: str, patience_s: float) -> None:
    """Connect to a socket whose queue was full. Raises `BlockingIOError` if it stays full."""
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
    """Return why a socket was not reached."""
    code = getattr(error, "errno", None)
    if code == EAGAIN:
        return "too many other clients are waiting"
    if code == EACCES:
        return "this user may not open it"
    if isinstance(error, TimeoutError):
        return "it took too long"
    return getattr(error, "strerror", None) or str(error)
