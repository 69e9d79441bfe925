"""callgate's side: the whole road of a call, and the same road with much lying idle.

gate          everything on: validation, policy, events with a reader, audit on disk, store
effects       gate, by a tool with effects, whose result waits until all of it is on the disk
rules         gate, under many rules
sessions      gate, with the calls of many sessions in turn
dispatcher    the road alone, as far as the peers go: nobody reads events, no audit
many_tools    gate, with 10,000 more tools registered
large_audit   gate, appending to an audit file of 100 MB
old_sessions  gate, after 10,000 sessions have come and gone
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Any

from benchmarks.cases import Case, Prepared, add
from callgate import CallerKind, Gate, Session, ToolCall, ToolResult, Wired, tool
from callgate.config.home import Home
from callgate.core.events import TERMINAL
from callgate.sources.functions import ToolFunction

SETTINGS = "[audit]\nmax_bytes = 4_000_000_000\n"
"""So that a large audit file stays the one that is written to."""


async def gate(case: Case, stack: AsyncExitStack) -> Prepared:
    return await _prepare(case, stack, _new_home(stack))


async def dispatcher(case: Case, stack: AsyncExitStack) -> Prepared:
    home = _new_home(stack)
    wired = Wired(Home(home), audit=False)
    wired.runtime.tools.register(as_tool(case))
    stack.push_async_callback(wired.close)
    session = wired.session(home)

    def call() -> Awaitable[ToolResult]:
        return wired.dispatcher.run(
            ToolCall(
                tool=case.function.__name__,
                arguments=case.arguments,
                session=session,
                caller=CallerKind.LIBRARY,
            )
        )

    return Prepared(call=call, value=_value)


async def effects(case: Case, stack: AsyncExitStack) -> Prepared:
    return await _prepare(case, stack, _new_home(stack), effect="write")


async def rules(case: Case, stack: AsyncExitStack, count: int) -> Prepared:
    """Rules of which none is about the call: about paths, commands and other tools."""
    of = ('path = "/srv/{}/**"', 'command = "program{} *"', 'tool = "other_{}"')
    lines = [f'[[policy.rules]]\ndecision = "deny"\n{of[n % 3].format(n)}' for n in range(count)]
    return await _prepare(case, stack, _new_home(stack), settings="\n".join(lines))


async def many_sessions(case: Case, stack: AsyncExitStack, count: int) -> Prepared:
    """Each session has made a call, and makes the next when its turn comes."""
    opened: list[tuple[Gate, list[Session]]] = []

    async def burden(gate: Gate) -> None:
        opened.append((gate, await used_sessions(gate, case, count)))

    prepared = await _prepare(case, stack, _new_home(stack), burden)
    ((gate, sessions),) = opened
    turns = cycle(sessions)

    def call() -> Awaitable[ToolResult]:
        name = case.function.__name__
        return gate.runtime.calls.run(
            ToolCall(tool=name, arguments=case.arguments, session=next(turns))
        )

    return prepared._replace(call=call, settle=gate._wired.log.flush)


async def many_tools(case: Case, stack: AsyncExitStack, count: int) -> Prepared:
    async def burden(gate: Gate) -> None:
        for factory in more_tools(count):
            gate.register(factory)

    return await _prepare(case, stack, _new_home(stack), burden)


async def large_audit(case: Case, stack: AsyncExitStack, size: int) -> Prepared:
    """The line of a real call, over and over: a writer reads no more than the end."""
    home = _new_home(stack)
    async with Gate(workspace=home, tools=[as_tool(case)], home=home) as gate:
        assert (await gate.call(case.function.__name__, case.arguments)).ok
    with open(Home(home).audit, "r+b") as file:
        line = file.read()
        file.write(line * (size // len(line)))
    return await _prepare(case, stack, home)


async def old_sessions(case: Case, stack: AsyncExitStack, count: int) -> Prepared:
    async def burden(gate: Gate) -> None:
        for session in await used_sessions(gate, case, count):
            await gate.runtime.sessions.close(session)

    return await _prepare(case, stack, _new_home(stack), burden)


def as_tool(case: Case) -> ToolFunction[..., Any]:
    return tool(case.function, side_effects="none")


def more_tools(count: int) -> list[ToolFunction[..., Any]]:
    return [tool(add, name=f"add_{number}", side_effects="none") for number in range(count)]


async def used_sessions(gate: Gate, case: Case, count: int) -> list[Session]:
    """Sessions that have each made a call and wait for the next."""
    sessions = [Session(workspace=gate.session.workspace) for _ in range(count)]
    for session in sessions:
        call = ToolCall(tool=case.function.__name__, arguments=case.arguments, session=session)
        assert (await gate.runtime.calls.run(call)).ok
    return sessions


class _Reader:
    """One subscriber that keeps up, and knows how many calls it has seen end."""

    def __init__(self, gate: Gate) -> None:
        self.seen = 0
        self._subscription = gate.events()

    async def run(self) -> None:
        async for event in self._subscription:
            if event.type in TERMINAL:  # type: ignore[union-attr]  # a gap would be our defect
                self.seen += 1

    async def until(self, count: int) -> None:
        while self.seen < count:
            await asyncio.sleep(0)


async def _prepare(
    case: Case,
    stack: AsyncExitStack,
    home: str,
    burden: Callable[[Gate], Awaitable[None]] | None = None,
    effect: str = "none",
    settings: str = "",
) -> Prepared:
    with open(Home(home).settings, "w", encoding="utf-8") as file:
        file.write(SETTINGS + settings)
    named = tool(case.function, side_effects=effect)
    gate = Gate(workspace=home, tools=[named], home=home, mode="write")
    await stack.enter_async_context(gate)
    if burden is not None:
        await burden(gate)
    reader = _Reader(gate)
    task = asyncio.create_task(reader.run())
    stack.callback(task.cancel)
    first = await gate.call(case.function.__name__, case.arguments)
    await reader.until(1)
    assert first.call_id in _last_line(Home(home).audit), "the audit log is not on"
    made = 1

    def call() -> Awaitable[ToolResult]:
        nonlocal made
        made += 1
        return gate.call(case.function.__name__, case.arguments)

    async def settle() -> None:
        await reader.until(made)
        await gate._wired.log.flush()  # the clock includes the work of the store

    return Prepared(call=call, value=_value, settle=settle)


def _last_line(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 8_192))
        return file.read().splitlines()[-1].decode()


def _value(result: ToolResult) -> Any:
    return result.value if result.ok else result.error


def _new_home(stack: AsyncExitStack) -> str:
    return stack.enter_context(tempfile.TemporaryDirectory(prefix="callgate-benchmark-"))
