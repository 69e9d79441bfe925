"""A model that plays a script: for demonstrations and tests, without a network or a key.

    chunk = 12                  # characters of a piece; default: all in one piece
    delay_s = 0.02              # before each piece

    [[replies]]
    expect = "read"             # what the last message of the user must contain
    thinking = "I need the file."
    text = "Let me look."
    calls = [{ tool = "read_file", input = { path = "README.md" } }]

    [[replies]]
    text = "It is a small project."

Each request gets the next reply. A model in text mode writes a reply with calls in the text format,
with its `text` as a `send_chat`, and plays a `text` alone unchanged. `raw` is an input as text,
which is parsed like the input of any model. `error` ends a reply like an error of a server.
"""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any

import msgspec

from callgate.config.schema import Count
from callgate.core.content import JsonBlock, Message, SummaryBlock, TextBlock, ToolResultBlock
from callgate.core.models import (
    ModelError,
    ModelErrorKind,
    Piece,
    Price,
    Prompt,
    StopReason,
    Usage,
)
from callgate.features.chat.models.prompts import plain, text_of, used_ids
from callgate.features.chat.models.replies import Draft, Text, Thought, Use
from callgate.features.chat.settings import ModelTable

CONTEXT_TOKENS = 200_000
MAX_BYTES = 8 * 1024 * 1024

Delay = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ScriptedCall(_Table, frozen=True):
    tool: str
    input: dict[str, Any] = {}
    raw: str | None = None
    """Replaces `input`; may be invalid JSON."""
    id: str | None = None


class ScriptedReply(_Table, frozen=True):
    expect: str | None = None
    thinking: str = ""
    text: str = ""
    calls: list[ScriptedCall] = []
    stop: StopReason | None = None
    error: ModelErrorKind | None = None
    """The error that ends the reply."""
    usage: Usage = Usage()
    chunk: Count | None = None
    delay_s: Delay | None = None


class Script(_Table, frozen=True):
    chunk: Count | None = None
    delay_s: Delay = 0.0
    repeat: bool = False
    """Start again after the last reply."""
    replies: list[ScriptedReply] = []


BUILT_IN = Script(
    repeat=True,
    replies=[
        ScriptedReply(
            text="I am a script, not a language model. I list this directory.",
            calls=[ScriptedCall(tool="list_dir", input={"path": "."})],
        ),
        ScriptedReply(
            text="That was a real call, checked by your policy and recorded (callgate audit tail). "
            "I cannot do more; callgate chat --model ollama/llama3 talks to a language model."
        ),
    ],
)
"""The script of the model `scripted`, which needs no file, key or network."""


def read_script(path: str) -> Script:
    """Return the script in a file. Raises `ModelError` if it is invalid."""
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES).decode()
        return msgspec.convert(tomllib.loads(text), Script)
    except OSError as error:
        raise _wrong(path, error.strerror or "cannot be read") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or not a script
        raise _wrong(path, str(error)) from None


def _wrong(path: str, problem: str) -> ModelError:
    return ModelError(ModelErrorKind.REQUEST, f"The script {path} cannot be played: {problem}.")


class ScriptedModel:
    def __init__(self, name: str, table: ModelTable, script: Script | None = None) -> None:
        """`script` replaces the script of the table's `path`."""
        self.name = name
        self.images = table.images is not False
        self.native_tools = table.tools == "native"
        self.constrained = bool(table.constrain)
        self.small = bool(table.small)
        self.catalogue_names = table.names == "catalogue"
        self.context_tokens = table.context_tokens or CONTEXT_TOKENS
        self.price: Price | None = table.price
        if script is None:
            script = read_script(os.path.expanduser(table.path or ""))
        self._script = script
        self._played = 0
        self.prompts: list[Prompt] = []
        """The prompts so far."""

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        self.prompts.append(prompt)
        reply = self._next(prompt)
        delay = self._script.delay_s if reply.delay_s is None else reply.delay_s
        draft = Draft(used_ids(prompt.messages))
        for piece in self._pieces(reply, draft):
            if delay:
                await asyncio.sleep(delay)
            yield piece
        if reply.error is not None:
            raise ModelError(reply.error, "The script ends this reply with an error.")
        draft.usage = reply.usage
        draft.model = "scripted"
        stop = reply.stop or "end_turn"
        yield draft.reply(stop, complete=stop in ("end_turn", "tool_use"))

    async def close(self) -> None:
        """Do nothing."""

    def _next(self, prompt: Prompt) -> ScriptedReply:
        replies = self._script.replies
        if not replies or (self._played >= len(replies) and not self._script.repeat):
            raise ModelError(ModelErrorKind.REQUEST, "The script has no more replies.")
        reply = replies[self._played % len(replies)]
        if reply.expect is not None and reply.expect not in _last_said(prompt):
            raise ModelError(
                ModelErrorKind.REQUEST,
                f"Reply {self._played + 1} of the script expects {reply.expect!r} in the prompt.",
            )
        self._played += 1
        return reply

    def _pieces(self, reply: ScriptedReply, draft: Draft) -> Iterator[Piece]:
        chunk = reply.chunk or self._script.chunk
        if reply.thinking:
            yield from _pieces(draft.add(Thought()), reply.thinking, chunk)
        text = reply.text
        if reply.calls and not self.native_tools:
            calls = [ScriptedCall(tool="send_chat", input={"content": text})] if text else []
            text = _as_text([*calls, *reply.calls])
        if text:
            yield from _pieces(draft.add(Text()), text, chunk)
        for call in reply.calls if self.native_tools else ():
            use = draft.use(call.id, call.tool)
            yield from _pieces(use, _input(call), chunk)
            use.closed = True


def _pieces(part: Text | Thought | Use, text: str, chunk: int | None) -> Iterator[Piece]:
    size = chunk or len(text)
    for start in range(0, len(text), size):
        yield part.add(text[start : start + size])


def _input(call: ScriptedCall) -> str:
    return msgspec.json.encode(call.input).decode() if call.raw is None else call.raw


def _as_text(calls: list[ScriptedCall]) -> str:
    """Return the calls in the text format."""
    written = [
        f'{{"type": {_json(call.tool)}, "id": {_json(call.id or f"c{number}")}, '
        f'"operation": {_json(call.tool)}, "parameters": {_input(call)}}}'
        for number, call in enumerate(calls, 1)
    ]
    return f'{{"toolCalls": [{", ".join(written)}]}}'


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _last_said(prompt: Prompt) -> str:
    """Return the last user message: its text, and the results in it."""
    for message in reversed(prompt.messages):
        if message.role == "user":
            return "\n".join(_texts(message))
    return ""


def _texts(message: Message) -> Iterator[str]:
    for block in message.content:
        if isinstance(block, TextBlock | JsonBlock | SummaryBlock):
            yield text_of(block)
        elif isinstance(block, ToolResultBlock):
            yield plain(block.content)[0]
