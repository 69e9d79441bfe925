"""`callgate run` and `callgate parse`: one turn of a model, and the calls in a reply.

`callgate parse`: shows the tool calls in a model's reply, and the errors in it. Runs none.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

from callgate.cli.commands.events import OfOne, follow, print_placed
from callgate.cli.embedded import open_runtime
from callgate.cli.errors import OK, USAGE, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import explained
from callgate.cli.ui.output import print_json, print_text
from callgate.cli.ui.terminal import columns, is_terminal, paint_for, say
from callgate.cli.ui.tty import open_tty
from callgate.cli.ui.visible import visible
from callgate.core.content import Label
from callgate.core.events import TURN_STARTED, Event
from callgate.core.sessions import Session
from callgate.core.tasks import start_task
from callgate.features.chat.agent.agent import Agent
from callgate.features.chat.commands import agents, skills
from callgate.features.chat.commands.agents import Chosen, Refusal, Refusals
from callgate.features.chat.commands.cards import Answers, Cards, here
from callgate.features.chat.commands.screen import Screen, close_and_exit, exit_now
from callgate.instance.watchdog import watch_runtime
from callgate.instance.wiring.runtime import Wired
from callgate.protocol.json_texts import dumps
from callgate.protocol.toolcalls.parse import parse as read
from callgate.protocol.toolcalls.values import (
    MAX_BYTES,
    FoundCall,
    Parsed,
    error_text,
    note_text,
    to_json,
)
from callgate.sessions.shows import Noticed, Opened, Restarted, Said, Show, Spoken, TurnEnd


def parse(options: Namespace) -> int:
    if len(options.words) != 1:
        raise CliError("parse takes one FILE, or - for stdin", hint="See callgate parse --help.")
    parsed = read(_text(options.words[0]), strict=options.strict)
    if options.json:
        print_json(to_json(parsed))
    else:
        _show(parsed)
    # An empty list of calls is valid.
    return OK if parsed.calls or not (parsed.errors or parsed.truncated) else USAGE


def _text(name: str) -> str:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CliError(f"{name!r} cannot be read: {error.strerror}", reason="unreadable") from error
    return data.decode(errors="surrogateescape")  # the parser then reports invalid UTF-8


def _show(parsed: Parsed) -> None:
    if parsed.calls:
        print_text("\n".join(map(_line, parsed.calls)))
    for error in parsed.errors:
        say(f"error: {error_text(error)}")
    for note in parsed.diagnostics:
        say(f"note: {note_text(note)}")
    if parsed.repaired and parsed.calls:
        say("note: not in the required format, so calls with effects need approval")


def _line(call: FoundCall) -> str:
    priority = f"  priority {call.priority}" if call.priority else ""
    return f"{dumps(call.id)}  {call.type}  {dumps(call.parameters)}{priority}"


BY = "callgate run"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LARGEST = 8 * 1024 * 1024
_STDIN = "\n\n<stdin>\n"
"""Separator of the user's prompt and the content of stdin."""


def run(options: Namespace) -> int:
    if options.json:
        options.output_format = "stream-json"
    prompt = _prompt(options)
    refuse_within_a_call(BY)
    pool = agents.pool_of(options)
    if pool is not None:
        from callgate.features.chat.commands.pool import run_in_pool  # lazy: few have one  # noqa: PLC0415

        return run_in_pool(options, pool, prompt)
    wired, fresh = open_runtime(options, audit=True)
    agent = agents.open_agent(wired, options.model, ("run", *options.words))
    agents.limit(agent, options)
    runner = asyncio.Runner()
    code = runner.run(_Run(wired, agent, fresh, options).run(prompt))
    return close_and_exit(runner.close, code)


def _prompt(options: Namespace) -> str | None:
    """Return the prompt: the arguments, followed by the content of stdin. None: continue without a
    new prompt.
    """
    words = " ".join(options.words).strip()
    if words == "-":
        words = ""
    elif words and is_terminal(sys.stdin):
        return words
    piped = "" if is_terminal(sys.stdin) and not options.words else _stdin()
    if words and piped:
        return f"{words}{_STDIN}{piped}\n</stdin>"
    if words or piped:
        return words or piped
    if options.go_on or options.resume is not None:
        return None
    raise CliError(
        "a prompt is missing: callgate run PROMPT", hint="- reads the prompt from stdin."
    )


def _stdin() -> str:
    data = sys.stdin.buffer.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise CliError(f"stdin exceeds {_LARGEST // 1024**2} MiB")
    return data.decode("utf-8", "replace").strip()


