"""One session in an editor: what was said in it, the buffers and terminals that it offers."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.features.editor.acp.editor import Editor

Answer = Callable[[dict[str, Any]], Any]
FINAL = ("completed", "failed")
_TURN = frozenset(
    {"agent_message_chunk", "agent_thought_chunk", "user_message_chunk", "tool_call", "tool_call_update", "plan"}
)
"""What is told only while a prompt is answered or a session loaded."""


class Fault(Exception):
    """A JSON-RPC error, theirs or ours."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Talk:
    def __init__(self, editor: Editor, id: str, cwd: Path) -> None:
        self.editor = editor
        self.id = id
        self.cwd = cwd
        self.opened: dict[str, Any] = {}
        """How the agent answered when the session was opened."""
        self.wire: list[tuple[str, dict[str, Any]]] = []
        """Updates, requests of the agent and answers to us, in their order, each with its kind."""
        self.buffers: dict[str, str] = {}
        self.terminals = Terminals()
        self.answers: dict[str, Answer] = {
            "fs/read_text_file": self._read,
            "fs/write_text_file": self._write,
            **self.terminals.answers,
        }

    # What a person does.

    def start(self, prompt: str | list[dict[str, Any]]) -> asyncio.Future[Any]:
        blocks = [{"type": "text", "text": prompt}] if isinstance(prompt, str) else prompt
        self.wire.append(("prompt", {"prompt": blocks}))
        return self.editor.start("session/prompt", {"sessionId": self.id, "prompt": blocks})[1]

    async def prompt(self, prompt: str | list[dict[str, Any]]) -> str:
        """The stop reason; a `Fault` where the agent answers with an error."""
        result: dict[str, Any] = await asyncio.wait_for(self.start(prompt), 60)
        return str(result["stopReason"])

    async def tool(self, name: str, input: str) -> dict[str, Any]:
        """One call without a model: the last state of its card."""
        before = len(self.wire)
        assert await self.prompt(f"/tool {name} {input}") == "end_turn"
        cards = self.cards(before)
        assert len(cards) == 1, cards
        return cards[0]

    def cancel(self) -> None:
        self.editor.notify("session/cancel", {"sessionId": self.id})

    async def set_mode(self, mode: str) -> None:
        assert await self.ask("session/set_mode", modeId=mode) == {}

    async def close(self) -> None:
        assert await self.ask("session/close") == {}

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.editor.ask(method, {"sessionId": self.id, **params})

    async def refused(self, method: str, **params: Any) -> int:
        return await self.editor.refused(method, {"sessionId": self.id, **params})

    def allow(self, *kinds: str) -> None:
        """Answer questions with these kinds of option, the last one from then on."""
        left = list(kinds)

        def choose(params: dict[str, Any]) -> dict[str, Any]:
            kind = left.pop(0) if len(left) > 1 else left[0]
            chosen = next(each for each in params["options"] if each["kind"] == kind)
            return {"outcome": {"outcome": "selected", "optionId": chosen["optionId"]}}

        self.answers["session/request_permission"] = choose

    # What was said.

    def updates(self, kind: str, since: int = 0) -> list[dict[str, Any]]:
        return [said for name, said in self.wire[since:] if name == kind]

    def asked(self, method: str = "") -> list[dict[str, Any]]:
        """What the agent wanted of us."""
        return [said for name, said in self.wire if name == method]

    def kinds(self) -> list[str]:
        return [name for name, _ in self.wire]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(said["content"].get("text", "") for said in self.updates(kind))

    def cards(self, since: int = 0) -> list[dict[str, Any]]:
        """Each tool call as an editor shows it: the first message with every later one over it."""
        made: dict[str, dict[str, Any]] = {}
        for kind, said in self.wire[since:]:
            if kind in ("tool_call", "tool_call_update"):
                fields = {name: value for name, value in said.items() if name != "sessionUpdate"}
                made.setdefault(said["toolCallId"], {}).update(fields)
        return list(made.values())

    def statuses(self, id: str) -> list[str]:
        """The states of a card, in their order, without repetitions."""
        said = [
            told["status"]
            for kind, told in self.wire
            if kind in ("tool_call", "tool_call_update") and told["toolCallId"] == id and told.get("status")
        ]
        return [status for status, _ in itertools.groupby(said)]

    async def seen(self, kind: str, count: int = 1) -> None:
        """Wait until so many of a kind were said."""
        await self.editor.until(lambda: self.kinds().count(kind) >= count)

    def broken(self) -> Iterator[str]:
        """Which rules of the protocol this session broke."""
        finals: dict[str, int] = {}
        prompts, opened = 0, False
        for kind, said in self.wire:
            if kind == "prompt":
                prompts += 1
            elif kind in _TURN and opened and not prompts:
                yield f"{kind} outside a turn: {said}"
            elif kind.startswith("answer "):
                opened = True
                prompts -= kind == "answer session/prompt"
                if not prompts:
                    yield from (f"{id} never ended: {self.cards()}" for id, count in finals.items() if not count)
            if kind == "tool_call":
                if said["toolCallId"] in finals:
                    yield f"announced twice: {said}"
                finals[said["toolCallId"]] = int(said.get("status") in FINAL)
                yield from _misplaced(said)
            elif kind == "tool_call_update":
                if said["toolCallId"] not in finals:
                    yield f"never announced: {said}"
                elif said.get("status") in FINAL:
                    finals[said["toolCallId"]] += 1
                    if finals[said["toolCallId"]] > 1:
                        yield f"ended twice: {said}"
                elif said.get("status") and finals[said["toolCallId"]]:
                    yield f"alive after its end: {said}"
                yield from _misplaced(said)

    # What the editor offers.

    def _read(self, params: dict[str, Any]) -> dict[str, Any]:
        text = self.buffers.get(params["path"])
        if text is None:
            raise Fault(-32002, "Resource not found")
        lines = text.splitlines(keepends=True)
        first = (params.get("line") or 1) - 1
        limit = params.get("limit")
        return {"content": "".join(lines[first : None if limit is None else first + limit])}

    def _write(self, params: dict[str, Any]) -> dict[str, Any]:
        self.buffers[params["path"]] = params["content"]
        return {}


