"""`callgate run --pool` and `callgate chat --pool`: a server of this home runs the turns.

    POST a turn ---> server: model, policy, record ---> calls on a worker of the pool
    the store   ---> events as they arrive: text, calls, questions, which are answered here

The workspace of the session is on remote workers. The server owns the session. A user who leaves
during a turn loses nothing, and continues with `--resume`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from callgate.cli.commands.events import OfOne, print_placed
from callgate.cli.errors import INTERRUPTED, OK, CliError
from callgate.cli.instance_http import InstanceHttp, find_instance
from callgate.cli.logs import set_up
from callgate.cli.stores import explained, find_session, short
from callgate.cli.ui.confirmation_prompt import Answers
from callgate.cli.ui.output import print_json, print_text
from callgate.cli.ui.terminal import Paint, columns, is_terminal, paint_for, say, wants_colour
from callgate.cli.ui.tty import Tty, open_tty
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.stores import configured_store, open_store
from callgate.core.errors import ToolErrorClass
from callgate.core.events import (
    CHAT,
    CONFIRMATION_REQUESTED,
    NOTICE,
    TURN_CANCELLED,
    TURN_COMPLETED,
    Event,
)
from callgate.core.models import Usage
from callgate.core.sessions import POOL_PREFIX, pool_workspace
from callgate.core.stored import ConfirmationState
from callgate.core.stores import ConfirmationNotFound, Store
from callgate.core.tasks import BackgroundLoop, TaskSet, start_task
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Answer
from callgate.features.chat.commands import agents
from callgate.features.chat.commands.agents import Refusals
from callgate.features.chat.commands.cards import Cards, here
from callgate.features.chat.commands.screen import Screen, exit_now, open_lines
from callgate.policy.rules import Outcome

_NOBODY = "No approver is available, so the call is refused. Do not try to bypass the refusal."
_OPTION = "--allow"


class PoolTurns:
    """The turns of one session, one at a time."""

    def __init__(
        self,
        server: InstanceHttp,
        store: Store,
        session: str,
        *,
        by: str,
        tty: Tty | None,
        allowed: Collection[str] = (),
    ) -> None:
        """`by`: the command, for the record. `allowed`: tools whose calls are approved without a
        question.
        """
        self.session = session
        self.turn_id: str | None = None
        self._server = server
        self._store = store
        self._by = by
        self._allowed = frozenset(allowed)
        self._answers = None if tty is None else Answers(store, tty, by)
        self._asking = asyncio.Lock()
        """One question at a time."""

    async def take(
        self, prompt: str, model: str | None, show: Callable[[int, Event], None]
    ) -> Event:
        """Run a turn on the server. Return the event that ended it. `show` receives each event."""
        seen = (await self._store.get_session(self.session)).last_seq
        body = {"prompt": prompt} if model is None else {"prompt": prompt, "model": model}
        path = f"/v1/sessions/{self.session}/turns"
        begun = await asyncio.to_thread(self._server.request, "POST", path, body)
        self.turn_id = str(begun["turn_id"])
        answering = TaskSet()
        try:
            return await self._follow(OfOne(self._store, self.session, seen), show, answering)
        finally:
            self.turn_id = None
            answering.cancel()
            await answering.wait()

    async def _follow(
        self, pages: OfOne, show: Callable[[int, Event], None], answering: TaskSet
    ) -> Event:
        with pages.wake() as hint:
            while True:
                async for page in pages.there():
                    for cursor, event in page:
                        if event.type == CONFIRMATION_REQUESTED:
                            id = str(event.payload.get("confirmation_request_id"))
                            answering.start(self._answer(id))
                        show(int(cursor), event)
                        if self._is_end(event):
                            return event
                if not await hint.wait():
                    await self._ensure_under_way()

    def _is_end(self, event: Event) -> bool:
        ends = (TURN_COMPLETED, TURN_CANCELLED)
        return event.type in ends and event.turn_id in (None, self.turn_id)

    async def _ensure_under_way(self) -> None:
        """Raise `CliError` if the process that owns the turn has ended."""
        stored = await self._store.get_session(self.session)
        if stored.owner is None or not await self._store.alive(stored.owner):
            raise CliError(
                "the server that ran the turn has ended; the completed calls are recorded",
                hint=f"--resume {self.session} continues on another server.",
                error_class=ToolErrorClass.EXECUTION_ERROR,
                reason="interrupted",
            )

    def cancel(self) -> None:
        """Stop the turn on the server. Blocks."""
        if self.turn_id is not None:
            path = f"/v1/sessions/{self.session}/turns/{self.turn_id}"
            self._server.request("DELETE", path)

    async def _answer(self, id: str) -> None:
        try:
            stored = await self._store.get_confirmation(id)
            question = questions.read_question(stored)
        except (ConfirmationNotFound, msgspec.ValidationError):
            return  # closed, or of another version: another client answers it
        if stored.state is not ConfirmationState.PENDING:
            return
        if question.tool in self._allowed and not question.always_ask:
            answer = Answer(decision=Outcome.ALLOW, by=_OPTION)
            await questions.answer(self._store, id, answer)
        elif self._answers is None:
            name = visible(question.tool)
            say(f"callgate: {name} needs approval, and no approver is available: refused")
            answer = Answer(decision=Outcome.DENY, reason=_NOBODY, by=self._by)
            await questions.answer(self._store, id, answer)
        else:
            async with self._asking:
                await self._answers.ask(id)


def described(session: str, end: Event, text: str, notice: str | None) -> dict[str, Any]:
    """Return the end of a turn for JSON output, in the format of a local turn."""
    payload = end.payload
    usage = Usage(input=payload.get("input_tokens", 0), output=payload.get("output_tokens", 0))
    return {
        "session": session,
        "stop": stop_of(end),
        "text": text,
        "usage": msgspec.to_builtins(usage),
        "cost_usd": payload.get("cost_usd"),
        "cycles": payload.get("cycles", 0),
        "calls": payload.get("calls", 0),
        "notice": notice,
    }


def stop_of(end: Event) -> str:
    return str(end.payload.get("stop_reason") or "cancelled")


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OPENING_S = 60.0
_LIMITS = {"max_turns": "--max-turns", "max_tokens": "--max-tokens", "time_limit": "--time-limit"}
_LEAVES = ("/quit", "/exit")


def run_in_pool(options: Namespace, pool: str, prompt: str | None) -> int:
    given = [option for name, option in _LIMITS.items() if getattr(options, name) is not None]
    if given:
        raise CliError(
            f"{given[0]} cannot be used with --pool: the settings of the server have the limit"
        )
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
    """Return the session that the options select, or a new one."""
    mode = {} if options.mode is None else {"mode": options.mode}
    if options.resume is not None:
        stored = await find_session(store, options.resume)
        if pool_workspace(stored.workspace) is None:
            raise CliError(f"session {short(stored.id)} works in {stored.workspace}, not in a pool")
    elif options.go_on:
        if "/" not in pool:
            raise CliError("--continue needs a workspace: --pool POOL/WORKSPACE")
        stored = await agents.newest(store, f"{POOL_PREFIX}{pool}")
    else:
        body = {"pool": pool, **mode}
        opened = await asyncio.to_thread(server.request, "POST", "/v1/sessions", body, _OPENING_S)
        return str(opened["id"])
    if mode:
        await asyncio.to_thread(server.request, "PATCH", f"/v1/sessions/{stored.id}", mode)
    return stored.id


class _Turn:
    """The output of one turn, shown while it arrives."""

    def __init__(self, cards: Cards) -> None:
        self.text = ""
        """The model's last text."""
        self.notice: str | None = None
        self.refusals = Refusals()
        self._cards = cards

    def take(self, event: Event) -> str | None:
        """Record an event. Return the model's text in it, if any."""
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
        """Run the turn and return the exit code."""
        tty = None
        if not self._options.no_input and (is_terminal(sys.stdin) or is_terminal(sys.stderr)):
            tty = open_tty()
        async with _opened(self._options, self._pool, tty, self.by) as turns:
            self._cards.session_id = turns.session
            turn = _Turn(self._cards)
            async with self._stoppable(turns):
                end = await turns.take(
                    prompt,
                    self._options.model,
                    lambda cursor, event: self._show(turn, cursor, event),
                )
        stop = stop_of(end)
        refused, made_up_for = turn.refusals.report(Home.from_environment().audit)
        finished = stop == "end_turn" and made_up_for
        if self._format != "text":
            more = agents.described_refusals(refused, finished=finished)
            print_json(described(turns.session, end, turn.text, turn.notice) | more)
        if turn.notice is not None:
            say(f"callgate: {visible(turn.notice)}")
        if refused and not finished:
            say(f"callgate: {visible(agents.unfinished_words(refused))}")
        if stop != "end_turn":
            again = f"--pool {self._pool} --resume {turns.session} PROMPT"
            say(f"hint: callgate run {again} continues it.")
        if stop == "cancelled" and self._signal is not None:
            return 128 + self._signal
        code: int = agents.CODES.get(stop, agents.CODES["error"])  # type: ignore[call-overload]
        return code or (OK if made_up_for else agents.REFUSED)

    def _show(self, turn: _Turn, cursor: int, event: Event) -> None:
        turn.refusals.hear(event)
        if self._format == "stream-json":
            print_placed(cursor, event)
            sys.stdout.flush()
        text = turn.take(event) if self._format == "text" else _quietly(turn, event)
        if text is not None and self._format == "text":
            print_text(text)
            sys.stdout.flush()

    @asynccontextmanager
    async def _stoppable(self, turns: PoolTurns) -> AsyncIterator[None]:
        """Stop the turn at the first signal and wait for its end; exit at the second signal."""
        loop = asyncio.get_running_loop()
        stopping: list[asyncio.Task[None]] = []

        def stop(number: int) -> None:
            if self._signal is not None:
                exit_now(128 + number)
            self._signal = number
            say("callgate: stopping; interrupt again to exit immediately")
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
    """Record an event without showing calls. Return the model's text in it, if any."""
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
        """Run the conversation until the user leaves, and return the exit code."""
        has_prompt = False
        try:
            while True:
                message = prompt or self._lines.read()
                prompt = ""
                if message is None or message.strip() in _LEAVES:
                    return OK
                if message.strip():
                    has_prompt = True
                    self._take(message)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            if has_prompt:
                id = short(self._turns.session)
                pool = self._options.pool or "NAME"
                say(f"To continue: callgate chat --pool {pool} --resume {id}")

    def _take(self, prompt: str) -> None:
        turn = _Turn(self._cards)

        def show(cursor: int, event: Event) -> None:
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
            self._note("Stopped. Press Ctrl-C again to leave.")

    def _until_over(self, taking: Future[Event]) -> Event:
        """Return the end of the turn. The first Ctrl-C stops the turn, the second one leaves."""
        try:
            return self._background.wait_for(taking)
        except KeyboardInterrupt:
            self._background.start(asyncio.to_thread(self._turns.cancel))
        return self._background.wait_for(taking)

    def _note(self, text: str) -> None:
        self._screen.line(self._paint("yellow", visible(text)))