class _Run:
    def __init__(self, wired: Wired, agent: Agent, session: Session, options: Namespace) -> None:
        self._wired = wired
        self._agent = agent
        self._session = session
        self._options = options
        self._format: str = options.output_format
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        self._out = _screen_on_stdout()
        self._saying = ""
        stderr = Screen(sys.stderr, paint_for(sys.stderr), width=None, moves=False)
        calls = wired.runtime.calls
        self._cards = Cards(stderr, calls, mark="*", here=here(BY), live=False)
        self._signal: int | None = None
        self._broken = False
        """Whether stdout is closed."""
        self._begun = asyncio.Event()
        self._refusals = Refusals()

    async def run(self, prompt: str | None) -> int:
        """Choose the session, run the turn, show its end, and return the exit code."""
        watch_runtime(self._wired)
        tty = None
        if not self._options.no_input and (is_terminal(sys.stdin) or is_terminal(sys.stderr)):
            tty = open_tty()
        allowed = agents.allowed(self._wired, self._options)
        answers = Answers(self._wired, lambda: self._session, tty, by=BY, allowed=allowed)
        try:
            with self._wired.runtime.permission.attach(answers):
                chosen = await agents.choose_session(self._wired, self._options, self._session)
                self._session = chosen.session
                self._cards.session_id = chosen.session.id
                unlisten = self._wired.bus.listen(self._hear)
                try:
                    async with self._streaming(chosen):
                        with explained():
                            end = await self._until_the_end(self._work(chosen, prompt))
                            if self._signal is None:
                                await self._agent.heard()
                finally:
                    unlisten()
        finally:
            await self._wired.close()
        if self._broken:
            raise BrokenPipeError
        refused, made_up_for = self._refusals.report(self._wired.home.audit)
        self._show_end(end, refused, finished=end.stop == "end_turn" and made_up_for)
        return agents.exit_code(end, self._signal, made_up_for=made_up_for)

    async def _work(self, chosen: Chosen, prompt: str | None) -> TurnEnd:
        """Continue the session's open turn, if any, then run a turn with the prompt."""
        end = None
        if chosen.session.turn_id is not None:
            say("callgate: the interrupted turn continues")
            end = await self._agent.go_on(chosen.session, chosen.calls, self._show)
        if prompt is not None and (end is None or end.stop == "end_turn"):
            with skills.explained():
                message = self._wired.skills.compose(prompt, chosen.session).text
            words, _, piped = prompt.partition(_STDIN)
            if piped:  # the author of piped text is unknown
                sessions = self._wired.runtime.sessions
                sessions.note_label(chosen.session, Label.UNTRUSTED, "stdin")
            end = await self._agent.turn(chosen.session, message, self._show, words)
        if end is None:
            raise CliError("no open turn to continue: add a prompt")
        return end

    async def _until_the_end(self, work: Coroutine[Any, Any, TurnEnd]) -> TurnEnd:
        """Return the end of the turn. The first signal stops it; the second signal exits
        immediately.
        """
        loop = asyncio.get_running_loop()
        task = start_task(work)

        def stop(number: int) -> None:
            if self._signal is not None:
                exit_now(128 + number)
            self._signal = number
            say("callgate: stopping; interrupt again to exit immediately")
            if not self._agent.cancel(self._session.id):
                task.cancel()

        for each in _SIGNALS:
            loop.add_signal_handler(each, stop, each)
        try:
            return await task
        except asyncio.CancelledError:
            if self._signal is None:
                raise
            return TurnEnd(stop="cancelled")
        finally:
            for each in _SIGNALS:
                loop.remove_signal_handler(each)

    # Output during the turn.

    def _hear(self, event: Event) -> None:
        self._refusals.hear(event)
        if event.session_id == self._session.id and event.type == TURN_STARTED:
            self._begun.set()
        if self._format == "text":
            if self._out is not None:
                self._out.settle()
            self._cards(event)

    def _show(self, show: Show) -> None:
        if self._format != "text":
            return
        try:
            match show:
                case Said(text=text, ends=ends):
                    self._say(text, ends)
                case Restarted(why=why):
                    self._void()
                    say(f"callgate: the model is called again: {visible(why)}")
                case Spoken(utterance=utterance):
                    say(f"says: {visible(utterance)}")
                case Opened(url=url):
                    say(f"shows: {visible(url)}")
                case Noticed():
                    self._void()  # `_show_end` prints it
        except BrokenPipeError:
            self._nobody_reads()

    def _say(self, text: str, ends: bool) -> None:
        """Show a part of the text. A terminal gets each part, a pipe gets the text when it is
        complete.
        """
        if self._out is not None:
            self._out.text(text)
            if ends:
                self._out.settle()
            return
        self._saying += text
        if ends and self._saying:
            complete, self._saying = self._saying, ""
            print_text(complete)
            sys.stdout.flush()

    def _void(self) -> None:
        self._saying = ""
        if self._out is not None:
            self._out.settle()

    def _nobody_reads(self) -> None:
        self._broken = True
        self._agent.cancel(self._session.id)

    @asynccontextmanager
    async def _streaming(self, chosen: Chosen) -> AsyncIterator[None]:
        """With `stream-json`: print all events, each as soon as it is stored."""
        if self._format != "stream-json":
            yield
            return
        store = await self._wired.log.store()
        pages = OfOne(store, chosen.session.id, chosen.seen)
        if chosen.session.turn_id is not None:
            self._begun.set()

        async def stream() -> None:
            await self._begun.wait()
            await self._wired.log.flush()  # a fresh session is not in the store before
            try:
                async with aclosing(follow(store, pages)) as coming:
                    async for page in coming:
                        for cursor, event in page:
                            print_placed(cursor, event)
                        sys.stdout.flush()
            except BrokenPipeError:
                self._nobody_reads()

        task = start_task(stream())
        try:
            yield
        finally:
            await self._wired.log.flush()
            task.cancel()
            await asyncio.wait([task])
        if self._begun.is_set() and not self._broken:
            async for page in pages.there():
                for cursor, event in page:
                    print_placed(cursor, event)

    def _show_end(self, end: TurnEnd, refused: list[Refusal], *, finished: bool) -> None:
        if self._format != "text":
            more = agents.described_refusals(refused, finished=finished)
            print_json(agents.described(self._session, end) | more)
        if end.notice is not None:
            say(f"callgate: {visible(end.notice)}")
        if refused and not finished:
            say(f"callgate: {visible(agents.unfinished_words(refused))}")
        if end.stop != "end_turn":
            say(f"hint: callgate run --resume {self._session.id} PROMPT continues it.")


def _screen_on_stdout() -> Screen | None:
    """Return the screen on stdout; None if stdout is not a terminal."""
    if not is_terminal(sys.stdout):
        return None
    plain = os.environ.get("TERM") == "dumb"
    return Screen(sys.stdout, paint_for(sys.stdout), width=columns(), moves=not plain)
