"""The calls of one reply, run by the rules of a batch.

    outputs        at once, where they stand
    no effects     side by side, from the moment they are known
    with effects   when the reply is complete: one after another, the most urgent first
    sub-agents     when the reply is complete, side by side: their calls may have effects

A call without effects does not overtake one with effects that stands before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from callgate.agent.feedback import result_block
from callgate.agent.outputs import Outputs
from callgate.agent.shows import SPAWN_AGENT, Finished, Screen, Started
from callgate.agent.wanted import Wanted, in_order
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import ToolResultBlock
from callgate.core.errors import ToolCancelled, ToolError, ToolParseError
from callgate.core.ids import EXTERNAL_ID
from callgate.core.sessions import Session
from callgate.core.task_sets import start_task
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.dispatch.journal import LEFT_OPEN

Done = Callable[[ToolResultBlock], None]
_Running = asyncio.Task[ToolResultBlock | None]
"""A call under way; None: it is left open."""


class LeftOpen(Exception):
    """The runtime goes away while a person is asked: the turn goes on when it is resumed."""


class Batch:
    def __init__(
        self,
        dispatcher: ToolDispatcher,
        session: Session,
        caller: CallerKind,
        outputs: Outputs,
        screen: Screen,
        *,
        room: int,
        parent: str | None = None,
    ) -> None:
        """`room` is how many calls may run; `parent` the event they follow."""
        self._dispatcher = dispatcher
        self._session = session
        self._caller = caller
        self._outputs = outputs
        self._screen = screen
        self._room = room
        self.parent = parent
        self._holding = False
        """A call with effects waits: what comes behind it waits too."""
        self._tasks: dict[str, _Running] = {}
        self._results: dict[str, ToolResultBlock] = {}
        self._untold: list[ToolResultBlock] = []
        self.refused = 0
        """Calls for which there was no room."""

    @property
    def ran(self) -> int:
        return len(self._tasks)

    def has_failed(self, wanted: Sequence[Wanted]) -> bool:
        """Whether one of these calls was refused, invalid or failed; outputs do not count."""
        some = (self._results.get(each.use.id) for each in wanted if not each.is_output)
        return any(result is not None and result.is_error for result in some)

    def offer(self, wanted: Wanted, *, shown: int = 0) -> None:
        """A call is known while the reply still comes. `shown` are the characters of an output
        that the user has seen."""
        if wanted.is_output:
            self._answer(self._outputs.show(wanted, shown=shown))
        elif self._holding or wanted.problem is not None or self._must_wait(wanted):
            self._holding = True
        elif self._room > 0:
            self._start(wanted)

    async def finish(self, wanted: Sequence[Wanted], done: Done) -> None:
        """The reply is complete, and these are its calls: run what has not run yet.

        `done` gets each result as soon as it is there. When this is cancelled, what runs is
        stopped, and what has not run never does; then too each call has its result.
        """
        ordered = in_order(wanted)
        try:
            for each in ordered:
                self._tell(done)
                if each.use.id not in self._tasks and each.use.id not in self._results:
                    await self._run(each)
            await self._ended()
        except asyncio.CancelledError:
            await self._stop()
            for each in ordered:
                if each.use.id not in self._tasks and each.use.id not in self._results:
                    self._refuse(each, ToolCancelled())
            raise
        finally:
            self._tell(done)
        if any(_is_left_open(task) for task in self._tasks.values()):
            raise LeftOpen

    async def void(self) -> None:
        """The reply is void: stop what was started because of it."""
        await self._stop()

    async def _run(self, wanted: Wanted) -> None:
        if wanted.is_output:
            self._answer(self._outputs.show(wanted))
        elif wanted.problem is not None:
            self._refuse(wanted, ToolParseError(wanted.problem))
        elif self._room <= 0:
            self.refused += 1
            self._refuse(wanted, ToolCancelled(_NO_ROOM, reason="turn_limit"))
            await asyncio.sleep(0)  # there may be thousands, and other sessions go on
        elif self._has_effects(wanted):
            await self._ended()
            self._start(wanted)
            await self._ended()
        else:
            self._start(wanted)

    def _start(self, wanted: Wanted) -> None:
        self._room -= 1
        self._screen(Started(wanted.use))
        work = self._dispatched(self._call(wanted))
        self._tasks[wanted.use.id] = start_task(work)

    async def _dispatched(self, call: ToolCall) -> ToolResultBlock | None:
        result = await self._dispatcher.run(call)
        if result.error is not None and result.error.reason == LEFT_OPEN:
            return None
        block = result_block(result, call.id)
        self._screen(Finished(block, result.value))
        return block

    def _refuse(self, wanted: Wanted, error: ToolError) -> None:
        self._screen(Started(wanted.use))
        block = self._dispatcher.refuse(self._call(wanted), error).block(wanted.use.id)
        self._screen(Finished(block))
        self._answer(block)

    def _answer(self, result: ToolResultBlock) -> None:
        self._results[result.tool_use_id] = result
        self._untold.append(result)

    def _call(self, wanted: Wanted) -> ToolCall:
        use = wanted.use
        external = use.external_id
        return ToolCall(
            id=use.id,
            external_id=external if external and EXTERNAL_ID.match(external) else None,
            tool=use.name,
            arguments=use.input,
            session=self._session,
            caller=self._caller,
            turn_id=self._session.turn_id,
            parent_event_id=self.parent,
            repaired=wanted.repaired,
        )

    def _has_effects(self, wanted: Wanted) -> bool:
        tool = self._dispatcher.registry.find(wanted.use.name, self._session)
        return tool is not None and tool.has_effects

    def _must_wait(self, wanted: Wanted) -> bool:
        """For the end of the reply: what it does cannot be taken back if the reply is void."""
        tool = self._dispatcher.registry.find(wanted.use.name, self._session)
        return tool is not None and (tool.has_effects or tool.name == SPAWN_AGENT)

    async def _ended(self) -> None:
        """Wait until everything that was started has ended."""
        running = [task for task in self._tasks.values() if not task.done()]
        if running:
            await asyncio.wait(running)

    async def _stop(self) -> None:
        running = [id for id, task in self._tasks.items() if not task.done()]
        await asyncio.gather(*map(self._dispatcher.cancel, running))
        await self._ended()

    def _tell(self, done: Done) -> None:
        for id, task in self._tasks.items():
            if task.done() and id not in self._results and (block := task.result()) is not None:
                self._answer(block)
        untold, self._untold = self._untold, []
        for result in untold:
            done(result)


_NO_ROOM = "Not run: this turn has made as many calls as it may."


def _is_left_open(task: _Running) -> bool:
    return not task.cancelled() and task.exception() is None and task.result() is None
