"""Tells systemd that an instance is ready (`Type=notify`). Sockets that it passes: `listeners`."""

from __future__ import annotations

import os
import socket


def notify_ready() -> None:
    """Nothing where systemd does not wait. Raises OSError where it cannot be told."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.connect(address)
        notify.sendall(b"READY=1")
