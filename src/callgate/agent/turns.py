"""One turn: the model is asked, its calls run, their results go back to it, until it is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Literal

import msgspec

from callgate.agent.batch import Batch, LeftOpen
from callgate.agent.context import Context
from callgate.agent.history import History
from callgate.agent.limits import TurnLimits
from callgate.agent.outputs import Outputs
from callgate.agent.prompt_building import prompt_for, tools_for
from callgate.agent.reading import NativeReading, Read, Reading, TextReading
from callgate.agent.shows import Asked, Noticed, Screen, Thought, Writing
from callgate.agent.telling import MOST_SAID, Telling
from callgate.core.calls import CallerKind
from callgate.core.content import TextBlock, ToolResultBlock
from callgate.core.messages import Message
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
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.protocol.toolcalls.values import TYPES
from callgate.sessions.conversations import Conversations

TurnStop = Literal[
    "end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "error", "waiting"
]


_encode = msgspec.json.Encoder().encode


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    stop: TurnStop
    """`waiting`: the runtime goes away; the turn is not over, and goes on when it is resumed."""
    notice: str | None = None
    """What the user must know of it."""
    failure: ModelErrorKind | None = None
    """Why the model did not answer, where that ended it."""
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
        extra_instructions: str,
        screen: Screen,
        speech: bool = False,
        written: asyncio.Future[Any] | None = None,
        delegated: Callable[[], Usage] = Usage,
    ) -> None:
        """`speech`: the user can hear what is said aloud; `kept` is done when what the user said
        is on the disk; `delegated` is what sub-agents have used for this turn."""
        self._dispatcher = dispatcher
        self._session = session
        self._model = model
        self._history = history
        self._context = context
        self._limits = limits
        self._extra_instructions = extra_instructions
        self._screen = screen
        self._speech = speech
        self._kept = written
        self._delegated = delegated
        self._telling = Telling(conversations, session)
        self._outputs = Outputs(screen, self._telling.tell)
        self._usage = Usage()
        self._cycles = 0
        self._calls = 0
        self._unreadable = 0
        self._given_back = b""
        """The calls that ended the turn, but for one that had gone wrong."""
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
            return self.end("error", f"The conversation cannot be kept: {error}")
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
        """After a cancel: what the user has seen of a reply stays in the conversation."""
        if self._cut_short:
            self._history.add(Message.text("assistant", self._cut_short))

    def _spent(self) -> TurnEnd | None:
        limits = self._limits
        if self._dispatcher.running.closing:
            return self.end("waiting")
        if self._cycles >= limits.cycles:
            return self.end("max_turn_requests", _stopped(limits.cycles, "requests to the model"))
        spent = self._used.input + self._used.output
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
            self._telling.compacted(upto, usage)

    async def _ask(self) -> tuple[Read, Reply, Reading] | None:
        """The model's reply, shown and read; None if it must be asked again."""
        self._cycles += 1
        self._screen(Asked())
        tools = tools_for(self._model, self._dispatcher, self._session)
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
        """The reply does not count, but the calls that it made do."""
        self._calls += reading.batch.ran
        await reading.batch.void()

    def _reading(self, tools: list[ToolDefinition], parent: str) -> Reading:
        limits = self._limits
        native = self._model.native_tools
        batch = Batch(
            self._dispatcher,
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
            return self.end("refusal", "The model declined to go on.")
        if reply.stop == "max_tokens" and not read.wanted:
            return self.end("max_tokens", "The model's reply was cut at its limit of tokens.")
        if self._unreadable >= limits.unreadable_replies:
            many = f"{self._unreadable} replies in a row could not be read"
            return self.end("error", f"{many}: {read.complaints[0]}")
        return self.end("end_turn") if ends else None

    def _goes_on(self, read: Read, batch: Batch) -> bool:
        """Whether the model must first be told that a call beside the end of the turn went wrong,
        or that its document has no call. The same calls are given back only once."""
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
        text = f"[Your reply was not in the format asked for]\n{complaints}"
        self._history.add(Message(role="user", content=[TextBlock(text)]))


def _names(tools: list[ToolDefinition]) -> frozenset[str]:
    return frozenset(name for tool in tools for name in (tool.name, *tool.aliases))


def _stopped(most: int, unit: str) -> str:
    return f"Stopped: a turn may use at most {most:,} {unit}. Say so if I should go on."
