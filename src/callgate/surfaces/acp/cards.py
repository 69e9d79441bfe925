"""The calls of one session as cards in an editor.

    started   -> tool_call, pending
    (asked    -> the question stands on the card)
    called    -> in_progress;  output, progress -> what there is so far
    finished  -> completed | failed, once, whatever happened

What a command writes is shown as it comes: in the editor's own terminal where it runs there, by
the convention in `_meta` where the editor knows it, else as the last lines on the card.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from callgate.core.content import TextBlock, ToolResultBlock, ToolUseBlock
from callgate.core.sessions import Session
from callgate.protocol.acp.updates import ToolCall, ToolCallUpdate, Update
from callgate.protocol.acp.values import Shown, Terminal, ToolContent, ToolStatus
from callgate.runtime import Registered
from callgate.surfaces.acp.contents import (
    kind_of,
    locations_of,
    result_content,
    sendable,
    text,
    title_of,
)

EVERY_S = 0.1
"""Between two pictures of the output of one call."""
_TAIL = 8 * 1024
"""Characters of output that a card shows."""
_MOST_UNTOLD = 64 * 1024
"""Characters of output between two pictures; of more, the last are told."""
_LONGEST_WHY = 500

Tell = Callable[[Update], None]


class _Card:
    def __init__(self, title: str, tool: Registered | None) -> None:
        self.title = title
        self.status: ToolStatus = "pending"
        self.terminal: str | None = None
        """One of the editor's, or one that is only shown there."""
        self.is_ours = False
        """The terminal is one that we tell of."""
        self.runs_commands = tool is not None and tool.definition.kind == "execute"
        self.tail = ""
        self.untold = ""
        self.notice: list[ToolContent] = []
        """Tells the person that the call does not run where one would expect it."""
        self.left_out = 0
        """Characters before `untold` that are not told."""
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
        """`shows_output`: the editor takes output of our commands by the convention."""
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
        """Of a card that is open."""
        return self._open[id].title

    def called(self, id: str, notice: str = "") -> None:
        """The call was let through and is at work."""
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
        """The call runs in a terminal of the editor."""
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
        """Whatever is open ends here."""
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
        """Tell what has come since the last time."""
        if shown.timer is None:
            return
        shown.timer.cancel()
        shown.timer = None
        if shown.is_ours:
            mark = f"\n[... {shown.left_out} characters left out]\n" if shown.left_out else ""
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
    """A call that has not been let through yet."""
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
    """Of a command whose output stands in a terminal: the words in which it failed."""
    texts = [block.text for block in result.content if isinstance(block, TextBlock)]
    if not result.is_error or not texts:
        return []
    return [Shown(content=text(texts[-1].rstrip().rpartition("\n")[2][-_LONGEST_WHY:]))]
