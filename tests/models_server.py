"""A server that speaks the streams of language models: give it replies, it remembers requests.

    async with ModelServer(Says("Hi."), Says(calls=[Asks("read_file", {"path": "a"})])) as server:
        model = OpenAIChatModel("m", ModelTable(kind="openai", model="m", base_url=server.url), None)

The dialect of a reply is that of the request: `/messages`, `/chat/completions`, `/responses`.
`Embeds` answers `/embeddings`.
Each request gets the next reply; where there are no more, the last one again.
"""

from __future__ import annotations

import array
import asyncio
import base64
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Asks:
    """A tool call of a reply."""

    name: str
    input: Any = field(default_factory=dict)
    id: str | None = "call_1"
    raw: str | None = None
    """The arguments as they stand in the stream, instead of `input`."""
    free_text: bool = False

    @property
    def arguments(self) -> str:
        return json.dumps(self.input) if self.raw is None else self.raw


@dataclass(frozen=True)
class Says:
    """A reply that streams."""

    text: str = ""
    thinking: str = ""
    signature: str = "sig-1"
    """Of the thinking; for responses the encrypted content."""
    redacted: str = ""
    calls: list[Asks] = field(default_factory=list)
    stop: str | None = None
    """In the words of the dialect; default: what fits."""
    usage: tuple[int, int, int, int] | None = (10, 5, 3, 2)
    """Input without the cache's, output, read from the cache, written to it."""
    piece: int = 7
    """Characters of a delta."""
    cut: int | None = None
    """Close the connection after so many bytes of the stream."""
    hang: int | None = None
    """Send nothing more after so many bytes."""
    write: int | None = None
    """Bytes of one write; default: all at once."""


@dataclass(frozen=True)
class Fails:
    """An answer that is no stream."""

    status: int
    body: Any = None
    """JSON, unless it is a text."""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Streams:
    """A stream byte for byte."""

    data: bytes
    content_type: str = "text/event-stream"
    cut: bool = False


@dataclass(frozen=True)
class Embeds:
    """A vector for each text: texts of like meaning have like ones."""

    dimensions: int = 64
    refuses: str | None = None
    """A word because of which a request is refused, as servers do with texts that are too long."""
    says: str = "input is too large to process"
    waits: asyncio.Event | None = None
    """Until it is set nothing is answered but the first few requests."""
    first: int = 1

    def vector(self, text: str) -> list[float]:
        """Concepts have places of their own; every other word a small part somewhere."""
        numbers = [0.0] * self.dimensions
        for word in re.findall(r"\w+", text.lower()):
            concept = next((n for n, words in enumerate(CONCEPTS) if word in words), None)
            if concept is not None:
                numbers[concept] += 1.0
            else:
                place = zlib.crc32(word.encode()) % (self.dimensions - len(CONCEPTS))
                numbers[len(CONCEPTS) + place] += 0.3
        return numbers

    def answer(self, request: Any) -> dict[str, Any]:
        given = request["input"]
        texts = [given] if isinstance(given, str) else given
        rows: list[dict[str, Any]] = [
            {"object": "embedding", "index": index, "embedding": self._encoded(text, request)}
            for index, text in enumerate(texts)
        ]
        count = sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": rows[::-1], "model": request["model"], "usage": usage}

    def _encoded(self, text: str, request: Any) -> Any:
        vector = self.vector(text)
        if request.get("encoding_format") != "base64":
            return vector
        return base64.b64encode(array.array("f", vector).tobytes()).decode()


CONCEPTS = (
    {"car", "cars", "automobile", "vehicle"},
    {"doctor", "physician"},
    {"money", "cash", "currency"},
)


@dataclass(frozen=True)
class Hangs:
    """No answer at all."""


@dataclass(frozen=True)
class Leaves:
    """The connection is closed before any answer."""


Answer = Says | Fails | Streams | Embeds | Hangs | Leaves


@dataclass(frozen=True)
class Request:
    target: str
    headers: dict[str, str]
    body: Any


