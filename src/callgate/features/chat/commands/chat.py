"""`callgate chat`: a conversation with a model that uses the tools.

    main thread         the keyboard, Ctrl-C, the commands
    background thread   the runtime: turns, calls, questions; they write to the screen

Only one of the two uses the terminal at a time: no line is read during a turn, and a question has
exclusive use of the terminal.
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

from callgate.cli.embedded import open_runtime
from callgate.cli.errors import INTERRUPTED, OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import short
from callgate.cli.ui.terminal import Paint, columns, is_terminal, say, wants_colour
from callgate.cli.ui.tty import open_tty
from callgate.cli.ui.visible import clip, excerpt, visible, visible_text
from callgate.core.content import TextBlock
from callgate.core.events import LLM_CALLED, Event
from callgate.core.models import Usage
from callgate.core.sessions import Session
from callgate.core.stores import StoreError
from callgate.core.tasks import BackgroundLoop
from callgate.features.chat.agent.agent import Agent
from callgate.features.chat.commands import agents, skills, slash_commands
from callgate.features.chat.commands.agents import Chosen
from callgate.features.chat.commands.cards import Answers, Cards, here
from callgate.features.chat.commands.screen import (
    Interrupts,
    Screen,
    close_and_exit,
    exit_now,
    open_lines,
)
from callgate.instance.watchdog import watch_runtime
from callgate.instance.wiring.runtime import Wired
from callgate.sessions.shows import Noticed, Opened, Restarted, Said, Show, Spoken, Thought, TurnEnd

BY = "callgate chat"
_REMINDED = 8
"""Maximum number of lines of the last message to show when a conversation continues."""
_PATIENCE_S = 0.3
_STOPPING_S = 5.0
"""How long a turn may take to stop when a signal ends the chat."""
_CLOSING_S = 1.0
"""Time limit for running work when the user leaves immediately."""


def chat(options: Namespace) -> int:
    prompt = " ".join(options.words).strip()
    refuse_within_a_call(BY)
    pool = agents.pool_of(options)
    if pool is not None:
        from callgate.features.chat.commands.pool import chat_in_pool  # lazy: few have one  # noqa: PLC0415

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
    """Install the signal handlers of the runtime, on its loop. Ctrl-C ends a chat only if nothing
    else handles it.
    """
    watch_runtime(wired, interrupts=(signal.SIGINT,))


class Chat:
    """A conversation, and the state that commands may change."""

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
        """Whether to display the model's thinking."""
        self.usage, self.cost_usd = Usage(), 0.0
        self.last: str | None = None
        """The user's last prompt."""
        self.undone: set[str] = set()
        """Turns whose changes were undone."""
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        terminal = is_terminal(sys.stdout)
        dumb = plain or not terminal or os.environ.get("TERM") == "dumb"
        self.paint = Paint(not plain and wants_colour(terminal, os.environ))
        width = columns() if terminal else None
        self.screen = Screen(sys.stdout, self.paint, width=width, moves=not dumb)
        self.screen.when_gone = lambda: self.agent.cancel(self.session.id)
        fancy = not plain and (sys.stdout.encoding or "").lower().startswith("utf")
        calls = wired.runtime.calls
        mark = "●" if fancy else "*"
        self._cards = Cards(self.screen, calls, mark=mark, here=here(BY))
        self._waits = "…" if fancy else "..."
        names = slash_commands.names(self)
        self._lines = open_lines(wired.home, self.paint, names, plain=dumb)
        self.interrupts = Interrupts()
        self.interrupts.at_empty = lambda: self._lines.is_empty

    def run(self, options: Namespace, prompt: str) -> int:
        """Run the conversation until the user leaves, and return the exit code."""
        tty = open_tty()
        quiet = self.screen.quiet if is_terminal(sys.stdout) else nullcontext
        allowed = agents.allowed(self.wired, options)
        answers = Answers(
            self.wired, lambda: self.session, tty, by=BY, allowed=allowed, quiet=quiet
        )
        unlisten = self.wired.bus.listen(self._hear)
        with self.wired.runtime.permission.attach(answers):
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
        """Run a command. False if the user leaves."""
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
        """Continue a session, and its turn if one is open."""
        self.session = chosen.session
        self._cards.session_id = chosen.session.id
        self.last = None
        if chosen.seen:
            self.note(f"Session {chosen.session.id}, {chosen.session.title or 'untitled'}.")
            self._remind()
        if chosen.session.turn_id is not None:
            self.note("The interrupted turn continues.")
            self._turn(self.agent.go_on(chosen.session, chosen.calls, self._show))

    def hear(self, prompt: str) -> None:
        """Run a turn with the typed prompt, or with the skill that it names."""
        try:
            with skills.explained():
                message = self.wired.skills.compose(prompt, self.session).text
        except CliError as error:
            self.note(error.message)
        else:
            self.take(message, prompt)

    def take(self, prompt: str, typed: str | None = None) -> None:
        """Run a turn with a prompt. `typed` is the part that the user wrote, if not all of it."""
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

        # set before the turn starts, because Ctrl-C may come with its first output
        self.interrupts.instead = stop
        try:
            turns.append(turn := self.background.start(work))
            if stopping:  # Ctrl-C came before the turn existed
                self.background.loop.call_soon_threadsafe(self._stop, turn)
            end = self.background.wait_for(turn)
        except StoreError as error:  # the store may be writable again later
            end = None
            self.note(f"The prompt could not be stored: {error}")
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
                self.note("Stopped. Press Ctrl-C again to leave.")

    def _stop(self, turn: Future[TurnEnd | None]) -> None:
        """Cancel the turn, in the background thread. Show a note if the turn does not stop
        quickly.
        """

        def say_so() -> None:
            if not turn.done():
                self.note("Stopping ... Press Ctrl-C again to leave immediately.")

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

    # Output.

    def note(self, text: str) -> None:
        """Show a note of callgate in the conversation."""
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
        """Show the end of the model's last text."""
        conversations = self.wired.runtime.sessions.conversations
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
            say(f"To continue: callgate chat --resume {short(self.session.id)}")

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
                self.note(f"The model is called again, and its text so far is discarded: {why}")
