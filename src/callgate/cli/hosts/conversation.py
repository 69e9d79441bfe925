"""The process of a host under examination, and a record of its unexpected output.

The runtime ignores lines that a host should not write. The examination reports them: lines that are
not frames (`noise`), and answers without a request (`strays`).
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec

from callgate.core.commands import Command, Exit, Launcher, Running, Stream
from callgate.core.tasks import start_task
from callgate.protocol import strict_json
from callgate.protocol.host_v1 import lines
from callgate.protocol.host_v1.frames import Emitted, Failed, Returned, excerpt
from callgate.protocol.host_v1.lines import Breach
from callgate.protocol.strict_json import MAX_LINE, Framer
from callgate.sources.logs import LifeLog

_MOST_NOTED = 100
_BREACHES: dict[Breach, str] = {
    "too_long": "its answer exceeds the length limit of a line",
    "json": "its answer is not unambiguous JSON",
    "version": 'its answer lacks "v": 1',
    "shape": "its answer has neither ok with a result nor an error",
    "value": "its answer has a value of the wrong type for this method",
}


class Unmet(Exception):
    """Error: a description of the behaviour that violates the protocol."""


class HostLost(Unmet):
    """Error: the process ended or stopped answering."""


class Notes:
    """Unexpected output and stderr of all processes of one examination."""

    def __init__(self) -> None:
        self.noise: list[str] = []
        self.strays: list[str] = []
        self.log = LifeLog()


class HostConversation:
    def __init__(self, notes: Notes, timeout_s: float) -> None:
        self._notes = notes
        self._timeout_s = timeout_s
        self._framer = Framer(head=4_096)
        self._waiting: dict[str | None, asyncio.Future[Returned | Failed]] = {}
        self._params_types: dict[str | None, type] = {}
        """The types of the sent params, by request id; they determine the type of the answer."""
        self._answered: set[str | None] = set()
        self._running: Running | None = None
        self._watch: asyncio.Task[Exit] | None = None
        self._stdin: asyncio.WriteTransport | None = None

    async def start(self, launcher: Launcher, command: Command) -> None:
        """Start the process. Raises `OSError`, or `ToolError` if the start is refused."""
        theirs, ours = os.pipe()
        try:
            command = msgspec.structs.replace(command, stdin=theirs)
            self._running = await launcher.start(command, self._hear)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(ours, "wb", 0)
        self._stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, pipe)
        self._watch = start_task(self._await_end(self._running))

    def write(self, data: bytes) -> None:
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)

    async def answer(
        self,
        data: bytes,
        id: str | None,
        params_type: type = object,
        timeout_s: float | None = None,
    ) -> Returned | Failed:
        """Write a line, and wait for the answer with this id. Raises `Unmet`."""
        return (await self.answers(data, {id: params_type}, timeout_s))[id]

    async def answers(
        self, data: bytes, params_types: dict[str | None, type], timeout_s: float | None = None
    ) -> dict[str | None, Returned | Failed]:
        """Write several lines, and wait for their answers in any order. Raises `Unmet`."""
        patience = self._timeout_s if timeout_s is None else timeout_s
        if self._watch is None or self._watch.done():
            raise HostLost(self._how_it_ended())
        loop = asyncio.get_running_loop()
        waiting: dict[str | None, asyncio.Future[Returned | Failed]]
        waiting = {id: loop.create_future() for id in params_types}
        self._waiting.update(waiting)
        self._params_types.update(params_types)
        self.write(data)
        # Wait for all answers, also if one is wrong: a late one would count as a stray.
        done, missing = await asyncio.wait(waiting.values(), timeout=patience)
        problems = [each.exception() for each in done]
        for id in params_types:
            self._waiting.pop(id, None)
            self._answered.add(id)
        if missing:
            raise HostLost(f"no answer in {patience:g} s")
        for problem in filter(None, problems):
            raise problem
        return {id: each.result() for id, each in waiting.items()}

    async def close_stdin(self, within_s: float) -> Exit:
        """Close stdin and wait for the exit. Terminates the process late, and raises `Unmet`."""
        assert self._watch is not None and self._running is not None and self._stdin is not None
        self._stdin.close()
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(self._watch)
        except TimeoutError:
            raise Unmet(f"it still runs {within_s:g} s after the end of its stdin") from None
        finally:
            await self.end()

    async def end(self) -> None:
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.abort()
        if self._running is not None and self._watch is not None:
            self._running.stop(0.0)
            await self._watch

    # --- in ----------------------------------------------------------------------------------

    def _hear(self, stream: Stream, data: bytes) -> None:
        if stream == "stderr":
            self._notes.log.add(data)
            return
        for line in self._framer.feed(data):
            if line is None:
                self._unreadable(self._framer.heads.popleft(), "too_long")
                continue
            try:
                value = strict_json.loads(line)
            except strict_json.StrictJsonError:
                self._unreadable(line, "json")
                continue
            if type(value) is dict and lines.is_answer(value):
                self._take(value, line)
            else:
                self._note(self._notes.noise, line)

    def _unreadable(self, line: bytes, why: Breach) -> None:
        id = lines.named(line)
        if id is not None and id in self._waiting:
            self._settle(id, Unmet(_shown(_BREACHES[why], line)))
        else:
            self._note(self._notes.noise, line)

    def _take(self, value: dict[str, Any], line: bytes) -> None:
        id = value.get("id")
        if id is not None and type(id) is not str:
            self._note(self._notes.noise, line)
            return
        if id not in self._waiting:
            self._stray(id, line)
            return
        frame = lines.read_answer(value)
        if isinstance(frame, Returned):
            frame = lines.fitting(frame, self._params_types[id])
        if isinstance(frame, str):
            self._settle(id, Unmet(_shown(_BREACHES[frame], line)))
        elif not isinstance(frame, Emitted):
            self._settle(id, frame)

    def _stray(self, id: str | None, line: bytes) -> None:
        """Note an answer without a request. A new id fails the only waiting request."""
        self._note(self._notes.strays, line)
        if len(self._waiting) == 1 and id not in self._answered:
            (meant,) = self._waiting
            self._settle(meant, Unmet(_shown("answered with another id", line)))

    def _settle(self, id: str | None, outcome: Returned | Failed | Unmet) -> None:
        self._answered.add(id)
        waiting = self._waiting.pop(id)
        if waiting.done():
            return
        if isinstance(outcome, Unmet):
            waiting.set_exception(outcome)
        else:
            waiting.set_result(outcome)

    def _note(self, notes: list[str], line: bytes) -> None:
        if len(notes) < _MOST_NOTED:
            notes.append(excerpt(line))

    # --- its end -----------------------------------------------------------------------------

    async def _await_end(self, running: Running) -> Exit:
        ended = await running.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(HostLost(f"it {describe(ended)}"))
        self._waiting.clear()
        return ended

    def _how_it_ended(self) -> str:
        ended = Exit() if self._watch is None else self._watch.result()
        return f"it {describe(ended)} before the request"


def describe(ended: Exit) -> str:
    if ended.signal is not None:
        return f"was ended by signal {ended.signal}"
    return "ended" if ended.code is None else f"exited with {ended.code}"


def _shown(problem: str, line: bytes) -> str:
    return f"{problem}: {excerpt(line)}" if len(line) <= MAX_LINE else problem
