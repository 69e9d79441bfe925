"""`callgate run --pool` and `callgate chat --pool`: a server of this home does the work."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager

from callgate.cli import agents
from callgate.cli.chat.answers import here
from callgate.cli.chat.cards import Cards
from callgate.cli.chat.input_lines import open_lines
from callgate.cli.chat.loop_thread import BackgroundLoop
from callgate.cli.chat.pool_turns import PoolTurns, described, stop_of
from callgate.cli.chat.process_exit import exit_now
from callgate.cli.chat.screen import Screen
from callgate.cli.commands.events import print_placed
from callgate.cli.errors import INTERRUPTED, OK, CliError
from callgate.cli.logs import set_up
from callgate.cli.records.stores import explained, find_session, short
from callgate.cli.remote.instance_http import InstanceHttp, find_instance
from callgate.cli.ui.output import print_json, print_text
from callgate.cli.ui.terminal import Paint, columns, is_terminal, paint_for, say, wants_colour
from callgate.cli.ui.tty import Tty, open_tty
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.stores import configured_store, open_store
from callgate.core.events import CHAT, NOTICE, TURN_CANCELLED, Event
from callgate.core.sessions import POOL_PREFIX, pool_workspace
from callgate.core.stores import Store
from callgate.core.task_sets import start_task

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OPENING_S = 60.0
_LIMITS = {"max_turns": "--max-turns", "max_tokens": "--max-tokens", "time_limit": "--time-limit"}
_LEAVES = ("/quit", "/exit")


def run_in_pool(options: Namespace, pool: str, prompt: str | None) -> int:
    given = [option for name, option in _LIMITS.items() if getattr(options, name) is not None]
    if given:
        raise CliError(f"{given[0]} is not for --pool: the settings of the server say it")
    if prompt is None:
        raise CliError("a prompt is missing: callgate run --pool NAME PROMPT")
    set_up(options.debug)
    with explained():
        return asyncio.run(_Run(options, pool).run(prompt))


@asynccontextmanager
async def _opened(
    options: Namespace, pool: str, tty: Tty | None, by: str
) -> AsyncIterator[PoolTurns]:
    home = Home.from_environment()
    server = find_instance(home.path)
    store = await open_store(home, configured_store(home))
    try:
        session = await _session(store, server, options, pool)
        allowed = options.allow or ()
        yield PoolTurns(server, store, session, by=by, tty=tty, allowed=allowed)
    finally:
        await store.close()


async def _session(store: Store, server: InstanceHttp, options: Namespace, pool: str) -> str:
    """The session that the options name, or a new one."""
    mode = {} if options.mode is None else {"mode": options.mode}
    if options.resume is not None:
        stored = await find_session(store, options.resume)
        if pool_workspace(stored.workspace) is None:
            raise CliError(f"session {short(stored.id)} works in {stored.workspace}, in no pool")
    elif options.go_on:
        if "/" not in pool:
            raise CliError("--continue needs the workspace, too: --pool POOL/WORKSPACE")
        stored = await agents.newest(store, f"{POOL_PREFIX}{pool}")
    else:
        body = {"pool": pool, **mode}
        opened = await asyncio.to_thread(server.request, "POST", "/v1/sessions", body, _OPENING_S)
        return str(opened["id"])
    if mode:
        await asyncio.to_thread(server.request, "PATCH", f"/v1/sessions/{stored.id}", mode)
    return stored.id


class _Turn:
    """What one turn said, shown as it comes."""

    def __init__(self, cards: Cards) -> None:
        self.text = ""
        """What the model said last."""
        self.notice: str | None = None
        self._cards = cards

    def take(self, event: Event) -> str | None:
        """What the model says with this event."""
        if event.type == CHAT:
            self.text = str(event.payload.get("content", ""))
            return self.text
        if event.type == NOTICE:
            self.notice = str(event.payload.get("message", ""))
        self._cards(event)
        return None


class _Run:
    by = "callgate run"

    def __init__(self, options: Namespace, pool: str) -> None:
        self._options = options
        self._pool = pool
        self._format: str = options.output_format
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        screen = Screen(sys.stderr, paint_for(sys.stderr), width=None, moves=False)
        self._cards = Cards(screen, None, mark="*", here=here(self.by), live=False)
        self._signal: int | None = None

    async def run(self, prompt: str) -> int:
        """The exit code."""
        tty = None
        if not self._options.no_input and (is_terminal(sys.stdin) or is_terminal(sys.stderr)):
            tty = open_tty()
        async with _opened(self._options, self._pool, tty, self.by) as turns:
            self._cards.session_id = turns.session
            turn = _Turn(self._cards)
            async with self._stoppable(turns):
                end = await turns.take(
                    prompt, self._options.model, lambda place, event: self._show(turn, place, event)
                )
        if self._format != "text":
            print_json(described(turns.session, end, turn.text, turn.notice))
        if turn.notice is not None:
            say(f"callgate: {visible(turn.notice)}")
        stop = stop_of(end)
        if stop != "end_turn":
            say(f"hint: callgate run --pool {self._pool} --resume {turns.session} PROMPT goes on.")
        if stop == "cancelled" and self._signal is not None:
            return 128 + self._signal
        return agents.CODES.get(stop, agents.CODES["error"])  # type: ignore[call-overload,no-any-return]

    def _show(self, turn: _Turn, place: int, event: Event) -> None:
        if self._format == "stream-json":
            print_placed(place, event)
            sys.stdout.flush()
        text = turn.take(event) if self._format == "text" else _quietly(turn, event)
        if text is not None and self._format == "text":
            print_text(text)
            sys.stdout.flush()

    @asynccontextmanager
    async def _stoppable(self, turns: PoolTurns) -> AsyncIterator[None]:
        """The first signal stops the turn, and it is waited for; the second is not waited for."""
        loop = asyncio.get_running_loop()
        stopping: list[asyncio.Task[None]] = []

        def stop(number: int) -> None:
            if self._signal is not None:
                exit_now(128 + number)
            self._signal = number
            say("callgate: stopping; once more leaves at once")
            stopping.append(start_task(asyncio.to_thread(turns.cancel)))

        for each in _SIGNALS:
            loop.add_signal_handler(each, stop, each)
        try:
            yield
        finally:
            for each in _SIGNALS:
                loop.remove_signal_handler(each)
            await asyncio.gather(*stopping, return_exceptions=True)


def _quietly(turn: _Turn, event: Event) -> str | None:
    """The same without lines about calls."""
    if event.type in (CHAT, NOTICE):
        return turn.take(event)
    return None


def chat_in_pool(options: Namespace, pool: str, prompt: str) -> int:
    set_up(options.debug)
    with explained(), BackgroundLoop() as background:
        stack = AsyncExitStack()
        opening = _opened(options, pool, open_tty(), _Chat.by)
        turns = background.do(stack.enter_async_context(opening))
        try:
            return _Chat(options, turns, background).run(prompt)
        finally:
            background.do(stack.aclose())


class _Chat:
    by = "callgate chat"

    def __init__(self, options: Namespace, turns: PoolTurns, background: BackgroundLoop) -> None:
        self._options = options
        self._turns = turns
        self._background = background
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        terminal = is_terminal(sys.stdout)
        self._paint = Paint(not options.plain and wants_colour(terminal, os.environ))
        width = columns() if terminal else None
        moves = terminal and not options.plain
        self._screen = Screen(sys.stdout, self._paint, width=width, moves=moves)
        self._cards = Cards(self._screen, None, mark="*", here=here(self.by), live=False)
        self._cards.session_id = turns.session
        home = Home.from_environment()
        self._lines = open_lines(home, self._paint, _LEAVES, plain=options.plain)

    def run(self, prompt: str) -> int:
        """Talk until the user leaves; the exit code."""
        said = False
        try:
            while True:
                message = prompt or self._lines.read()
                prompt = ""
                if message is None or message.strip() in _LEAVES:
                    return OK
                if message.strip():
                    said = True
                    self._take(message)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            if said:
                id = short(self._turns.session)
                say(f"To go on: callgate chat --pool {self._options.pool or 'NAME'} --resume {id}")

    def _take(self, prompt: str) -> None:
        turn = _Turn(self._cards)

        def show(place: int, event: Event) -> None:
            text = turn.take(event)
            if text is not None:
                self._screen.text(text)
                self._screen.settle()

        taking = self._background.start(self._turns.take(prompt, self._options.model, show))
        try:
            end = self._until_over(taking)
        except CliError as error:
            self._note(error.message)
            return
        if turn.notice is not None:
            self._note(turn.notice)
        if end.type == TURN_CANCELLED:
            self._note("Stopped. Ctrl-C again leaves.")

    def _until_over(self, taking: Future[Event]) -> Event:
        """The first Ctrl-C stops the turn, the second leaves."""
        try:
            return self._background.wait_for(taking)
        except KeyboardInterrupt:
            self._background.start(asyncio.to_thread(self._turns.cancel))
        return self._background.wait_for(taking)

    def _note(self, text: str) -> None:
        self._screen.line(self._paint("yellow", visible(text)))
