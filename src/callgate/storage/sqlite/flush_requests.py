"""Requests of readers in other processes to write held events.

    reader: read --> connect to `run/<owner>.wake` of each writer --> wait for its answer --> read
    writer:          write the held events --> answer --> hold no events for some seconds

A writer that does not answer in time delays one read, and none until it has answered.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from callgate.core.tasks import TaskSet
from callgate.storage.sqlite.files import REQUESTS

ANSWER_S = 0.5
"""Maximum wait for all writers. They answer within 0.1 s if their event loop and disk are free."""
PROMPT_S = 2.0
"""Time after a request during which the writer holds no events."""
RENEW_S = 1.0
"""Time after which a reader repeats its request."""
_LONGEST_PATH = 107
"""Maximum bytes in the path of a socket."""

Flush = Callable[[], Coroutine[Any, Any, None]]


class FlushRequests:
    """The requests that a writer receives. Belongs to the event loop of its store."""

    def __init__(self, directory: str, owner: str, flush: Flush) -> None:
        """Listen for requests. Raises `OSError` if readers could not connect."""
        self._path = os.path.join(directory, owner + REQUESTS)
        temporary = self._path + "~"
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet()
        self._prompt_until = 0.0
        if len(os.fsencode(temporary)) > _LONGEST_PATH:
            raise OSError("the path is too long for a socket")
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.setblocking(False)
            self._socket.bind(temporary)
            self._socket.listen()
            os.rename(temporary, self._path)  # a socket without a listener means a dead process
            self._loop.add_reader(self._socket, self._accept)
        except NotImplementedError as error:  # an event loop without file descriptors
            self.close()
            raise OSError(str(error)) from error
        except OSError:
            self._socket.close()
            raise
        _listening.add(self)

    @property
    def is_recent(self) -> bool:
        """Whether a reader may still be reading."""
        return self._loop.time() < self._prompt_until

    def close(self) -> None:
        with suppress(OSError):
            os.unlink(self._path)
        if not self._loop.is_closed():
            with suppress(NotImplementedError):
                self._loop.remove_reader(self._socket)
        self.forget()

    def forget(self) -> None:
        """Close the socket, as the end of the process does."""
        _listening.discard(self)
        self._socket.close()

    def _accept(self) -> None:
        try:
            reader, _ = self._socket.accept()
        except OSError:
            return  # the reader is gone
        self._prompt_until = self._loop.time() + PROMPT_S
        self._tasks.start(self._answer(reader))

    async def _answer(self, reader: socket.socket) -> None:
        with reader:  # the end of the connection is the answer
            await self._flush()


_listening: weakref.WeakSet[FlushRequests] = weakref.WeakSet()


def _forget_all() -> None:
    """Stop listening in a forked child, which cannot write the events of its parent."""
    for each in list(_listening):
        each.forget()


os.register_at_fork(after_in_child=_forget_all)


class FlushClient:
    """Sends the requests of a reader. Thread-safe."""

    def __init__(self, directory: str, owner: str) -> None:
        self._directory = directory
        self._request_path = owner + REQUESTS
        self._lock = threading.Lock()
        self._requested: dict[str, float] = {}
        """Time of the last request by the file name of the writer's socket."""
        self._late: dict[str, socket.socket] = {}
        """Requests without an answer."""

    def request(self) -> None:
        """Return when all writers of the home have written their events. Blocks for a moment."""
        try:
            names = [each for each in os.listdir(self._directory) if each.endswith(REQUESTS)]
        except OSError:
            return  # no process has written
        if not names and not self._late:
            return
        with self._lock:
            now = time.monotonic()
            for name, request in list(self._late.items()):
                self._receive(name, request, 0.0)
            self._requested = {
                name: at for name, at in self._requested.items() if now - at < RENEW_S
            }
            known = self._requested.keys() | self._late.keys() | {self._request_path}
            new = [each for each in names if each not in known]
            requests = [(each, self._connected(each)) for each in new]
            self._requested.update(dict.fromkeys(new, now))
            for name, requested_at in requests:
                if requested_at is not None:
                    self._receive(name, requested_at, max(0.0, now + ANSWER_S - time.monotonic()))

    def close(self) -> None:
        with self._lock:
            for request in self._late.values():
                request.close()
            self._late.clear()

    def _receive(self, name: str, request: socket.socket, limit_s: float) -> None:
        """Wait for an answer, which is the end of the connection."""
        request.settimeout(limit_s)
        try:
            request.recv(1)
        except (BlockingIOError, TimeoutError):
            self._late[name] = request
            return
        except OSError:
            pass
        request.close()
        self._late.pop(name, None)

    def _connected(self, name: str) -> socket.socket | None:
        request = socket.socket(socket.AF_UNIX)
        path = os.path.join(self._directory, name)
        try:
            request.setblocking(False)
            request.connect(path)
        except OSError as error:
            request.close()
            if isinstance(error, ConnectionRefusedError):  # its process has ended
                with suppress(OSError):
                    os.unlink(path)
            return None
        return request
