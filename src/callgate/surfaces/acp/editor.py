"""What an editor lends to a session: its text files and its terminals.

    read, write   fs/read_text_file, fs/write_text_file
    a command     terminal/create -> wait_for_exit -> output -> release
                                        | stopped
                                        +-> kill -> wait_for_exit -> output -> release

Whatever happens to a terminal, it is released; where it is we who go, without waiting for it. A
request that the editor answers with an error fails the tool; only "there is no such file" is told
apart.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from callgate.core.commands import GRACE_S, Command, Exit, OnOutput
from callgate.core.errors import ToolExecutionError
from callgate.core.task_sets import start_task
from callgate.protocol.acp.client import (
    METHODS,
    CreateTerminal,
    ExitStatus,
    KillTerminal,
    Output,
    ReadTextFile,
    ReleaseTerminal,
    TerminalMade,
    TerminalOutput,
    TextFile,
    Variable,
    WaitForExit,
    WriteTextFile,
)
from callgate.protocol.acp.reading import Sent, read_result
from callgate.protocol.acp.values import RESOURCE_NOT_FOUND
from callgate.protocol.jsonrpc import RpcError, shown
from callgate.protocol.ndjson import Unsendable
from callgate.surfaces.acp.peer import Peer, PeerGone

MOST_OUTPUT = 1024 * 1024
"""Bytes that an editor keeps of a command's output."""
_PATIENCE_S = 10.0
"""How long an editor may take for what is no work: to read, kill or release a terminal."""

_EDITOR_GONE = "editor_gone"

_log = logging.getLogger("callgate.acp")


class EditorFiles:
    """`core.environment.TextFiles` over the wire."""

    def __init__(self, peer: Peer, session_id: str, *, reads: bool, writes: bool) -> None:
        self._peer = peer
        self._session = session_id
        self.reads = reads
        self.writes = writes

    async def read(self, path: str, line: int | None, limit: int | None) -> str:
        request = ReadTextFile(session_id=self._session, path=path, line=line, limit=limit)
        found: TextFile = await _ask(self._peer, request)
        return found.content

    async def write(self, path: str, content: str) -> None:
        request = WriteTextFile(session_id=self._session, path=path, content=content)
        await _ask(self._peer, request)


class EditorTerminals:
    """A `Launcher` whose commands run in terminals of the editor."""

    def __init__(
        self,
        peer: Peer,
        session_id: str,
        opened: Callable[[str, str], None],
        start_task: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`opened` hears of each call and its terminal; `own` sees work through to its end."""
        self._peer = peer
        self._session = session_id
        self._opened = opened
        self._start_task = start_task

    async def start(self, command: Command, on_output: OnOutput) -> EditorTerminal:
        request = CreateTerminal(
            session_id=self._session,
            command=command.argv[0],
            args=list(command.argv[1:]),
            env=[Variable(name=name, value=value) for name, value in command.env.items()],
            cwd=command.cwd,
            output_byte_limit=MOST_OUTPUT,
        )
        creation: asyncio.Future[TerminalMade] = start_task(_ask(self._peer, request))
        try:
            id = (await asyncio.shield(creation)).terminal_id
        except asyncio.CancelledError:
            self._start_task(
                self._release_late(creation, on_output)
            )  # what is made now must not stay
            raise
        self._opened(command.call or "", id)
        return EditorTerminal(self._peer, self._session, id, on_output)

    async def _release_late(
        self, creation: asyncio.Future[TerminalMade], on_output: OnOutput
    ) -> None:
        try:
            id = (await creation).terminal_id
        except ToolExecutionError:
            return
        await EditorTerminal(self._peer, self._session, id, on_output).release()


class EditorTerminal:
    """A command in a terminal of the editor; `core.commands.Running`."""

    def __init__(self, peer: Peer, session_id: str, id: str, on_output: OnOutput) -> None:
        self._peer = peer
        self._ids: dict[str, Any] = {"session_id": session_id, "terminal_id": id}
        self._on_output = on_output
        self._waiting: asyncio.Future[ExitStatus] | None = None
        self._killing: asyncio.Future[None] | None = None
        self._ended: Exit | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ended is None:  # nobody waits for it any more
            self.stop()
        if self._killing is not None:
            await asyncio.wait([self._killing])
        await asyncio.shield(start_task(self.release()))

    async def wait(self) -> Exit:
        """How it ended, once all that it wrote was passed on."""
        self._waiting = start_task(_ask(self._peer, WaitForExit(**self._ids)))
        try:
            await asyncio.wait([self._waiting])
            status = None if self._waiting.cancelled() else self._waiting.result()
        finally:
            self._waiting.cancel()
        if self._killing is not None:
            await asyncio.wait([self._killing])
        output: Output = await _ask(self._peer, TerminalOutput(**self._ids), _PATIENCE_S)
        if output.truncated:
            self._on_output("stdout", _CUT)
        self._on_output("stdout", output.output.encode("utf-8", "replace"))
        status = status or output.exit_status or ExitStatus()
        signal = _number(status.signal)
        self._ended = Exit(
            code=status.exit_code if signal is None else None,  # a signal is no success
            signal=signal,
            stopped=self._killing is not None,
        )
        return self._ended

    def stop(self, grace: float = GRACE_S) -> bool:
        """Kill it. An editor that then does not say that it has ended is not waited for."""
        if self._ended is not None:
            return False
        if self._killing is None:
            self._killing = start_task(self._tell(KillTerminal(**self._ids)))
            asyncio.get_running_loop().call_later(_PATIENCE_S, self._give_up)
        return True

    def _give_up(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def release(self) -> None:
        await self._tell(ReleaseTerminal(**self._ids))

    async def _tell(self, request: Sent) -> None:
        try:
            await _ask(self._peer, request, _PATIENCE_S)
        except ToolExecutionError as error:
            if (
                error.reason == _EDITOR_GONE
            ):  # nothing comes from it any more, but it may still read
                self._peer.request_unheard(METHODS[type(request)][0], request)
            else:
                _log.warning("%s", error)


_CUT = b"[the editor kept only the end of the output]\n"


async def _ask(peer: Peer, request: Sent, limit_s: float | None = None) -> Any:
    """What the editor answers. `FileNotFoundError` if it has no such file."""
    method, answer = METHODS[type(request)]
    try:
        async with asyncio.timeout(limit_s):
            return read_result(answer, await peer.request(method, request))
    except RpcError as error:
        if error.code == RESOURCE_NOT_FOUND and method.startswith("fs/"):
            raise FileNotFoundError from error
        message = f"The editor refused {method}: {shown(error.message, 200)} ({error.code})."
        raise ToolExecutionError(message, reason="editor_failed") from error
    except Unsendable as error:
        message = f"The editor cannot be told: {error}."
        raise ToolExecutionError(message, reason="editor_failed") from error
    except TimeoutError as error:
        message = f"The editor did not answer {method}."
        raise ToolExecutionError(message, reason="editor_failed") from error
    except PeerGone as error:
        raise ToolExecutionError("The editor has gone.", reason=_EDITOR_GONE) from error


def _number(value: str | int | None) -> int | None:
    """The number of a signal; -1 for one that this system does not know."""
    if not value:
        return None
    name = str(value)
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"].value
    except KeyError:
        return int(name) if name.isdecimal() and len(name) < 4 else -1
