"""Where an instance listens: its socket, and an HTTP address.

socket   the one that systemd passed to us, the one that was named, or the usual one
HTTP     the first of the addresses given at which we can listen, or none
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from callgate.config.instance_records import usual_socket
from callgate.instance.errors import CannotServe
from callgate.policy.rules import is_within
from callgate.surfaces.http.addresses import USUAL_HOST, USUAL_PORT, Address, BadAddress, bind
from callgate.surfaces.socket.listening import (
    CannotListen,
    Listener,
    fitting,
    handed_over,
    listen,
)

USUAL_HTTP = (Address(USUAL_HOST, USUAL_PORT), Address(USUAL_HOST, 0))
"""The usual port, or any if that is taken."""


class Endpoints(NamedTuple):
    """Where an instance is to listen."""

    socket: str | None = None
    """None: the one that systemd passed, or `run/callgate.sock` in the home."""
    http: Sequence[Address] = ()
    """To be tried one after the other; empty: no HTTP."""


def listen_local(path: str | None, home: str, roots: Sequence[str]) -> Listener:
    """The socket of an instance. Raises `CannotServe`."""
    try:
        listener = handed_over() if path is None else None
        if listener is None:
            listener = listen(path or fitting(usual_socket(home)))
    except CannotListen as error:
        raise CannotServe(str(error)) from error
    directory = os.path.realpath(os.path.dirname(listener.path))
    if any(is_within(root, directory) for root in roots):
        listener.close()
        raise CannotServe(
            f"{directory} holds a workspace, so the socket there cannot be hidden from commands: "
            "put it into a directory of its own"
        )
    return listener


def listen_http(addresses: Sequence[Address]) -> tuple[socket.socket, Address]:
    """A listening socket, and its address with the port that it got. Raises `CannotServe`."""
    problems: list[BadAddress] = []
    for address in addresses:
        try:
            listening = bind(address)
        except BadAddress as error:
            problems.append(error)
        else:
            return listening, Address(address.host, listening.getsockname()[1])
    raise CannotServe(str(problems[0])) from problems[0]