def _misplaced(said: dict[str, Any]) -> Iterator[str]:
    for place in said.get("locations") or ():
        if not os.path.isabs(place["path"]):
            yield f"not an absolute path: {said}"


class Terminals:
    """Real commands, as an editor's terminal runs them; notes each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.fault: dict[str, int] = {}
        """By method: the code of the error it is answered with."""
        self._running: dict[str, tuple[asyncio.subprocess.Process, asyncio.Task[bytes]]] = {}
        self._read: dict[str, bytearray] = {}
        self._grown = asyncio.Event()

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.requests]

    async def said(self, text: bytes) -> None:
        """Wait until a command has written this."""
        while not any(text in read for read in self._read.values()):
            self._grown.clear()
            await self._grown.wait()

    @property
    def answers(self) -> dict[str, Answer]:
        return {
            f"terminal/{name}": self._noted(f"terminal/{name}", getattr(self, f"_{name}"))
            for name in ("create", "output", "wait_for_exit", "kill", "release")
        }

    def _noted(self, method: str, answer: Answer) -> Answer:
        async def noted(params: dict[str, Any]) -> Any:
            self.requests.append((method, params))
            if method in self.fault:
                raise Fault(self.fault[method], "the terminal is broken")
            return await answer(params)

        return noted

    async def _create(self, params: dict[str, Any]) -> dict[str, Any]:
        id = f"t{len(self._running) + 1}"
        process = await asyncio.create_subprocess_exec(
            params["command"],
            *params.get("args", ()),
            cwd=params.get("cwd"),
            env={**os.environ, **{each["name"]: each["value"] for each in params.get("env", ())}},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        kept = self._read[id] = bytearray()
        assert process.stdout is not None

        async def read() -> bytes:
            while piece := await process.stdout.read(65536):  # type: ignore[union-attr]
                kept.extend(piece)
                self._grown.set()
            return bytes(kept)

        self._running[id] = (process, asyncio.ensure_future(read()))
        return {"terminalId": id}

    async def _output(self, params: dict[str, Any]) -> dict[str, Any]:
        process, _ = self._running[params["terminalId"]]
        said = {"output": self._read[params["terminalId"]].decode(errors="replace"), "truncated": False}
        return said if process.returncode is None else {**said, "exitStatus": _status(process.returncode)}

    async def _wait_for_exit(self, params: dict[str, Any]) -> dict[str, Any]:
        process, read = self._running[params["terminalId"]]
        await asyncio.shield(read)
        return _status(await process.wait())

    async def _kill(self, params: dict[str, Any]) -> dict[str, Any]:
        self._end(params["terminalId"])
        return {}

    async def _release(self, params: dict[str, Any]) -> dict[str, Any]:
        self._end(params["terminalId"])
        return {}

    def _end(self, id: str) -> None:
        process, _ = self._running[id]
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    async def close(self) -> None:
        for id, (process, read) in self._running.items():
            self._end(id)
            await process.wait()
            await read


def _status(code: int) -> dict[str, Any]:
    if code >= 0:
        return {"exitCode": code, "signal": None}
    return {"exitCode": None, "signal": signal.Signals(-code).name}
