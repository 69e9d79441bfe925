"""A process that has loaded our client, and forks one for each that knocks.

python -m tests.features.mcp.conformance.warm SOCKET
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path

from tests.features.mcp.conformance import client

_HEAVY = (
    "callgate.features.mcp.client.connections",
    "callgate.features.mcp.client.http",
    "callgate.features.mcp.client.logins",
    "callgate.features.mcp.client.sdk_messages",
    "callgate.storage.sqlite.store",
)

_MOST_CLIENTS = 2
"""Concurrent clients. The suite starts all scenarios together, and the SDK takes a server that
does not answer its first request within 10 seconds for one of the older protocol."""


def serve(path: str) -> None:
    for name in _HEAVY:
        import_module(name)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        running = 0
        while True:
            if running == _MOST_CLIENTS:
                os.wait()
                running -= 1
            door, _ = listening.accept()
            with door:
                if os.fork() == 0:
                    listening.close()
                    os._exit(_answer(door))
            running += 1


def _answer(door: socket.socket) -> int:
    with door.makefile("rw") as talk:
        url, environment = json.loads(talk.readline())
        os.environ.update(environment)
        code = 0
        try:
            with tempfile.TemporaryDirectory() as made:
                asyncio.run(client.run(url, Path(made)))
        except BaseException:  # whatever it is, the suite is told by the code
            traceback.print_exc()
            code = 1
        talk.write(f"{code}\n")
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
