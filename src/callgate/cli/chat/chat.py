"""`callgate chat`: talk to a model that works with the tools.

    main thread     the keyboard, Ctrl-C, the commands
    beside it       the runtime: turns, calls, questions; they write to the screen

Only one of the two writes at a time: while a turn is under way no line is read, and a question
has the terminal for itself.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from contextlib import nullcontext
from typing import Any

from callgate.agent.agent import Agent
from callgate.agent.shows import Noticed, Opened, Restarted, Said, Show, Spoken, Thought
from callgate.agent.turns import TurnEnd
from callgate.cli import agents
from callgate.cli.agents import Chosen
from callgate.cli.chat import slash_commands
from callgate.cli.chat.answers import Answers, here
from callgate.cli.chat.cards import Cards
from callgate.cli.chat.input_lines import open_lines
from callgate.cli.chat.interrupts import Interrupts
from callgate.cli.chat.loop_thread import BackgroundLoop
from callgate.cli.chat.process_exit import close_and_exit, exit_now
from callgate.cli.chat.screen import Screen
from callgate.cli.commands import skills
from callgate.cli.embedded import open_runtime
from callgate.cli.errors import INTERRUPTED, OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.records.stores import short
from callgate.cli.ui.terminal import Paint, columns, is_terminal, say, wants_colour
from callgate.cli.ui.tty import open_tty
from callgate.cli.ui.visible import clip, excerpt, visible, visible_text
from callgate.core.content import TextBlock
from callgate.core.events import LLM_CALLED, Event
from callgate.core.models import Usage
from callgate.core.sessions import Session
from callgate.core.stores import StoreError
from callgate.instance.watchdog import watch_runtime
from callgate.wiring.runtime import Wired

BY = "callgate chat"
_REMINDED = 8
"""Rows of what was said last, when a conversation goes on."""
_PATIENCE_S = 0.3
_STOPPING_S = 5.0
"""How long a turn may take to stop when a signal ends the chat."""
_CLOSING_S = 1.0
"""How long what runs may take to stop when somebody leaves at once."""


def chat(options: Namespace) -> int:
    prompt = " ".join(options.words).strip()
    refuse_within_a_call(BY)
    pool = agents.pool_of(options)
    if pool is not None:
        from callgate.cli.chat.pool_commands import chat_in_pool  # lazy: few have one  # noqa: PLC0415

        return chat_in_pool(options, pool, prompt)
    wired, fresh = open_runtime(options, audit=True)
    agent = agents.open_agent(wired, options.model)
    with BackgroundLoop() as background:
        conversation = Chat(wired, agent, fresh, background, plain=options.plain)
        background.do(_watched(wired))
        try:
            code = conversation.run(options, prompt)
        except SystemExit as ended:  # a signal
            code = int(ended.code or OK)
        except KeyboardInterrupt:  # between a turn and the prompt
            code = INTERRUPTED
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            background.do(wired.close())
        conversation.say_how_to_go_on()
        return close_and_exit(background.close, code)


async def _watched(wired: Wired) -> None:
    """On the loop. Ctrl-C ends a chat only where nothing else can."""
    watch_runtime(wired, interrupts=(signal.SIGINT,))


class Chat:
    """A conversation, and what the commands may change of it."""

    def __init__(
        self,
        wired: Wired,
        agent: Agent,
        session: Session,
        background: BackgroundLoop,
        *,
        plain: bool,
    ) -> None:
        self.wired = wired
        self.agent = agent
        self.session = session
        self.background = background
        self.thinking = False
        """Whether it is shown what the model thinks."""
        self.usage, self.cost_usd = Usage(), 0.0
        self.last: str | None = None
        """What the user said last."""
        self.undone: set[str] = set()
        """Turns whose changes were put back."""
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        terminal = is_terminal(sys.stdout)
        dumb = plain or not terminal or os.environ.get("TERM") == "dumb"
        self.paint = Paint(not plain and wants_colour(terminal, os.environ))
        width = columns() if terminal else None
        self.screen = Screen(sys.stdout, self.paint, width=width, moves=not dumb)
        self.screen.when_gone = lambda: self.agent.cancel(self.session.id)
        fancy = not plain and (sys.stdout.encoding or "").lower().startswith("utf")
        running = wired.dispatcher.running
        mark = "●" if fancy else "*"
        self._cards = Cards(self.screen, running, mark=mark, here=here(BY))
        self._waits = "…" if fancy else "..."
        names = slash_commands.names(self)
        self._lines = open_lines(wired.home, self.paint, names, plain=dumb)
        self.interrupts = Interrupts()
        self.interrupts.at_empty = lambda: self._lines.is_empty

    def run(self, options: Namespace, prompt: str) -> int:
        """Talk until the user leaves; the exit code."""
        tty = open_tty()
        quiet = self.screen.quiet if is_terminal(sys.stdout) else nullcontext
        allowed = agents.allowed(self.wired, options)
        answers = Answers(
            self.wired, lambda: self.session, tty, by=BY, allowed=allowed, quiet=quiet
        )
        unlisten = self.wired.bus.listen(self._hear)
        with self.wired.runtime.attach(answers):
            chosen = self.background.do(agents.choose_session(self.wired, options, self.session))
            self._greet()
            self.go_on(chosen)
            if prompt:
                self.hear(prompt)
            code = self._loop()
        unlisten()
        return code

    def _loop(self) -> int:
        while True:
            try:
                message = self._lines.read()
            except KeyboardInterrupt:
                print()
                if self.interrupts.was_empty:
                    return OK
                continue
            if message is None:
                if is_terminal(sys.stdin):
                    print()
                return OK
            if message.startswith("/") and "\n" not in message:
                if not self._command(message.strip()):
                    return OK
            elif message.strip():
                self.hear(message)

    def _command(self, line: str) -> bool:
        """False: the user leaves."""
        self.screen.width = columns() if is_terminal(sys.stdout) else None
        try:
            return slash_commands.run(self, line)
        except CliError as error:
            self.note(error.message)
        except KeyboardInterrupt:
            print()
        return True

    # Sessions and turns.

    def go_on(self, chosen: Chosen) -> None:
        """Go on with a session, and with its turn if one is under way."""
        self.session = chosen.session
        self._cards.session_id = chosen.session.id
        self.last = None
        if chosen.seen:
            self.note(f"Session {chosen.session.id}, {chosen.session.title or 'untitled'}.")
            self._remind()
        if chosen.session.turn_id is not None:
            self.note("The turn that was under way goes on.")
            self._turn(self.agent.go_on(chosen.session, chosen.calls, self._show))

    def hear(self, prompt: str) -> None:
        """One turn with what was typed, or with the skill that it asks for."""
        try:
            with skills.explained():
                message = self.wired.skills.compose(prompt, self.session).text
        except CliError as error:
            self.note(error.message)
        else:
            self.take(message, prompt)

    def take(self, prompt: str, typed: str | None = None) -> None:
        """One turn with what the user says; `typed`: what of it they wrote, if not all."""
        self.last = prompt.encode("utf-8", "replace").decode()
        words = None if typed is None else typed.encode("utf-8", "replace").decode()
        self._turn(self.agent.turn(self.session, self.last, self._show, words))

    def _turn(self, work: Coroutine[Any, Any, TurnEnd | None]) -> None:
        self.screen.width = columns() if is_terminal(sys.stdout) else None
        if self.screen.is_gone:
            work.close()
            raise BrokenPipeError
        turns: list[Future[TurnEnd | None]] = []
        stopping: list[bool] = []

        def stop() -> None:
            if stopping:
                self._leave_at_once()
            stopping.append(True)
            if turns:
                self.background.loop.call_soon_threadsafe(self._stop, turns[0])

        self.interrupts.instead = stop  # before it starts: Ctrl-C may come with its first word
        try:
            turns.append(turn := self.background.start(work))
            if stopping:  # it came before there was a turn to stop
                self.background.loop.call_soon_threadsafe(self._stop, turn)
            end = self.background.wait_for(turn)
        except StoreError as error:  # nothing more is kept now; perhaps it is again later
            end = None
            self.note(f"This could not be kept: {error}")
        except SystemExit:
            self.background.loop.call_soon_threadsafe(self.agent.cancel, self.session.id)
            wait(turns, _STOPPING_S)
            raise
        finally:
            self.interrupts.instead = None
        self.screen.settle()
        if self.screen.is_gone:
            raise BrokenPipeError
        if end is not None:
            self.usage += end.usage
            self.cost_usd += end.cost_usd or 0.0
            if end.stop == "cancelled" and end.notice is None:
                self.note("Stopped. Ctrl-C again leaves.")

    def _stop(self, turn: Future[TurnEnd | None]) -> None:
        """In the thread beside: cancel the turn, and say so where that takes a moment."""

        def say_so() -> None:
            if not turn.done():
                self.note("Stopping ... Ctrl-C again leaves at once.")

        self.agent.cancel(self.session.id)
        self.background.loop.call_later(_PATIENCE_S, say_so)

    def _leave_at_once(self) -> None:
        closing = self.background.start(self.wired.close())
        try:
            closing.result(_CLOSING_S)
        except TimeoutError:
            pass
        self.screen.settle()
        self.say_how_to_go_on()
        exit_now(INTERRUPTED)

    # What is shown.

    def note(self, text: str) -> None:
        """Something of ours, between what is said."""
        self.screen.line(self.paint("yellow", visible_text(text)))

    def _greet(self) -> None:
        room = max((self.screen.width or 120) - 1, 20)
        name, mode = self.agent.model.name, self.session.mode
        policy = self.wired.settings_state(self.session.workspace).version
        for label, text in (
            ("callgate", f"{name}, mode {mode}; /help, Ctrl-D leaves"),
            ("in", self.session.workspace),
            ("policy", f"{policy}, embedded runtime"),
        ):
            shown = f"{label:<10}{clip(text, max(room - 10, 10))}"
            self.screen.line(self.paint("dim", shown))

    def _remind(self) -> None:
        """Show the end of what the model said last."""
        conversations = self.wired.runtime.conversations
        messages = self.background.do(conversations.messages(self.session))
        texts = [
            block.text
            for message in messages
            for block in message.content
            if message.role == "assistant" and isinstance(block, TextBlock)
        ]
        rows = excerpt("".join(texts[-1:]), width=max((self.screen.width or 120) - 1, 20), rows=500)
        for row in [*rows.head, *rows.tail][-_REMINDED:]:
            self.screen.line(self.paint("dim", row.text))

    def say_how_to_go_on(self) -> None:
        if self.last is not None:
            say(f"To go on: callgate chat --resume {short(self.session.id)}")

    def _hear(self, event: Event) -> None:
        if event.session_id != self.session.id:
            return
        if event.type == LLM_CALLED:
            self.screen.live([self.paint("dim", self._waits)])
        self._cards(event)

    def _show(self, show: Show) -> None:
        match show:
            case Said(text=text, ends=ends):
                self.screen.text(text)
                if ends:
                    self.screen.settle()
            case Thought(text=text):
                if self.thinking:
                    self.screen.text(text, "dim")
            case Spoken(utterance=utterance):
                self.screen.line(f"{self.paint('dim', 'says:')} {visible(utterance)}")
            case Opened(url=url):
                self.screen.line(f"{self.paint('dim', 'shows:')} {visible(url)}")
            case Noticed(text=text):
                self.note(text)
            case Restarted(why=why):
                self.note(f"Asked again, what was said so far does not count: {why}")