class ModelServer:
    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[Request] = []
        self.connections = 0
        self.left = asyncio.Event()
        """Set when a client has closed its connection."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            stack.callback(self._server.close)
            self._tasks: set[asyncio.Task[None]] = set()
            stack.push_async_callback(self._end)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; True if the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"null")
        target = head[0].split(" ")[1]
        self.requests.append(Request(target, headers, body))
        answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
        if isinstance(answer, Hangs):
            return await self._until_left(reader)
        if isinstance(answer, Leaves):
            return False
        if isinstance(answer, Embeds):
            if answer.waits is not None and len(self.requests) > answer.first:
                await answer.waits.wait()
            if answer.refuses is not None and answer.refuses in str(body["input"]):
                answer = Fails(500, {"error": {"message": answer.says}})
            else:
                answer = Fails(200, answer.answer(body))
        if isinstance(answer, Fails):
            return await _fail(writer, answer)
        if isinstance(answer, Streams):
            await _begin(writer, answer.content_type)
            await _chunk(writer, answer.data)
            return False if answer.cut else await _chunk(writer, b"")
        data = stream(answer, target, body)
        await _begin(writer)
        whole = data[: min(x for x in (answer.cut, answer.hang, len(data)) if x is not None)]
        for start in range(0, len(whole), answer.write or max(len(whole), 1)):
            await _chunk(writer, whole[start : start + (answer.write or len(whole))])
        if answer.cut is not None:
            return False
        if answer.hang is not None:
            return await self._until_left(reader)
        return await _chunk(writer, b"")

    async def _until_left(self, reader: asyncio.StreamReader) -> bool:
        while await reader.read(1024):
            pass
        self.left.set()
        return False


async def _begin(writer: asyncio.StreamWriter, content_type: str = "text/event-stream") -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    await writer.drain()


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> bool:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()
    return True


async def _fail(writer: asyncio.StreamWriter, answer: Fails) -> bool:
    body = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} Said", *(f"{k}: {v}" for k, v in headers.items())]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    await writer.drain()
    return True


def stream(reply: Says, target: str, request: Any) -> bytes:
    """The bytes of a reply in the dialect of a request."""
    model = (request or {}).get("model", "")
    dialect = next(made for path, made in DIALECTS.items() if target.endswith(path))
    return b"".join(dialect(reply, model))


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _named(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def anthropic(reply: Says, model: str) -> Iterator[bytes]:
    given, out, read, written = reply.usage or (0, 0, 0, 0)
    usage = {
        "input_tokens": given,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": 1,
        "service_tier": "standard",
    }
    yield _named(
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": model,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": usage,
            },
        }
    )
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if reply.thinking:
        deltas = [{"type": "thinking_delta", "thinking": each} for each in _pieces(reply.thinking, reply.piece)]
        deltas.append({"type": "signature_delta", "signature": reply.signature})
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if reply.redacted:
        blocks.append(({"type": "redacted_thinking", "data": reply.redacted}, []))
    if reply.text:
        blocks.append(
            (
                {"type": "text", "text": ""},
                [{"type": "text_delta", "text": each} for each in _pieces(reply.text, reply.piece)],
            )
        )
    for call in reply.calls:
        texts = ["", *_pieces(call.arguments, reply.piece)]
        begun = {"type": "tool_use", "id": call.id or "", "name": call.name, "input": {}}
        blocks.append((begun, [{"type": "input_json_delta", "partial_json": each} for each in texts]))
    for index, (begun, deltas) in enumerate(blocks):
        yield _named({"type": "content_block_start", "index": index, "content_block": begun})
        if index == 0:
            yield _named({"type": "ping"})
        for delta in deltas:
            yield _named({"type": "content_block_delta", "index": index, "delta": delta})
        yield _named({"type": "content_block_stop", "index": index})
    stop = reply.stop or ("tool_use" if reply.calls else "end_turn")
    ended = {"stop_reason": stop, "stop_sequence": None}
    yield _named({"type": "message_delta", "delta": ended, "usage": {"output_tokens": out}})
    yield _named({"type": "message_stop"})


def openai_chat(reply: Says, model: str) -> Iterator[bytes]:
    def chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
        made = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": model,
            "choices": choices,
            **more,
        }
        return f"data: {json.dumps(made, ensure_ascii=False)}\n\n".encode()

    def delta(finish: str | None = None, **said: Any) -> bytes:
        return chunk([{"index": 0, "delta": said, "logprobs": None, "finish_reason": finish}])

    yield delta(role="assistant", content="", refusal=None)
    for each in _pieces(reply.thinking, reply.piece):
        yield delta(reasoning_content=each)
    for each in _pieces(reply.text, reply.piece):
        yield delta(content=each)
    for index, call in enumerate(reply.calls):
        identity = {} if call.id is None else {"id": call.id}
        function = {"name": call.name, "arguments": ""}
        yield delta(tool_calls=[{"index": index, **identity, "type": "function", "function": function}])
        for each in _pieces(call.arguments, reply.piece):
            yield delta(tool_calls=[{"index": index, "function": {"arguments": each}}])
    yield delta(finish=reply.stop or ("tool_calls" if reply.calls else "stop"))
    if reply.usage is not None:
        given, out, read, written = reply.usage
        total = given + read + written
        details = {"cached_tokens": read, "cache_write_tokens": written}
        counted = {
            "prompt_tokens": total,
            "completion_tokens": out,
            "total_tokens": total + out,
            "prompt_tokens_details": details,
        }
        yield chunk([], usage=counted)
    yield b"data: [DONE]\n\n"


def openai_responses(reply: Says, model: str) -> Iterator[bytes]:
    sent = -1

    def event(type: str, **more: Any) -> bytes:
        nonlocal sent
        sent += 1
        return _named({"type": f"response.{type}", "sequence_number": sent, **more})

    response: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "in_progress",
        "model": model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }
    yield event("created", response=response)
    yield event("in_progress", response=response)
    output: list[dict[str, Any]] = []
    for item, deltas in _items(reply):
        index = len(output)
        empty = {
            **item,
            "status": "in_progress",
            **{key: type(item[key])() for key in ("arguments", "input", "content", "summary") if key in item},
        }
        yield event("output_item.added", output_index=index, item=empty)
        for name, more in deltas:
            yield event(name, item_id=item["id"], output_index=index, **more)
        output.append(item)
        yield event("output_item.done", output_index=index, item=item)
    given, out, read, written = reply.usage or (0, 0, 0, 0)
    total = given + read + written
    details = {"cached_tokens": read, "cache_write_tokens": written}
    usage = {
        "input_tokens": total,
        "input_tokens_details": details,
        "output_tokens": out,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total + out,
    }
    status = "incomplete" if reply.stop else "completed"
    why = {"reason": reply.stop} if reply.stop else None
    ended = {
        **response,
        "status": status,
        "output": output,
        "incomplete_details": why,
        "usage": usage if reply.usage else None,
    }
    yield event(status, response=ended)


def _items(reply: Says) -> Iterator[tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]]:
    size = reply.piece
    if reply.thinking:
        summary = {"type": "summary_text", "text": reply.thinking}
        begun = {"summary_index": 0, "part": {"type": "summary_text", "text": ""}}
        told = [
            ("reasoning_summary_text.delta", {"summary_index": 0, "delta": each})
            for each in _pieces(reply.thinking, size)
        ]
        item = {"id": "rs_1", "type": "reasoning", "summary": [summary], "encrypted_content": reply.signature}
        yield item, [("reasoning_summary_part.added", begun), *told]
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        at = {"content_index": 0}
        told = [("output_text.delta", {**at, "delta": each, "logprobs": []}) for each in _pieces(reply.text, size)]
        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        yield (
            item,
            [
                ("content_part.added", {**at, "part": {**part, "text": ""}}),
                *told,
                ("output_text.done", {**at, "text": reply.text, "logprobs": []}),
                ("content_part.done", {**at, "part": part}),
            ],
        )
    for number, call in enumerate(reply.calls):
        named = {"call_id": call.id or "", "name": call.name, "status": "completed"}
        if call.free_text:
            item = {"id": f"ctc_{number}", "type": "custom_tool_call", **named, "input": call.raw}
            kind, whole = "custom_tool_call_input", "input"
        else:
            item = {"id": f"fc_{number}", "type": "function_call", **named, "arguments": call.arguments}
            kind, whole = "function_call_arguments", "arguments"
        told = [(f"{kind}.delta", {"delta": each}) for each in _pieces(str(item[whole]), size)]
        yield item, [*told, (f"{kind}.done", {whole: item[whole], "name": call.name})]


DIALECTS: dict[str, Callable[[Says, str], Iterator[bytes]]] = {
    "/messages": anthropic,
    "/chat/completions": openai_chat,
    "/responses": openai_responses,
}
