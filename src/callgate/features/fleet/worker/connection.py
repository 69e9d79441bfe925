"""A worker's connection to a server: opened, kept alive, and reopened after a loss.

    dial ---accepted---> served ---lost---> its calls are ended ---> wait a little ---> dial
      |                     |
      +-- final refusal ----+-- replaced, or its token revoked: `WorkerRefused`, no retry

Messages to a suspended process do not count, because the server has already dropped its
connection. A worker that notices such a gap drops the connection before it starts a call.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from callgate.core.tasks import Backpressure, start_task
from callgate.core.version import __version__
from callgate.features.fleet.worker.calls import WorkerCalls
from callgate.features.fleet.worker.service import ServerAddress, WorkerService
from callgate.protocol.host_v1.workers import VERSION
from callgate.protocol.strict_json import MAX_LINE

_log = logging.getLogger("callgate.worker")

_PING_S = 2.0
_SILENT_S = 10.0
"""Seconds of silence after which the server counts as lost."""
_STALLED_S = 7.0
"""Seconds of suspension after which the server has dropped the connection, or soon will."""
_TICK_S = 0.5
_OPEN_S = 10.0
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 15.0
_HIGH = 1024 * 1024
"""Number of unsent bytes above which calls with output wait ..."""
_MOST_WAITING = 16 * 1024 * 1024
"""... and above which output is dropped. Results are always sent."""
_FINAL_STATUSES = frozenset({400, 401, 403, 404, 426})
_FINAL_CODES = {
    4401: "The worker token was revoked.",
    4409: "Another process connected as this worker: use a separate --name for each worker.",
}

Say = Callable[[str], None]


class WorkerRefused(Exception):
    """The server refuses this worker, with the reason as text. A retry would fail, too."""


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    pool: str
    name: str
    token: str
    workspaces: Mapping[str, str]
    """Directories by name."""
    slots: int = 8
    tls: Any = None
    """An `ssl.SSLContext`, for servers with TLS."""


class _Dial(connect):
    """Follows no redirect: the token is only for the given server."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class WorkerConnection:
    """One worker at one server."""

    def __init__(
        self,
        server: ServerAddress,
        config: WorkerConfig,
        calls: WorkerCalls,
        say: Say,
        joined: Callable[[], None] = lambda: None,
    ) -> None:
        self._server = server
        self._config = config
        self._calls = calls
        self._say = say
        self._on_joined = joined
        self._wait_s = _FIRST_WAIT_S

    async def run(self, process: str) -> None:
        """Serve until cancelled. Raises `WorkerRefused`."""
        while True:
            try:
                async with self._dial(process) as websocket:
                    problem = await self._serve(websocket)
            except InvalidStatus as error:
                problem = _status(error)
            except ssl.SSLCertVerificationError as error:
                raise WorkerRefused(
                    f"The certificate of {self._server.url} cannot be verified:"
                    f" {error.verify_message}. Pass its authority with --ca FILE."
                ) from None
            except (OSError, InvalidHandshake, ConnectionClosed, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            wait_s = self._wait_s * random.uniform(0.5, 1.0)  # noqa: S311  # spreads workers
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
            self._say(f"not connected to {self._server.url}: {problem}; retrying")
            await asyncio.sleep(wait_s)

    def _dial(self, process: str) -> connect:
        config = self._config
        url = self._server.dialled(
            pool=config.pool,
            name=config.name,
            process=process,
            protocol=str(VERSION),
            version=__version__,
        )
        return _Dial(
            url,
            additional_headers={"Authorization": f"Bearer {config.token}"},
            user_agent_header=f"callgate-worker/{__version__}",
            ssl=config.tls if self._server.encrypted else None,
            compression=None,
            max_size=MAX_LINE + 1,
            ping_interval=_PING_S,
            ping_timeout=_SILENT_S,
            open_timeout=_OPEN_S,
            close_timeout=1.0,
        )

    async def _serve(self, websocket: ClientConnection) -> str:
        """Serve one connection until it is lost. Return the reason."""
        outbox, clock = _Outbox(websocket), _Clock()
        config = self._config
        service = WorkerService(
            self._calls,
            config.workspaces,
            config.slots,
            outbox.put,
            self._joined,
            outbox.backpressure,
        )
        writing, ticking = start_task(outbox.run()), start_task(clock.run())
        try:
            async for message in websocket:
                if clock.has_stalled:
                    return "this process was suspended for too long"
                service.receive(message.encode() if isinstance(message, str) else message)
            return _closed(websocket)
        except ConnectionClosed:
            return _closed(websocket)
        finally:
            writing.cancel()
            ticking.cancel()
            outbox.backpressure.resume()
            await asyncio.gather(writing, ticking, return_exceptions=True)
            await service.close()

    def _joined(self, config: Mapping[str, Any]) -> None:
        self._wait_s = _FIRST_WAIT_S
        self._say(
            f"worker {config.get('name')} of pool {config.get('pool')} is connected to"
            f" {self._server.url} (generation {config.get('generation')})"
        )
        self._on_joined()


class _Outbox:
    """The queue of frames to the server, in order."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self.backpressure = Backpressure()

    def put(self, frame: bytes, droppable: bool) -> bool:
        """Queue a frame. False if it was dropped."""
        if droppable and self._bytes > _MOST_WAITING:
            return False
        frame = frame.rstrip(b"\n")
        self._frames.append(frame)
        self._bytes += len(frame)
        self._filled.set()
        if self._bytes > _HIGH:
            self.backpressure.pause()
        return True

    async def run(self) -> None:
        """Send until cancelled, or until the connection is lost."""
        try:
            while True:
                await self._filled.wait()
                while self._frames:
                    frame = self._frames.popleft()
                    self._bytes -= len(frame)
                    await self._websocket.send(frame, text=True)
                    if self._bytes <= _HIGH:
                        self.backpressure.resume()
                self._filled.clear()
        except ConnectionClosed:
            pass


class _Clock:
    """Detects a suspension of this process, or of its machine."""

    def __init__(self) -> None:
        self._last = _now()
        self._stalled = False

    @property
    def has_stalled(self) -> bool:
        self._stalled = self._stalled or _now() - self._last > _STALLED_S
        return self._stalled

    async def run(self) -> None:
        while not self.has_stalled:
            self._last = _now()
            await asyncio.sleep(_TICK_S)


def _now() -> float:
    """Return a time in seconds that includes a suspension of the machine."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def new_process_name() -> str:
    return secrets.token_hex(8)


def _closed(websocket: ClientConnection) -> str:
    code, reason = websocket.close_code, websocket.close_reason
    if code in _FINAL_CODES:
        raise WorkerRefused(_FINAL_CODES[code])
    return f"the connection ended ({reason or code})"


def _status(error: InvalidStatus) -> str:
    """Return the server's refusal. Raises `WorkerRefused` if it is final."""
    response = error.response
    try:
        message = str(msgspec.json.decode(response.body or b"")["error"]["message"])
    except (KeyError, TypeError, ValueError, RecursionError):
        message = f"the server answered with status {response.status_code}"
    if response.status_code in _FINAL_STATUSES:
        raise WorkerRefused(message)
    return message
