"""The calls of a model as lines: one when a call starts, its last output, one when it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

from callgate.agent.plans import UPDATE_PLAN
from callgate.cli.chat.screen import Screen
from callgate.cli.records.event_words import event_words
from callgate.cli.ui.visible import clip
from callgate.core.events import (
    CALLED,
    COMPLETED,
    CONFIRMATION_RESOLVED,
    OUTPUT_DELTA,
    PLANNED,
    PROGRESS,
    TERMINAL,
    Event,
)
from callgate.dispatch.running import Running
from callgate.redaction.summaries import in_words

_ROWS = 5
"""Of a call's output, the last."""
_WIDEST = 120
_NARROWEST = 20
_FILES = 3
_PLANNED = 20
"""Entries of a plan that are shown."""
_MARKS = {"pending": " ", "in_progress": ">", "completed": "x"}


class _Card:
    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.rows: deque[str] = deque(maxlen=_ROWS)
        self.lines = 0
        self.progress = ""


class Cards:
    """A listener for the events of one session."""

    def __init__(
        self,
        screen: Screen,
        running: Running | None,
        *,
        mark: str,
        here: Collection[str],
        live: bool = True,
    ) -> None:
        """
        Args:
            running: the calls of our own runtime; None where a server runs them.
            mark: stands before each call.
            here: by these names our own answers go.
            live: whether output is shown too.
        """
        self.session_id = ""
        self._screen = screen
        self._running = running
        self._mark = mark
        self._here = here
        self._live = live
        self._cards: dict[str, _Card] = {}
        self._last: str | None = None
        """The call whose card was shown last."""

    def __call__(self, event: Event) -> None:
        if event.session_id != self.session_id:
            return
        id = str(event.payload.get("call_id"))
        if event.type == CALLED:
            self._start(id, event)
        elif event.type in (OUTPUT_DELTA, PROGRESS) and id in self._cards:
            self._output(self._cards[id], event)
        elif event.type == PLANNED:
            self._plan(event)
        elif event.type == CONFIRMATION_RESOLVED:
            self._answered(event)
        elif event.type in TERMINAL:
            self._end(id, event)

    @property
    def _room(self) -> int:
        return max((self._screen.width or _WIDEST) - 1, _NARROWEST)

    def _start(self, id: str, event: Event) -> None:
        tool = str(event.payload.get("tool_name"))
        self._cards[id] = _Card(tool)
        self._last = id
        running = None if self._running is None else self._running.find(id)
        summary = ""
        if running is not None and tool != UPDATE_PLAN:  # a plan is shown as a list
            summary = in_words(running.call.arguments)
        name = clip(tool, self._room - 2)
        text = clip(summary, max(self._room - len(name) - 4, 0)) if summary else ""
        paint = self._screen.paint
        head = f"{paint('cyan', self._mark)} {paint('bold', name)}"
        self._screen.line(f"{head}  {text}".rstrip())

    def _output(self, card: _Card, event: Event) -> None:
        if not self._live:
            return
        if event.type == PROGRESS:
            fraction = event.payload.get("fraction")
            percent = f"{fraction:.0%} " if isinstance(fraction, int | float) else ""
            card.progress = f"{percent}{event.payload.get('message') or ''}".strip()
        else:
            lines = str(event.payload.get("text", "")).splitlines()
            card.lines += len(lines)
            card.rows.extend(clip(line, self._room - 4) for line in lines[-_ROWS:])
        rows = self._rows(card)
        if card.progress:
            rows.append(self._screen.paint("dim", f"  {clip(card.progress, self._room - 2)}"))
        self._screen.live(rows)

    def _rows(self, card: _Card) -> list[str]:
        above = card.lines - len(card.rows)
        cut = [f"  ~ {above:,} line{'s' if above > 1 else ''} before"] if above else []
        rows = [*cut, *(f"  | {row}" for row in card.rows)]
        return [self._screen.paint("dim", row) for row in rows]

    def _plan(self, event: Event) -> None:
        entries = event.payload.get("entries")
        if not isinstance(entries, list):  # any tool may make an event of this name
            return
        for entry in entries[:_PLANNED]:
            fields = entry if isinstance(entry, dict) else {}
            mark = _MARKS.get(str(fields.get("status")), " ")
            text = clip(str(fields.get("content", "")), self._room - 6)
            colour = "dim" if mark == "x" else "bold" if mark == ">" else None
            row = f"  [{mark}] {text}"
            self._screen.line(row if colour is None else self._screen.paint(colour, row))
        if (more := len(entries) - _PLANNED) > 0:
            self._screen.line(self._screen.paint("dim", f"  ~ {more} more"))

    def _answered(self, event: Event) -> None:
        by = event.payload.get("by")
        if by is None or by in self._here:
            return  # what nobody answered has run out of time, or was stopped: its end says so
        text = f"answered elsewhere: {event.payload.get('decision')} by {by}"
        self._screen.line(self._screen.paint("dim", f"  {clip(text, self._room - 2)}"))

    def _end(self, id: str, event: Event) -> None:
        card = self._cards.pop(id, None)
        word, *details = event_words(event)
        if card is not None:
            for row in self._rows(card):
                self._screen.line(row)
            details = [*_did(event), *details]
        if card is None or self._last != id:  # it does not stand below its beginning
            tool = event.payload.get("tool_name") if card is None else card.tool
            details = [str(tool), *details]
        self._last = None
        text = clip("  ".join(filter(None, details)), max(self._room - len(word) - 4, 0))
        coloured = self._screen.paint("green" if word == "ok" else "red", word)
        self._screen.line(f"  {coloured}  {text}".rstrip())


def _did(event: Event) -> Iterator[str]:
    """What a call left behind, in a few words."""
    if event.type != COMPLETED:
        return
    changed = event.payload.get("files_modified")
    if isinstance(changed, list) and changed:
        more = f" and {len(changed) - _FILES} more" if len(changed) > _FILES else ""
        yield f"changed {', '.join(map(str, changed[:_FILES]))}{more}"
    else:
        size = event.payload.get("output_size_bytes")
        yield f"{size:,} bytes" if isinstance(size, int) else ""
