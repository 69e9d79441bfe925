"""An editor as an agent sees it: it starts the agent, talks to it in lines, and believes nothing.

    async with Editor.opened(home) as editor:
        talk = await editor.new(directory)
        talk.allow("allow_once")
        assert await talk.prompt("/tool write_file {...}") == {"stopReason": "end_turn"}

Every line that the agent writes must be a message that is valid by the published schema, answers
must belong to a question, and each session must keep the rules of `Talk.broken`. What is wrong is
collected in `Editor.problems`, which the fixtures look at when a test has ended.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.features.editor.acp.published import Published
from tests.features.editor.acp.talks import Answer, Fault, Talk

LIMIT_S = 60.0
CALLGATE = (sys.executable, "-m", "callgate")
EVERYTHING: dict[str, Any] = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "session": {"configOptions": {"boolean": {}}, "notices": {}, "compaction": {}},
}
NOTHING: dict[str, Any] = {}
CLIENT = {"name": "a test editor", "title": "Test", "version": "7.8.9"}
_OPENS = ("session/new", "session/load", "session/resume", "session/fork")


@dataclass(frozen=True)
class _Asked:
    method: str
    params: Any
    answer: asyncio.Future[Any]


class Editor:
    def __init__(self, process: asyncio.subprocess.Process, home: Path, *, unstable: bool = False) -> None:
        self.process = process
        self.home = home
        self.log = _log(home)
        self.lines: list[bytes] = []
        """Everything on the agent's stdout."""
        self.received: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.talks: dict[str, Talk] = {}
        self.loose: set[int | str] = set()
        """Ids whose answers a test looks at itself."""
        self.ended = asyncio.Event()
        """Set when the agent's stdout is closed."""
        self.greeting: dict[str, Any] = {}
        self.answers: dict[str, Answer] = {}
        """To requests that are about no session."""
        self._published = Published(unstable=unstable)
        self._asked: dict[int | str, _Asked] = {}
        self._answering: dict[int | str, asyncio.Task[None]] = {}
        self._ids = itertools.count(1)
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def spawned(
        cls,
        home: Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        command: tuple[str, ...] = CALLGATE,
        subcommand: str = "acp",
        cwd: Path | None = None,
        unstable: bool = False,
    ) -> Editor:
        """An agent that nobody has greeted yet; end it with `stop`."""
        with open(_log(home), "ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *command,
                subcommand,
                *arguments,
                cwd=cwd,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env={**environment(home), **(env or {})},
                limit=64 * 1024 * 1024,
                start_new_session=True,
            )
        return cls(process, home, unstable=unstable)

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, home: Path, *arguments: str, capabilities: dict[str, Any] = NOTHING, **more: Any
    ) -> AsyncIterator[Editor]:
        editor = await cls.spawned(home, *arguments, **more)
        try:
            await editor.greet(capabilities)
            yield editor
        finally:
            await editor.stop()
        assert editor.problems == []

    async def greet(self, capabilities: dict[str, Any]) -> dict[str, Any]:
        asked = {"protocolVersion": 1, "clientCapabilities": capabilities, "clientInfo": CLIENT}
        self.greeting = await self.ask("initialize", asked)
        return self.greeting

    async def stop(self) -> int:
        """Close its stdin, as an editor that quits; twice equals once."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            code = await asyncio.wait_for(self.process.wait(), LIMIT_S)
        except TimeoutError:
            self.problems.append("the agent did not end with its stdin")
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            code = await self.process.wait()
        await asyncio.wait_for(self._reader, LIMIT_S)
        for task in list(self._answering.values()):
            task.cancel()
        await asyncio.gather(*self._answering.values(), return_exceptions=True)
        for talk in self.talks.values():
            await talk.terminals.close()
        return code

    # What we say.

    def send_line(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")

    def send(self, *messages: dict[str, Any]) -> None:
        """Several messages leave in one write."""
        self.send_line(b"\n".join(json.dumps(each).encode() for each in messages))

    def notify(self, method: str, params: Any) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def start(self, method: str, params: Any, id: int | str | None = None) -> tuple[int | str, asyncio.Future[Any]]:
        """A question under way: its id, and its answer to come."""
        id = next(self._ids) if id is None else id
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[id] = _Asked(method, params, answer)
        if method in ("session/load", "session/resume"):
            self.talks[params["sessionId"]] = Talk(self, params["sessionId"], Path(params["cwd"]))
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        return id, answer

    async def ask(self, method: str, params: Any) -> Any:
        """The result; a `Fault` where the agent answers with an error."""
        _, answer = self.start(method, params)
        return await asyncio.wait_for(answer, LIMIT_S)

    async def refused(self, method: str, params: Any) -> int:
        """The code of the error with which the agent must answer."""
        try:
            result = await self.ask(method, params)
        except Fault as fault:
            return fault.code
        raise AssertionError(f"{method} was answered: {result}")

    async def new(self, cwd: Path, mode: str | None = None, **more: Any) -> Talk:
        opened = await self.ask("session/new", {"cwd": str(cwd), "mcpServers": [], **more})
        talk = self.talks[opened["sessionId"]]
        if mode is not None:
            await talk.set_mode(mode)
        return talk

    async def load(self, id: str, cwd: Path, method: str = "session/load", **more: Any) -> Talk:
        await self.ask(method, {"sessionId": id, "cwd": str(cwd), "mcpServers": [], **more})
        return self.talks[id]

    async def resume(self, id: str, cwd: Path) -> Talk:
        return await self.load(id, cwd, "session/resume")

    # What we hear.

    async def until(self, holds: Callable[[], Any]) -> None:
        """Wait until something holds; looked at after each message."""
        if holds():
            return
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append((holds, seen))
        await asyncio.wait_for(seen, LIMIT_S)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(line)
            try:
                self._take(line)
            except (ValueError, KeyError, TypeError) as error:
                self.problems.append(f"{type(error).__name__} {error} in {line[:500]!r}")
            self._look()
        self.ended.set()
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(ConnectionError(f"the agent ended before it answered {asked.method}"))
                asked.answer.exception()
        self._asked.clear()
        self._look()

    def _look(self) -> None:
        for holds, seen in list(self._watchers):
            if seen.done():
                self._watchers.remove((holds, seen))
            elif holds():
                self._watchers.remove((holds, seen))
                seen.set_result(None)

    def _take(self, line: bytes) -> None:
        message = json.loads(line.decode("utf-8"))
        if not isinstance(message, dict) or not line.endswith(b"\n"):
            self.problems.append(f"no message: {line[:500]!r}")
            return
        self.received.append(message)
        asked = None if "method" in message else self._asked.pop(message["id"], None)
        method = None if asked is None else asked.method
        if "result" in message and asked is None:
            if message["id"] not in self.loose:
                self.problems.append(f"an answer to nothing: {message}")
            return
        self.problems += [
            f"{method or message.get('method')}: {each}" for each in self._published.problems(message, method)
        ]
        if asked is not None:
            self._answered(asked, message)
        elif "method" in message:
            self._said(message)

    def _answered(self, asked: _Asked, message: dict[str, Any]) -> None:
        id = (asked.params or {}).get("sessionId") if isinstance(asked.params, dict) else None
        if "result" in message and asked.method in _OPENS:
            opened = message["result"]
            id = opened.get("sessionId", id)
            if asked.method in ("session/new", "session/fork"):
                self.talks[id] = Talk(self, id, Path(asked.params["cwd"]))
            self.talks[id].opened = opened
        if id in self.talks:
            self.talks[id].wire.append((f"answer {asked.method}", message))
        if asked.answer.done():
            return
        if "error" in message:
            error = message["error"]
            asked.answer.set_exception(Fault(error["code"], error["message"], error.get("data")))
            asked.answer.exception()  # whoever waits sees it; nobody has to
        else:
            asked.answer.set_result(message["result"])

    def _said(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message["params"]
        if method == "$/cancel_request":
            if task := self._answering.get(params["requestId"]):
                task.cancel()
            return
        talk = self.talks.get(params.get("sessionId"))
        if method in self.answers:
            pass
        elif talk is None:
            self.problems.append(f"{method} for a session that nobody opened: {params}")
        elif "id" not in message:
            talk.wire.append((params["update"]["sessionUpdate"], params["update"]))
        if "id" in message:
            if talk is not None:
                talk.wire.append((method, params))
            task = asyncio.ensure_future(self._reply(message["id"], talk, method, params))
            self._answering[message["id"]] = task
            task.add_done_callback(lambda _: self._answering.pop(message["id"], None))

    async def _reply(self, id: int | str, talk: Talk | None, method: str, params: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": id}
        try:
            answer: Answer | None = self.answers.get(method)
            if talk is None and answer is None:
                raise Fault(-32602, "no such session")
            if talk is not None:
                answer = talk.answers.get(method)
            if answer is None:
                self.problems.append(f"{method} was not offered: {params}")
                raise Fault(-32601, "not offered")
            result = answer(params)
            reply["result"] = await result if isinstance(result, Awaitable) else result
        except Fault as fault:
            reply["error"] = {"code": fault.code, "message": str(fault)}
        except asyncio.CancelledError:
            reply["error"] = {"code": -32800, "message": "Request cancelled"}
        with suppress(ConnectionError, RuntimeError):
            self.send(reply)
        self._look()

    def broken(self) -> Iterator[str]:
        """What was wrong so far, with the connection or a session."""
        yield from self.problems
        for talk in self.talks.values():
            yield from talk.broken()

    def logged(self) -> str:
        return self.log.read_text(errors="replace")


def _log(home: Path) -> Path:
    """Where the stderr of all agents of a home goes."""
    return home.parent / f"{home.name}.log"


def environment(home: Path) -> dict[str, str]:
    """A person's environment, without what the tests themselves run in."""
    return {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(home.parent),
        "CALLGATE_HOME": str(home),
    }
