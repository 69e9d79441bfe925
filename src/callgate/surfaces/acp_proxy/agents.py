"""The process of an agent behind the proxy: started in the sandbox, spoken with, ended.

stdin  <- Peer          stdout -> Peer
stderr -> our stderr    its end -> every request under way fails, and says why
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import shutil
from collections.abc import Callable
from typing import Any

import msgspec

from callgate.core.commands import Exit, Running, Stream
from callgate.core.errors import ToolError
from callgate.core.task_sets import start_task
from callgate.protocol.jsonrpc import INTERNAL_ERROR, RpcError, shown
from callgate.redaction.texts import redact
from callgate.surfaces.acp.peer import Peer, PeerGone
from callgate.surfaces.acp_proxy.dependencies import AgentPlace, Handlers, Launch
from callgate.surfaces.descriptors import Output

LEAVE_S = 5.0
"""For an agent to end by itself when its stdin ends."""
TERM_S = 3.0
_MOST_WAITING = 20_000
"""Messages that wait to be taken: who sends more at once floods us."""
_MOST_NOISE = 10_000
"""Lines that are no message, before an agent is given up."""
_TAIL = 4_096
_PIPE = 512
"""Bytes that fit into a pipe which can be written to at all."""
_LONGEST_WHY = 300
_SHOW = "Show its directory to the agent with --readable DIR, or move it into the workspace."

_log = logging.getLogger("callgate.acp")


class AgentProcess:
    """`dependencies.Agent` for a process of ours."""

    def __init__(self, place: AgentPlace, runs_in: str, handlers: Handlers) -> None:
        self.place, self.runs_in = place, runs_in
        self._handlers = handlers
        self.exit: Exit | None = None
        """How it ended, once it has."""
        self.gave_up: str | None = None
        """Why we ended it, where we did."""
        self._transport: asyncio.WriteTransport | None = None
        self._running: Running | None = None
        self._watching: asyncio.Task[None] | None = None
        self._errors = bytearray()
        self._hidden_paths: Callable[[str], tuple[str, ...]] = lambda text: ()
        self.peer = Peer(
            self._write,
            lambda method, params, request: handlers.answer(self, method, params, request),
            lambda method, params: handlers.noted(self, method, params),
            on_gone=self._unread,
            ignores_noise=True,
        )

    @property
    def is_alive(self) -> bool:
        return self._running is not None and self.exit is None and self.gave_up is None

    async def start(self, launch: Launch) -> None:
        """Raises a `ToolError` where the system cannot."""
        self._hidden_paths = launch.hidden_paths
        theirs, ours = os.pipe()
        try:
            with_stdin = msgspec.structs.replace(launch.command, stdin=theirs)
            self._running = await launch.launcher.start(with_stdin, self._hear)
        except OSError as error:
            os.close(ours)
            raise _not_started(launch, error) from error
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._watching = start_task(self._await_end(self._running))
        os.set_blocking(ours, False)
        pipe = os.fdopen(ours, "wb", buffering=0)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_write_pipe(lambda: Output(self.peer), pipe)

    async def request(self, method: str, params: Any) -> Any:
        """What the agent answers. `RpcError` also where it has ended, with the reason."""
        try:
            return await self.peer.request(method, params)
        except PeerGone:
            if self._watching is not None:
                await asyncio.wait([self._watching], timeout=TERM_S)
            raise self.failure() from None

    def notify(self, method: str, params: Any) -> None:
        self.peer.notify(method, params)

    def failure(self) -> RpcError:
        """Why nothing more can be asked of it."""
        return RpcError(INTERNAL_ERROR, self._end_text(), {"reason": "agent_ended"})

    def kill(self, why: str) -> None:
        """End it and all that it started, now."""
        if self.gave_up is None:
            self.gave_up = why
        if self._running is not None:
            self._running.stop(0.0)

    async def close(self) -> None:
        """Its stdin ends; if it does not end by that, it is ended."""
        self.peer.unheard()
        self._close_stdin()
        running, watching = self._running, self._watching
        if running is None or watching is None:
            return
        timer = asyncio.get_running_loop().call_later(LEAVE_S, running.stop, TERM_S)
        try:
            await asyncio.shield(watching)
        except asyncio.CancelledError:
            running.stop(0.0)
            raise
        finally:
            timer.cancel()

    def _close_stdin(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _hear(self, stream: Stream, data: bytes) -> None:
        if stream == "stderr":
            self._errors = (self._errors + data)[-_TAIL:]
            _pass_on(data)
            return
        self.peer.feed(data)
        if self.peer.backlog > _MOST_WAITING:
            self.kill("it says more than anybody can take in")
        elif self.peer.invalid > _MOST_NOISE:
            self.kill("it says too much that is no message")

    def _unread(self) -> None:
        if self.exit is not None or self._running is None:
            return
        if self._transport is not None and self._transport.is_closing():  # it ends, or should
            asyncio.get_running_loop().call_later(LEAVE_S, self._running.stop, TERM_S)
        else:
            self.kill("it does not read what it is sent")

    async def _await_end(self, running: Running) -> None:
        self.exit = await running.wait()
        self.peer.unheard()
        self.peer.lost()
        self._close_stdin()
        _log.info("agent: %s", self._end_text())
        self._handlers.ended(self)

    def _end_text(self) -> str:
        if self.gave_up is not None:
            return f"the agent was ended: {self.gave_up}"
        ended = self.exit
        if ended is None:
            return "the agent has gone"
        how = f"exit code {ended.code}" if ended.signal is None else f"signal {ended.signal}"
        errors = self._errors.decode("utf-8", "replace").strip()
        lines = errors.splitlines()
        detail = f": {shown(redact(lines[-1]), _LONGEST_WHY)}" if lines else ""
        text = f"the agent has ended ({how}){detail}"
        hidden = self._hidden_paths(errors) if ended.code != 0 else ()
        return f"{text}. {_hides(', '.join(hidden))}" if hidden else text


def _pass_on(data: bytes) -> None:
    """An agent's stderr is the editor's to show, as if there were nobody in between."""
    ready = select.poll()
    ready.register(2, select.POLLOUT)
    for start in range(0, len(data), _PIPE):
        try:
            if not ready.poll(0):  # nobody reads it: what does not fit is dropped
                return
            os.write(2, data[start : start + _PIPE])
        except OSError:
            return


def _not_started(launch: Launch, error: OSError) -> ToolError:
    program, env = launch.command.argv[0], launch.command.env
    path = shutil.which(program, path=env.get("PATH"))
    what = f"The agent {shown(program)!r} cannot be started"
    if path is None:
        return ToolError(f"{what}: there is no such program. Install it, or give its full path.")
    if launch.hidden_paths(path):
        return ToolError(f"{what}. {_hides(shown(path, 200))}")
    if not isinstance(error, FileNotFoundError):
        return ToolError(f"{what}: {error.strerror or error}.")
    return ToolError(
        f"{what}: the sandbox around the agent does not show {shown(path, 200)} or the program"
        f" that runs it. {_SHOW}"
    )


def _hides(paths: str) -> str:
    return f"The sandbox around the agent hides {paths}. {_SHOW}"
