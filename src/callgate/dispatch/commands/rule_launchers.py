"""Starts commands that path rules bind: looks for what the rules match, before and after.

Before, so that the jail is made without it. After, to name what came to match meanwhile: nothing
can be hidden that is not there yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from callgate.core.commands import Command, Exit, Launcher, OnOutput, RuleMatch, Running
from callgate.dispatch.commands.path_search import Matches, PathRuleUnkept
from callgate.dispatch.commands.wrapped_running import WrappedRunning

Search = Callable[[], Matches]
"""Blocks. Raises `PathRuleUnkept`."""


class RuleLauncher:
    def __init__(
        self, search: Search, without: Callable[[Matches], Launcher], *, report: bool
    ) -> None:
        """`without` gives the launcher of a jail in which these are not. `report`: whether what
        matches later is of interest, which takes a second search."""
        self._search = search
        self._without = without
        self._report = report

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        before = await _in_thread(self._search)
        running = await self._without(before).start(command, on_output)
        return _Reporting(running, self._search, before) if self._report else running


class _Reporting(WrappedRunning):
    """A command whose end says what matches a rule since it started."""

    def __init__(self, running: Running, search: Search, before: Matches) -> None:
        super().__init__(running)
        self._search = search
        self._before = before

    async def wait(self) -> Exit:
        ended = await self._running.wait()
        try:
            after = await _in_thread(self._search)
        except PathRuleUnkept as error:
            return msgspec.structs.replace(ended, unsearched=error.message)
        matches = tuple(
            RuleMatch(each.shown, each.rule.rule.decision.value)
            for each in after.later(self._before)
        )
        return msgspec.structs.replace(ended, rule_matches=matches)


async def _in_thread(search: Search) -> Matches:
    """Not in this context: what is opened there is not opened by the tool that runs."""
    return await asyncio.get_running_loop().run_in_executor(None, search)
