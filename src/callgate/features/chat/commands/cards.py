"""The calls of a model as lines, and the answers to their questions.

A call has one line at its start, its last output, and one line at its end. An option or the user at
the terminal answers a question; without either, the call is refused. Every client can answer it,
and the first answer counts. If another client answers first, the terminal withdraws its question
and does not read the next line as an answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext

from callgate.cli.commands.events import event_words
from callgate.cli.ui import confirmation_prompt
from callgate.cli.ui.confirmation_prompt import asker
from callgate.cli.ui.terminal import say
from callgate.cli.ui.tty import Tty
from callgate.cli.ui.visible import clip, visible
from callgate.core.calls import CallerKind, ToolCall
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
from callgate.core.sessions import Session
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.features.chat.agent.tools import UPDATE_PLAN
from callgate.features.chat.commands.screen import Screen
from callgate.instance.wiring.runtime import Wired
from callgate.policy.rules import Outcome
from callgate.redaction.data import in_words
from callgate.runtime import Calls

_ROWS = 5
"""Number of last output lines of a call."""
_WIDEST = 120
_NARROWEST = 20
_FILES = 3
_PLANNED = 20
"""Maximum number of displayed entries of a plan."""
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
        calls: Calls | None,
        *,
        mark: str,
        here: Collection[str],
        live: bool = True,
    ) -> None:
        """
        Args:
            calls: The calls of this process's runtime; None: a server runs them.
            mark: Prefix of each call.
            here: The names under which this command answers questions.
            live: Whether output is shown too.
        """
        self.session_id = ""
        self._screen = screen
        self._calls = calls
        self._mark = mark
        self._here = here
        self._live = live
        self._cards: dict[str, _Card] = {}
        self._last: str | None = None
        """The call with the newest first line."""

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
        running = None if self._calls is None else self._calls.find(id)
        summary = ""
        if running is not None and tool != UPDATE_PLAN:  # `_plan` shows the entries as a list
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
        if not isinstance(entries, list):  # any tool may emit an event of this name
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
            return  # without an answer, the end of the call shows the timeout or the cancel
        text = f"answered elsewhere: {event.payload.get('decision')} by {by}"
        self._screen.line(self._screen.paint("dim", f"  {clip(text, self._room - 2)}"))

    def _end(self, id: str, event: Event) -> None:
        card = self._cards.pop(id, None)
        word, *details = event_words(event)
        if card is not None:
            for row in self._rows(card):
                self._screen.line(row)
            details = [*_did(event), *details]
        # the line is not directly below the first one of its call
        if card is None or self._last != id:
            tool = event.payload.get("tool_name") if card is None else card.tool
            details = [str(tool), *details]
        self._last = None
        text = clip("  ".join(filter(None, details)), max(self._room - len(word) - 4, 0))
        coloured = self._screen.paint("green" if word == "ok" else "red", word)
        self._screen.line(f"  {coloured}  {text}".rstrip())


def _did(event: Event) -> Iterator[str]:
    """Yield the effect of a completed call, in a few words."""
    if event.type != COMPLETED:
        return
    changed = event.payload.get("files_modified")
    if isinstance(changed, list) and changed:
        more = f" and {len(changed) - _FILES} more" if len(changed) > _FILES else ""
        yield f"changed {', '.join(map(str, changed[:_FILES]))}{more}"
    else:
        size = event.payload.get("output_size_bytes")
        yield f"{size:,} bytes" if isinstance(size, int) else ""


_NOBODY = "No approver is available, so the call is refused. Do not try to bypass the refusal."


_OPTION = "--allow"


def here(by: str) -> frozenset[str]:
    """Return the names under which this command answers questions."""
    return frozenset({by, _OPTION, confirmation_prompt.BY})


class Answers:
    """A confirmer for the sessions of one command: give it to `Permission.attach`."""

    def __init__(
        self,
        wired: Wired,
        session: Callable[[], Session],
        tty: Tty | None,
        *,
        by: str,
        allowed: Collection[str] = (),
        quiet: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """
        Args:
            session: Returns the current session.
            tty: The user's terminal; None: no user is available.
            by: The command, for the record.
            allowed: Tools whose calls are approved without a question.
            quiet: Keeps other output off the terminal while a question is open.
        """
        self._wired = wired
        self._session = session
        self._tty = tty
        self._by = by
        self._allowed = frozenset(allowed)
        self._quiet = quiet
        self._one = asyncio.Lock()
        """One question at a time."""
        self._reported: set[str] = set()

    async def __call__(self, question: Confirmation) -> Answer:
        if question.tool in self._allowed and not question.always_ask:
            return Answer(decision=Outcome.ALLOW, by=_OPTION)
        if self._tty is None:
            self._report_refusal(question.tool)
            return Answer(decision=Outcome.DENY, reason=_NOBODY, by=self._by)
        call = ToolCall(
            tool=question.tool,
            arguments=dict(question.arguments),
            session=self._session(),
            caller=CallerKind.AGENT,
        )
        async with self._one:
            with self._quiet():
                return await asker(self._wired, call, self._tty)(question)

    def _report_refusal(self, tool: str) -> None:
        if tool in self._reported:
            return
        self._reported.add(tool)
        name = visible(tool)
        say(f"callgate: {name} needs approval, and no approver is available: refused")
        say(f"hint: --allow {name}, --mode write, or a rule in settings.toml allows it.")
