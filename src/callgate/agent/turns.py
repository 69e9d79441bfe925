"""One turn: the model is asked, its calls run, their results go back to it, until it is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Literal

import msgspec

from callgate.agent.batch import Batch, LeftOpen
from callgate.agent.context import Context
from callgate.agent.history import History
from callgate.agent.instructions import instructions
from callgate.agent.limits import TurnLimits
from callgate.agent.outputs import NATIVE, Outputs
from callgate.agent.projection import to_native, to_text
from callgate.agent.reading import NativeReading, Read, Reading, TextReading
from callgate.agent.shows import Noticed, Screen, Thought, Writing
from callgate.audit.redaction import redact
from callgate.core.calls import CallerKind
from callgate.core.content import TextBlock, ToolResultBlock
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
from callgate.core.messages import Message
from callgate.core.models import (
    Model,
    ModelError,
    ModelErrorKind,
    Prompt,
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
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.protocol.toolcalls.teach import document_schema
from callgate.protocol.toolcalls.values import OUTPUTS, TYPES
from callgate.sessions.conversations import Conversations

_MOST_SAID = 20
"""Complaints about one reply that are told."""

TurnStop = Literal[
    "end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "error", "waiting"
]


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    stop: TurnStop
    """`waiting`: the runtime goes away; the turn is not over, and goes on when it is resumed."""
    notice: str | None = None
    """What the user must know of it."""
    text: str = ""
    """What the model said last."""
    usage: Usage = Usage()
    cost_usd: float | None = None
    """None where the price of the model is not known."""
    cycles: int = 0
    calls: int = 0


class Turn:
    """One turn of one session; `run` is the loop."""

    def __init__(
        self,
        *,
        dispatcher: ToolDispatcher,
        conversations: Conversations,
        session: Session,
        model: Model,
        history: History,
        context: Context,
        limits: TurnLimits,
        own: str,
        screen: Screen,
        kept: asyncio.Future[Any] | None = None,
    ) -> None:
        """`kept` is done when what the user said is on the disk."""
        self._dispatcher = dispatcher
        self._conversations = conversations
        self._session = session
        self._model = model
        self._history = history
        self._context = context
        self._limits = limits
        self._own = own
        self._screen = screen
        self._kept = kept
        self._outputs = Outputs(screen, self._tell)
        self._usage = Usage()
        self._cycles = 0
        self._calls = 0
        self._unreadable = 0
        self._compacted = False
        """Since the last reply."""
        self._cut_short = ""
        """What was said of a reply in the midst of which the turn was cancelled."""

    async def run(self) -> TurnEnd:
        """Ask, act, and again; how it ended."""
        try:
            while True:
                if end := self._spent():
                    return end
                if self._context.is_full:
                    await self._compact()
                asked = await self._ask()
                if asked is None:
                    continue
                read, reply, reading = asked
                if end := await self._act(read, reply, reading):
                    return end
        except ModelError as error:
            return self.end("error", f"The model did not answer: {error.message}")
        except StoreError as error:
            return self.end("error", f"The conversation cannot be kept: {error}")
        except LeftOpen:
            return self.end("waiting")

    def end(self, stop: TurnStop, notice: str | None = None) -> TurnEnd:
        if notice is not None:
            self._screen(Noticed(notice))
            self._tell(NOTICE, {"stop": stop, "message": notice})
        price = self._model.price
        return TurnEnd(
            stop=stop,
            notice=notice,
            text=self._outputs.text,
            usage=self._usage,
            cost_usd=None if price is None else price.of(self._usage),
            cycles=self._cycles,
            calls=self._calls,
        )

    def keep_what_was_said(self) -> None:
        """After a cancel: what the user has seen of a reply stays in the conversation."""
        if self._cut_short:
            self._history.add(Message.text("assistant", self._cut_short))

    def _spent(self) -> TurnEnd | None:
        limits = self._limits
        if self._dispatcher.running.closing:
            return self.end("waiting")
        if self._cycles >= limits.cycles:
            return self.end("max_turn_requests", _stopped(limits.cycles, "requests to the model"))
        spent = self._usage.input + self._usage.output
        if limits.tokens is not None and spent >= limits.tokens:
            return self.end("max_turn_requests", _stopped(limits.tokens, "tokens"))
        return None

    async def _ensure_kept(self) -> None:
        """Nothing is done for a prompt that is not on the disk; the model answers meanwhile."""
        if self._kept is not None:
            await asyncio.shield(self._kept)
            self._kept = None

    async def _compact(self, *, hard: bool = False) -> None:
        upto, usage = await self._context.compact(hard=hard)
        self._usage += usage
        if upto:
            self._tell(COMPACTED, {"messages": upto, **_counted(usage)})

    async def _ask(self) -> tuple[Read, Reply, Reading] | None:
        """The model's reply, shown and read; None if it must be asked again."""
        self._cycles += 1
        every = self._dispatcher.get_definitions_for_session(self._session)
        tools = [tool for tool in every if tool.name not in OUTPUTS]
        prompt = self._prompt(tools)
        started = time.perf_counter()
        called = self._tell(LLM_CALLED, {"model": self._model.name, "tools": len(tools)})
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
                            self._retry(piece, called)
                            await self._void(reading)
                            reading = self._reading(tools, called)
                        case Reply():
                            self._count(piece, started, called, reading)
                            return reading.finish(piece), piece, reading
            raise ModelError(ModelErrorKind.CUT, "The model's stream ended without a reply.")
        except ModelError as error:
            self._tell(LLM_FAILED, {"kind": error.kind, "message": error.message}, called)
            await self._void(reading)
            if error.kind is ModelErrorKind.CONTEXT and not self._compacted:
                self._compacted = True
                self._outputs.void(error.message)
                await self._compact(hard=True)
                return None
            raise
        except asyncio.CancelledError:
            self._tell(LLM_FAILED, {"kind": "cancelled", "message": "cancelled"}, called)
            await self._void(reading)
            self._cut_short = reading.so_far()
            raise
        except BaseException:  # a defect of the model's adapter
            await self._void(reading)
            raise

    async def _void(self, reading: Reading) -> None:
        """The reply does not count, but the calls that it made do."""
        self._calls += reading.batch.ran
        await reading.batch.void()

    def _retry(self, retrying: Retrying, called: str) -> None:
        said = {
            "kind": retrying.kind,
            "message": retrying.message,
            "wait_s": retrying.wait_s,
        }
        self._tell(LLM_RETRYING, said, called)
        self._outputs.void(retrying.message)

    def _prompt(self, tools: list[ToolDefinition]) -> Prompt:
        messages, limit = self._history.arranged(), self._limits.result_chars
        if not self._model.native_tools:
            system = instructions(self._session, tools, own=self._own, as_text=True)
            schema = document_schema(tools) if self._model.constrained else None
            return Prompt(messages=to_text(messages, limit), system=system, output_schema=schema)
        return Prompt(
            messages=to_native(messages, limit),
            system=instructions(self._session, tools, own=self._own),
            tools=[*tools, *NATIVE],
        )

    def _reading(self, tools: list[ToolDefinition], parent: str) -> Reading:
        limits = self._limits
        native = self._model.native_tools
        batch = Batch(
            self._dispatcher,
            self._session,
            CallerKind.AGENT if native else CallerKind.LLM,
            self._outputs,
            room=min(limits.calls_per_cycle, limits.calls_per_turn - self._calls),
            parent=parent,
        )
        if native:
            return NativeReading(self._outputs, batch)
        return TextReading(self._outputs, batch, TYPES | _names(tools))

    def _count(self, reply: Reply, started: float, called: str, reading: Reading) -> None:
        self._usage += reply.usage
        self._compacted = False
        price = self._model.price
        said = {
            "model": reply.model or self._model.name,
            "stop_reason": reply.stop,
            "latency_ms": round((time.perf_counter() - started) * 1e3, 1),
            **_counted(reply.usage),
        }
        if price is not None:
            said["cost_usd"] = price.of(reply.usage)
        reading.batch.parent = self._tell(LLM_COMPLETED, said, called)

    async def _act(self, read: Read, reply: Reply, reading: Reading) -> TurnEnd | None:
        """Keep the reply, run its calls, and keep their results; the end of the turn, if it
        has come."""
        try:
            await self._ensure_kept()
        except BaseException:
            await self._void(reading)
            raise
        if read.content:
            self._history.add(Message(role="assistant", content=read.content))
        self._context.count(reply.usage)
        if read.complaints or read.diagnostics:
            self._tell(DIAGNOSED, _diagnosed(read))
        batch = reading.batch
        try:
            await batch.finish(read.wanted, self._keep)
        finally:
            self._calls += batch.ran
        if read.complaints:
            self._complain(read)
        return self._judge(read, reply, batch)

    def _judge(self, read: Read, reply: Reply, batch: Batch) -> TurnEnd | None:
        limits = self._limits
        self._unreadable = 0 if read.wanted or not read.complaints else self._unreadable + 1
        if batch.refused:
            full = self._calls >= limits.calls_per_turn
            most = limits.calls_per_turn if full else limits.calls_per_cycle
            where = "" if full else " for one reply"
            return self.end("max_turn_requests", _stopped(most, f"calls{where}"))
        if reply.stop == "refusal":
            return self.end("refusal", "The model declined to go on.")
        if reply.stop == "max_tokens" and not read.wanted:
            return self.end("max_tokens", "The model's reply was cut at its limit of tokens.")
        if self._unreadable >= limits.unreadable_replies:
            many = f"{self._unreadable} replies in a row could not be read"
            return self.end("error", f"{many}: {read.complaints[0]}")
        return self.end("end_turn") if read.ends else None

    def _keep(self, result: ToolResultBlock) -> None:
        self._history.add(Message(role="user", content=[result]))

    def _complain(self, read: Read) -> None:
        said = "\n".join(f"- {each}" for each in read.complaints[:_MOST_SAID])
        text = f"[Your reply was not in the format asked for]\n{said}"
        self._history.add(Message(role="user", content=[TextBlock(text)]))

    def _tell(
        self, event_type: str, payload: Mapping[str, Any], parent: str | None = None
    ) -> str:
        shown = {key: redact(v) if isinstance(v, str) else v for key, v in payload.items()}
        actor: Actor = "system" if event_type == NOTICE else "agent"
        keep = event_type != CHAT_DELTA
        emit = self._conversations.emit
        return emit(self._session, event_type, actor, shown, keep=keep, parent=parent)


def _names(tools: list[ToolDefinition]) -> frozenset[str]:
    return frozenset(name for tool in tools for name in (tool.name, *tool.aliases))


def _diagnosed(read: Read) -> dict[str, list[str]]:
    """They repeat a little of what the model wrote, so they may hold a secret."""
    return {
        "errors": list(map(redact, read.complaints[:_MOST_SAID])),
        "diagnostics": list(map(redact, read.diagnostics[:_MOST_SAID])),
    }


def _counted(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_tokens": usage.cache_read,
        "cache_write_tokens": usage.cache_write,
    }


def _stopped(most: int, what: str) -> str:
    return f"Stopped: a turn may use at most {most:,} {what}. Say so if I should go on."
