"""One turn: call the model, run its calls, return their results to it, until it is done.

`Telling` emits the events of the turn, redacted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.content import Message, TextBlock, ToolResultBlock
from callgate.core.events import (
    CHAT_DELTA,
    COMPACTED,
    DIAGNOSED,
    LLM_CALLED,
    LLM_COMPLETED,
    LLM_FAILED,
    LLM_RETRYING,
    NOTICE,
    Actor,
)
from callgate.core.models import (
    Model,
    ModelError,
    ModelErrorKind,
    Reply,
    Retrying,
    TextDelta,
    ThinkingDelta,
    ToolUseDelta,
    Usage,
)
from callgate.core.sessions import Session
from callgate.core.stores import StoreError
from callgate.core.tools import ToolDefinition
from callgate.features.chat.agent.history import Context, History
from callgate.features.chat.agent.outputs import Outputs
from callgate.features.chat.agent.prompts import prompt_for, tools_for
from callgate.features.chat.agent.replies import (
    Batch,
    LeftOpen,
    NativeReading,
    Read,
    Reading,
    TextReading,
)
from callgate.protocol.toolcalls.values import TYPES
from callgate.redaction.texts import redact
from callgate.runtime import Runtime
from callgate.sessions.conversations import Conversations
from callgate.sessions.shows import Asked, Noticed, Screen, Thought, TurnEnd, TurnStop, Writing

MOST_SAID = 20
"""Maximum number of reported parse errors of one reply."""


class Telling:
    """Each method emits one event and returns its id."""

    def __init__(self, conversations: Conversations, session: Session) -> None:
        self._conversations = conversations
        self._session = session

    def tell(self, event_type: str, payload: Mapping[str, Any], parent: str | None = None) -> str:
        shown = {key: redact(v) if isinstance(v, str) else v for key, v in payload.items()}
        actor: Actor = "system" if event_type == NOTICE else "agent"
        keep = event_type != CHAT_DELTA
        emit = self._conversations.emit
        return emit(self._session, event_type, actor, shown, keep=keep, parent=parent)

    def called(self, model: Model, tools: int) -> str:
        return self.tell(LLM_CALLED, {"model": model.name, "tools": tools})

    def completed(self, reply: Reply, model: Model, took_s: float, parent: str) -> str:
        payload = {
            "model": reply.model or model.name,
            "stop_reason": reply.stop,
            "latency_ms": round(took_s * 1e3, 1),
            **_counted(reply.usage),
        }
        if model.price is not None:
            payload["cost_usd"] = model.price.of(reply.usage)
        return self.tell(LLM_COMPLETED, payload, parent)

    def failed(self, kind: str, message: str, parent: str) -> str:
        return self.tell(LLM_FAILED, {"kind": kind, "message": message}, parent)

    def retrying(self, again: Retrying, parent: str) -> str:
        payload = {"kind": again.kind, "message": again.message, "wait_s": again.wait_s}
        return self.tell(LLM_RETRYING, payload, parent)

    def compacted(self, messages: int, usage: Usage) -> str:
        return self.tell(COMPACTED, {"messages": messages, **_counted(usage)})

    def diagnosed(self, complaints: Sequence[str], diagnostics: Sequence[str]) -> str:
        """Report parse errors and notes. They quote parts of the reply, which may contain a
        secret.
        """
        payload = {
            "errors": list(map(redact, complaints[:MOST_SAID])),
            "diagnostics": list(map(redact, diagnostics[:MOST_SAID])),
        }
        return self.tell(DIAGNOSED, payload)

    def notice(self, stop: str, message: str) -> str:
        return self.tell(NOTICE, {"stop": stop, "message": message})


def _counted(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_tokens": usage.cache_read,
        "cache_write_tokens": usage.cache_write,
    }


_encode = msgspec.json.Encoder().encode


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    cycles: int = 20
    """Requests to the model."""
    calls_per_cycle: int = 20
    calls_per_turn: int = 50
    unreadable_replies: int = 3
    """Consecutive replies that cannot be parsed."""
    result_chars: int = 8_000
    """Maximum number of characters of one result in the prompt."""
    tokens: int | None = None
    """Input and output tokens of all requests of the turn."""
    time_s: float | None = None


class Turn:
    """One turn of one session; `run` is the loop."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        conversations: Conversations,
        session: Session,
        model: Model,
        history: History,
        context: Context,
        limits: TurnLimits,
        extra_instructions: str,
        screen: Screen,
        speech: bool = False,
        written: asyncio.Future[Any] | None = None,
        delegated: Callable[[], Usage] = Usage,
    ) -> None:
        """
        Args:
            speech: Whether the user can hear speech.
            written: Completes when the user's message is on the disk.
            delegated: Returns the usage of sub-agents in this turn.
        """
        self._runtime = runtime
        self._session = session
        self._model = model
        self._history = history
        self._context = context
        self._limits = limits
        self._extra_instructions = extra_instructions
        self._screen = screen
        self._speech = speech
        self._written = written
        self._delegated = delegated
        self._telling = Telling(conversations, session)
        self._outputs = Outputs(screen, self._telling.tell)
        self._usage = Usage()
        self._cycles = 0
        self._calls = 0
        self._unreadable = 0
        self._given_back = b""
        """The last calls that were returned to the model instead of ending the turn."""
        self._compacted = False
        """Whether the conversation was compacted since the last reply."""
        self._cut_short = ""
        """The visible part of a reply that was interrupted by a cancel."""

    async def run(self) -> TurnEnd:
        """Call the model and run its calls until the turn ends."""
        try:
            while True:
                if end := self._spent():
                    return end
                if self._context.is_full:
                    await self._compact()
                exchange = await self._ask()
                if exchange is None:
                    continue
                read, reply, reading = exchange
                if end := await self._act(read, reply, reading):
                    return end
        except ModelError as error:
            end = self.end("error", f"The model did not answer: {error.message}")
            return msgspec.structs.replace(end, failure=error.kind)
        except StoreError as error:
            return self.end("error", f"The conversation cannot be stored: {error}")
        except LeftOpen:
            return self.end("waiting")

    def end(self, stop: TurnStop, notice: str | None = None) -> TurnEnd:
        if notice is not None:
            self._screen(Noticed(notice))
            self._telling.notice(stop, notice)
        price, used = self._model.price, self._used
        return TurnEnd(
            stop=stop,
            notice=notice,
            text=self._outputs.text,
            usage=used,
            cost_usd=None if price is None else price.of(used),
            cycles=self._cycles,
            calls=self._calls,
        )

    @property
    def _used(self) -> Usage:
        return self._usage + self._delegated()

    def keep_what_was_said(self) -> None:
        """Add the visible part of an interrupted reply to the conversation."""
        if self._cut_short:
            self._history.add(Message.text("assistant", self._cut_short))

    def _spent(self) -> TurnEnd | None:
        limits = self._limits
        if self._runtime.calls.is_closing:
            return self.end("waiting")
        if self._cycles >= limits.cycles:
            return self.end("max_turn_requests", _stopped(limits.cycles, "requests to the model"))
        spent = self._used.input + self._used.output
        if limits.tokens is not None and spent >= limits.tokens:
            return self.end("max_turn_requests", _stopped(limits.tokens, "tokens"))
        return None

    async def _ensure_written(self) -> None:
        """Wait until the prompt is on the disk, before any call runs. The model's reply may arrive
        first.
        """
        if self._written is not None:
            await asyncio.shield(self._written)
            self._written = None

    async def _compact(self, *, hard: bool = False) -> None:
        upto, usage = await self._context.compact(hard=hard)
        self._usage += usage
        if upto:
            self._telling.compacted(upto, usage)

    async def _ask(self) -> tuple[Read, Reply, Reading] | None:
        """Return the model's reply, shown and parsed; None if the model must be called again."""
        self._cycles += 1
        self._screen(Asked())
        tools = tools_for(self._model, self._runtime.tools, self._session)
        prompt = prompt_for(
            self._model,
            self._session,
            self._history.arranged(),
            tools,
            extra_instructions=self._extra_instructions,
            speech=self._speech,
            result_chars=self._limits.result_chars,
        )
        started = time.perf_counter()
        called = self._telling.called(self._model, len(tools))
        reading = self._reading(tools, called)
        try:
            async with aclosing(self._model.stream(prompt)) as pieces:
                async for piece in pieces:
                    match piece:
                        case TextDelta(text):
                            reading.text(text)
                        case ThinkingDelta(text):
                            self._screen(Thought(text))
                        case ToolUseDelta(name=name, text=text):
                            self._screen(Writing(name, text))
                        case Retrying():
                            self._telling.retrying(piece, called)
                            self._outputs.void(piece.message)
                            await self._void(reading)
                            reading = self._reading(tools, called)
                        case Reply():
                            self._usage += piece.usage
                            self._compacted = False
                            took_s = time.perf_counter() - started
                            reading.batch.parent = self._telling.completed(
                                piece, self._model, took_s, called
                            )
                            return reading.finish(piece), piece, reading
            raise ModelError(ModelErrorKind.CUT, "The model's stream ended without a reply.")
        except ModelError as error:
            self._telling.failed(error.kind, error.message, called)
            await self._void(reading)
            if error.kind is ModelErrorKind.CONTEXT and not self._compacted:
                self._compacted = True
                self._outputs.void(error.message)
                await self._compact(hard=True)
                return None
            if error.kind is ModelErrorKind.NO_TOOLS and not self._model.native_tools:
                self._outputs.void(error.message)
                return None  # the next prompt teaches calls as text
            raise
        except asyncio.CancelledError:
            self._telling.failed("cancelled", "cancelled", called)
            await self._void(reading)
            self._cut_short = reading.so_far()
            raise
        except BaseException:  # a defect of the model's adapter
            await self._void(reading)
            raise

    async def _void(self, reading: Reading) -> None:
        """Discard the reply. The calls that it made still count."""
        self._calls += reading.batch.ran
        await reading.batch.void()

    def _reading(self, tools: list[ToolDefinition], parent: str) -> Reading:
        limits = self._limits
        native = self._model.native_tools
        batch = Batch(
            self._runtime,
            self._session,
            CallerKind.AGENT if native else CallerKind.LLM,
            self._outputs,
            self._screen,
            room=min(limits.calls_per_cycle, limits.calls_per_turn - self._calls),
            parent=parent,
        )
        types = TYPES | _names(tools)
        if native:
            return NativeReading(self._outputs, batch, types if self._model.small else ())
        return TextReading(self._outputs, batch, types)

    async def _act(self, read: Read, reply: Reply, reading: Reading) -> TurnEnd | None:
        """Store the reply, run its calls and store their results. Return the end of the turn if it
        ends.
        """
        try:
            await self._ensure_written()
        except BaseException:
            await self._void(reading)
            raise
        if read.content:
            self._history.add(Message(role="assistant", content=read.content))
        self._context.count(reply.usage)
        if read.complaints or read.diagnostics:
            self._telling.diagnosed(read.complaints, read.diagnostics)
        batch = reading.batch
        try:
            await batch.finish(read.wanted, self._keep)
        finally:
            self._calls += batch.ran
        self._outputs.settle()
        ends = read.ends and not self._goes_on(read, batch)
        if read.complaints and (read.wanted or not ends):
            self._complain(read)
        return self._judge(read, reply, batch, ends=ends)

    def _judge(self, read: Read, reply: Reply, batch: Batch, *, ends: bool) -> TurnEnd | None:
        limits = self._limits
        is_read = read.wanted or read.ends or not read.complaints
        self._unreadable = 0 if is_read else self._unreadable + 1
        if batch.refused:
            full = self._calls >= limits.calls_per_turn
            most = limits.calls_per_turn if full else limits.calls_per_cycle
            where = "" if full else " for one reply"
            return self.end("max_turn_requests", _stopped(most, f"calls{where}"))
        if reply.stop == "refusal":
            return self.end("refusal", "The model declined to answer.")
        if reply.stop == "max_tokens" and not read.wanted:
            return self.end("max_tokens", "The model's reply was truncated at its token limit.")
        if self._unreadable >= limits.unreadable_replies:
            many = f"{self._unreadable} replies in a row could not be read"
            return self.end("error", f"{many}: {read.complaints[0]}")
        return self.end("end_turn") if ends else None

    def _goes_on(self, read: Read, batch: Batch) -> bool:
        """Whether the turn continues although the reply ends it, because a call failed or was
        lost.

        The same calls are returned to the model only once.
        """
        if not (read.lost or batch.has_failed(read.wanted)):
            return False
        document = _encode([(each.use.name, each.use.input) for each in read.wanted])
        again = document == self._given_back
        self._given_back = document
        return not again

    def _keep(self, result: ToolResultBlock) -> None:
        self._history.add(Message(role="user", content=[result]))

    def _complain(self, read: Read) -> None:
        complaints = "\n".join(f"- {each}" for each in read.complaints[:MOST_SAID])
        text = f"[Your reply was not in the required format]\n{complaints}"
        self._history.add(Message(role="user", content=[TextBlock(text)]))


def _names(tools: list[ToolDefinition]) -> frozenset[str]:
    return frozenset(name for tool in tools for name in (tool.name, *tool.aliases))


def _stopped(most: int, unit: str) -> str:
    return f"Stopped: a turn may use at most {most:,} {unit}. Send another prompt to continue."
