"""A session as it happens, told to the editor: what the model says, its calls, plan and usage.

the agent's screen   what is said and thought, calls that begin and end
events               calls at work, their output, plan, mode, usage, summaries
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from callgate.agent.shows import (
    Delegated,
    Finished,
    Noticed,
    Opened,
    Restarted,
    Said,
    Show,
    Spoken,
    Started,
    Thought,
)
from callgate.core.events import (
    CALLED,
    COMPACTED,
    LLM_COMPLETED,
    LLM_RETRYING,
    MODE_CHANGED,
    OUTPUT_DELTA,
    PLANNED,
    PROGRESS,
    Event,
)
from callgate.protocol.acp.initialize import ClientCapabilities
from callgate.protocol.acp.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    Compaction,
    Cost,
    Notice,
    Plan,
    PlanEntry,
    Update,
    UsageUpdate,
)
from callgate.protocol.acp.values import ResourceLink
from callgate.surfaces.acp.cards import Cards
from callgate.surfaces.acp.contents import sendable, text

_OURS = {"callgate": {"advisory": True}}
"""Marks words of ours in a client that shows no notices."""


class Telling:
    """Of one session. Both methods are called as it happens, and never wait."""

    def __init__(
        self,
        cards: Cards,
        client: ClientCapabilities,
        tell: Callable[[Update], None],
        mode_changed: Callable[[], None],
        delegated: Callable[[Delegated], None],
    ) -> None:
        self._cards = cards
        self._client = client
        self._tell = tell
        self._mode_changed = mode_changed
        self._delegated = delegated
        self._message: str | None = None
        """The id of what is being said."""
        self.window = 0
        """Tokens that the model's window holds; 0: nobody knows."""
        self._cost = 0.0
        self._priced = False

    def show(self, show: Show) -> None:
        match show:
            case Said(text=said, ends=ends):
                if said:
                    self._message = self._message or str(uuid4())
                    self._tell(AgentMessageChunk(content=text(said), message_id=self._message))
                if ends:
                    self._message = None
            case Thought(text=said):
                self._tell(AgentThoughtChunk(content=text(said)))
            case Started(use=use):
                self._message = None
                self._cards.started(use)
            case Finished(result=result, value=value):
                self._cards.finished(result, value)
            case Delegated():
                self._delegated(show)
            case Spoken(utterance=utterance):
                self._tell(AgentMessageChunk(content=text(utterance)))
            case Opened(url=url):
                self._tell(AgentMessageChunk(content=ResourceLink(name=url, uri=url)))
            case Noticed(text=said):
                self.advise(said)
            case Restarted(why=why):
                self._message = None
                self.advise(f"Asked again, what was said so far does not count: {why}")

    def advise(self, advice: str) -> None:
        """Something of ours, between what the model says."""
        if self._client.shows_notices:
            self._tell(Notice(severity="warning", title=sendable(advice)))
        else:
            content = text(f"\n[callgate] {advice}\n")
            self._tell(AgentMessageChunk(content=content, meta=_OURS))

    def happened(self, event: Event) -> None:
        """An event of this session."""
        payload, id = event.payload, str(event.payload.get("tool_use_id"))
        if event.type == CALLED:
            self._cards.called(id, str(payload.get("notice") or ""))
        elif event.type == OUTPUT_DELTA:
            self._cards.output(id, str(payload.get("text", "")))
        elif event.type == PROGRESS:
            self._cards.progress(id, _step(payload))
        elif event.type == PLANNED:
            self._tell(plan_of(payload.get("entries")))
        elif event.type == MODE_CHANGED:
            self._mode_changed()
        elif event.type == LLM_COMPLETED:
            self._used(payload)
        elif event.type == LLM_RETRYING:
            self.advise(f"The model is asked again: {payload.get('message')}")
        elif event.type == COMPACTED and self._client.shows_compaction:
            self._tell(Compaction(compaction_id=event.id, status="completed"))

    def _used(self, payload: Mapping[str, Any]) -> None:
        used = sum(int(payload.get(key) or 0) for key in ("input_tokens", "output_tokens"))
        if (cost := payload.get("cost_usd")) is not None:
            self._cost, self._priced = self._cost + float(cost), True
        if self.window and used:
            price = Cost(amount=round(self._cost, 6), currency="USD") if self._priced else None
            self._tell(UsageUpdate(used=used, size=self.window, cost=price))


def plan_of(entries: Any) -> Plan:
    """A plan as it was written down by us."""
    return Plan(
        entries=[
            PlanEntry(
                content=sendable(each["content"]),
                priority=each.get("priority", "medium"),
                status=each.get("status", "pending"),
            )
            for each in entries or []
        ]
    )


def _step(payload: Mapping[str, Any]) -> str:
    fraction, message = payload.get("fraction"), payload.get("message")
    percent = f"{fraction:.0%} " if isinstance(fraction, int | float) else ""
    return f"{percent}{message or ''}".strip()
