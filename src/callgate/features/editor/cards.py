"""Cards of tool calls for an editor, of running calls and of a stored conversation.

A replayed call is a card with its end. A call without an end was running when its process ended,
and its card has the status `failed`. File changes appear as diffs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

from callgate.core.content import (
    ImageBlock,
    JsonBlock,
    Message,
    MessageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
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
from callgate.core.sessions import Session
from callgate.features.chat.agent.tools import UPDATE_PLAN
from callgate.features.editor.contents import (
    as_block,
    kind_of,
    locations_of,
    result_content,
    sendable,
    text,
    title_of,
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
    ResourceLink,
    Shown,
    Terminal,
    ToolCall,
    ToolCallUpdate,
    ToolContent,
    ToolStatus,
    Update,
    UsageUpdate,
    UserMessageChunk,
)
from callgate.protocol.toolcalls.values import OUTPUTS
from callgate.runtime import Registered
from callgate.sessions.shows import (
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

EVERY_S = 0.1
"""Seconds between two updates with the output of a call."""
_TAIL = 8 * 1024
"""Characters of output that a card shows."""
_MOST_UNTOLD = 64 * 1024
"""Maximum number of output characters per update; of more, only the last are sent."""
_LONGEST_WHY = 500

Tell = Callable[[Update], None]


class _Card:
    def __init__(self, title: str, tool: Registered | None) -> None:
        self.title = title
        self.status: ToolStatus = "pending"
        self.terminal: str | None = None
        """Id of the editor's terminal, or of a display-only terminal."""
        self.is_ours = False
        """Whether callgate feeds the terminal."""
        self.runs_commands = tool is not None and tool.definition.kind == "execute"
        self.tail = ""
        self.untold = ""
        self.notice: list[ToolContent] = []
        """Notice that the call runs in an unexpected place."""
        self.left_out = 0
        """Number of omitted characters before `untold`."""
        self.steps: list[str] = []
        self.timer: asyncio.TimerHandle | None = None


class Cards:
    def __init__(
        self,
        session: Session,
        find: Callable[[str], Registered | None],
        tell: Tell,
        *,
        shows_output: bool = False,
    ) -> None:
        """`shows_output`: the editor displays output that callgate sends in metadata."""
        self._session = session
        self._find = find
        self._tell = tell
        self._shows_output = shows_output
        self._open: dict[str, _Card] = {}

    def started(self, use: ToolUseBlock, *, prefix: str = "") -> None:
        if use.id in self._open:
            return
        tool = self._find(use.name)
        new_card = card(use, tool, self._session, prefix=prefix)
        self._open[use.id] = _Card(new_card.title, tool)
        self._tell(new_card)

    def title(self, id: str) -> str:
        """Return the title of an open card."""
        return self._open[id].title

    def called(self, id: str, notice: str = "") -> None:
        """Mark a call as running."""
        shown = self._open.get(id)
        if shown is None or shown.status != "pending":
            return
        shown.status = "in_progress"
        shown.notice = [Shown(content=text(notice))] if notice else []
        if shown.runs_commands and shown.terminal is None and self._shows_output:
            shown.terminal, shown.is_ours = id, True
            info = {"terminal_id": id, "cwd": sendable(self._session.workspace)}
            content: list[ToolContent] = [Terminal(terminal_id=id), *shown.notice]
            self._update(id, status="in_progress", content=content, meta={"terminal_info": info})
        elif shown.notice:
            self._update(id, status="in_progress", content=shown.notice)
        else:
            self._update(id, status="in_progress")

    def terminal(self, id: str, terminal_id: str) -> None:
        """Show the editor's terminal on the card."""
        shown = self._open.get(id)
        if shown is not None:
            shown.terminal, shown.is_ours = terminal_id, False
            self._update(id, content=[Terminal(terminal_id=terminal_id)])

    def output(self, id: str, text: str) -> None:
        shown = self._open.get(id)
        if shown is None or (shown.terminal is not None and not shown.is_ours):
            return
        if shown.is_ours:
            shown.untold += text
            shown.left_out += max(0, len(shown.untold) - _MOST_UNTOLD)
            shown.untold = shown.untold[-_MOST_UNTOLD:]
        else:
            shown.tail = (shown.tail + text)[-_TAIL:]
        self._soon(id, shown)

    def progress(self, id: str, step: str) -> None:
        shown = self._open.get(id)
        if shown is not None and shown.terminal is None and step:
            shown.steps = [*shown.steps[-9:], step]
            self._soon(id, shown)

    def finished(self, result: ToolResultBlock, value: Any = None) -> None:
        shown = self._open.pop(result.tool_use_id, None)
        if shown is None:
            return
        self._picture(result.tool_use_id, shown)
        status: ToolStatus = "failed" if result.is_error else "completed"
        meta = None
        if shown.terminal is None:
            content = [*shown.notice, *result_content(result)]
        else:
            content = [Terminal(terminal_id=shown.terminal), *shown.notice, *_why(result)]
        if shown.is_ours:
            ended = value if isinstance(value, dict) else {}
            how = {key: ended.get(key) for key in ("exit_code", "signal")}
            meta = {"terminal_exit": {"terminal_id": shown.terminal, **how}}
        self._update(result.tool_use_id, status=status, content=content, meta=meta)

    def close(self, why: str) -> None:
        """End all open cards as failed."""
        for id, shown in self._open.items():
            if shown.timer is not None:
                shown.timer.cancel()
            self._update(id, status="failed", content=[Shown(content=text(why))])
        self._open.clear()

    def _soon(self, id: str, shown: _Card) -> None:
        if shown.timer is None:
            loop = asyncio.get_running_loop()
            shown.timer = loop.call_later(EVERY_S, self._picture, id, shown)

    def _picture(self, id: str, shown: _Card) -> None:
        """Send the output since the last update."""
        if shown.timer is None:
            return
        shown.timer.cancel()
        shown.timer = None
        if shown.is_ours:
            mark = f"\n[... {shown.left_out} characters omitted]\n" if shown.left_out else ""
            data = sendable(mark + shown.untold)
            shown.untold, shown.left_out = "", 0
            self._update(id, meta={"terminal_output": {"terminal_id": id, "data": data}})
        elif shown.terminal is None:
            lines = [*shown.steps, *([shown.tail] if shown.tail else [])]
            self._update(id, content=[*shown.notice, Shown(content=text("\n".join(lines)))])

    def _update(self, id: str, **fields: Any) -> None:
        self._tell(ToolCallUpdate(tool_call_id=id, **fields))


def card(
    use: ToolUseBlock, tool: Registered | None, session: Session, *, prefix: str = ""
) -> ToolCall:
    """Return the card of a call that is not running yet."""
    return ToolCall(
        tool_call_id=use.id,
        title=prefix + title_of(use.name, use.input),
        name=title_of(use.name, None),
        kind=kind_of(tool),
        status="pending",
        locations=locations_of(tool, use.input, session.workspace),
        raw_input=use.input,
    )


def _why(result: ToolResultBlock) -> list[ToolContent]:
    """Return the error message of a command whose output appears in a terminal."""
    texts = [block.text for block in result.content if isinstance(block, TextBlock)]
    if not result.is_error or not texts:
        return []
    return [Shown(content=text(texts[-1].rstrip().rpartition("\n")[2][-_LONGEST_WHY:]))]


_OURS = {"callgate": {"advisory": True}}
"""Marks messages of callgate in a client without notices."""


class Telling:
    """Sends the updates of one session. No method blocks."""

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
        """The id of the current message."""
        self.window = 0
        """Size of the model's context window in tokens; 0: unknown."""
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
                self.advise(f"The model is called again, and its text so far is discarded: {why}")

    def advise(self, advice: str) -> None:
        """Send a message of callgate."""
        if self._client.shows_notices:
            self._tell(Notice(severity="warning", title=sendable(advice)))
        else:
            content = text(f"\n[callgate] {advice}\n")
            self._tell(AgentMessageChunk(content=content, meta=_OURS))

    def happened(self, event: Event) -> None:
        """Send the update for an event of this session."""
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
            self.advise(f"The model is called again: {payload.get('message')}")
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
    """Return the ACP plan for stored entries."""
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


_ORPHAN = "The process ended while this call was running. It is unknown if the call had an effect."


async def replayed(
    messages: AsyncIterator[Message],
    session: Session,
    find: Callable[[str], Registered | None],
) -> AsyncIterator[Update]:
    """Yield all updates of a conversation, in order."""
    waiting: dict[str, ToolUseBlock] = {}
    async for message in messages:
        for block in message.content:
            for update in _updates(message.role, block, waiting, session, find):
                yield update
    for use in waiting.values():
        yield ToolCallUpdate(
            tool_call_id=use.id, status="failed", content=[Shown(content=text(_ORPHAN))]
        )


def _updates(
    role: str,
    block: MessageBlock,
    waiting: dict[str, ToolUseBlock],
    session: Session,
    find: Callable[[str], Registered | None],
) -> Iterator[Update]:
    match block:
        case TextBlock() | ImageBlock() | JsonBlock():
            chunk = UserMessageChunk if role == "user" else AgentMessageChunk
            yield chunk(content=as_block(block))
        case ThinkingBlock(thinking=thought):
            yield AgentThoughtChunk(content=text(thought))
        case ToolUseBlock(name=name, input=given) if name in OUTPUTS:
            yield from _output(name, given if isinstance(given, Mapping) else {})
        case ToolUseBlock(name=name, input=given):
            waiting[block.id] = block
            yield card(block, find(name), session)
        case ToolResultBlock(tool_use_id=id) if id in waiting:
            use = waiting.pop(id)
            yield ToolCallUpdate(
                tool_call_id=id,
                status="failed" if block.is_error else "completed",
                content=result_content(block),
            )
            if use.name == UPDATE_PLAN and not block.is_error:
                yield plan_of(use.input.get("entries"))


def _output(name: str, given: Mapping[str, object]) -> Iterator[Update]:
    """Yield the display of an output call."""
    value = given.get({"send_chat": "content", "say": "utterance", "open_url": "url"}.get(name, ""))
    if isinstance(value, str) and value:
        content = ResourceLink(name=value, uri=value) if name == "open_url" else text(value)
        yield AgentMessageChunk(content=content)
