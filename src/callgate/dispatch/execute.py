"""Stage 5: run the tool, in this task, under its time limit, and take it down if told to.

The tool's coroutine is driven step by step inside the task that called the dispatcher: no
task per call, no timer for a tool that never waits, and `asyncio.timeout` or a task group
inside the tool sees the task it expects. Only work that ignores every way of stopping it is
moved to a task of its own, so that its caller can be answered.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from typing import Any, TypeGuard

from callgate.core.content import FileDiff, ImageBlock, JsonBlock, TextBlock
from callgate.core.errors import (
    EXCEPTION,
    GENERIC_FAILURE,
    ToolCancelled,
    ToolError,
    ToolExecutionError,
    add_details,
)
from callgate.core.tools import Tool, ToolContext, ToolFactory, ToolOutput
from callgate.dispatch.failures import log_failure
from callgate.dispatch.raw_open import watched
from callgate.dispatch.running import Running, RunningCall, Stop

_log = logging.getLogger("callgate.dispatch")

Work = Coroutine[Any, Any, ToolOutput]
Release = Callable[[str, str, int | None], None]
_BLOCKS = frozenset({TextBlock, ImageBlock, JsonBlock})

CALLER_WATCH = 10
"""How many graces a tool may take to clean up after a cancellation that is not ours."""


class Stopped(Exception):
    """The work did not get to its end: why, and what it had to show by then."""

    def __init__(self, error: ToolError, partial: ToolOutput | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.partial = partial


async def execute(
    factory: ToolFactory,
    arguments: dict[str, Any],
    context: ToolContext,
    running: RunningCall,
    table: Running,
    timeout_s: float,
    release: Release,
) -> ToolOutput:
    """The tool's output. `release` gives the slot of work back that had to be abandoned."""
    error: BaseException | None = None
    output: ToolOutput | None = None
    tool: Tool | None = None
    timer: _Timer | None = None
    ends_at = running.began + timeout_s
    token = watched.set([running.call.tool, running.call.session.id])
    try:
        tool = running.tool = factory()
        running.context, running.limit_s = context, timeout_s
        work = tool.execute(arguments, context)
        try:
            waits_for = work.send(None)
        except StopIteration as finished:  # it never waits: nothing can interrupt it anyway
            output = finished.value
        else:
            timer = _Timer(running, table, ends_at)
            output = await _drive(work, waits_for, running, table, timer, release, context)
        if running.stop is None and perf_counter() > ends_at:  # it blocked the loop
            running.stop = Stop.TIMEOUT
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as raised:  # a tool's own code: whatever it raises ends this call only
        error = raised
    finally:
        running.tool = None
        watched.reset(token)
        if timer is not None:
            timer.disarm()
    if running.cancels_sent:
        await _settle(running)
    if running.task.cancelling() > running.cancelling:  # whoever awaits us was cancelled meanwhile
        running.stop = Stop.CALLER_GONE
    if running.stop is not None:
        stopped = not running.abandoned and getattr(tool, "stoppable", True)
        stop = running.stop_error(stopped=stopped)
        if isinstance(error, ToolCancelled):
            stop.details = add_details(error.details, **stop.detail_fields)
        raise Stopped(stop, _partial(output, error))
    if error is not None:
        failure, partial = _as_tool_error(error, running), _partial(None, error)
        raise failure if partial is None else Stopped(failure, partial)
    if not _is_output(output):
        _log.error("tool %s returned something that is not a ToolOutput", running.call.tool)
        raise ToolExecutionError(is_user_visible=False, reason="bad_output")
    return output


def _is_output(output: object) -> TypeGuard[ToolOutput]:
    if type(output) is not ToolOutput and not isinstance(output, ToolOutput):
        return False
    if type(output.content) is not list or type(output.metadata) is not dict:
        return False
    for block in output.content:
        if type(block) not in _BLOCKS:
            return False
    return not output.diffs or all(type(each) is FileDiff for each in output.diffs)


class _Timer:
    """The time limit of a tool that waits."""

    __slots__ = ("ends_at", "running", "table", "watch")

    def __init__(self, running: RunningCall, table: Running, ends_at: float) -> None:
        self.running, self.table, self.ends_at = running, table, ends_at
        self.watch: asyncio.TimerHandle | None = None
        table.deadlines.note(self)

    def disarm(self) -> None:
        self.table.deadlines.strike(self)
        if self.watch is not None:
            self.watch.cancel()

    def watch_caller(self) -> None:
        """A cancellation that is not ours was handed to the tool. If it is still standing
        after a while, it was meant for the caller, and the tool does not heed it."""
        if self.watch is None:
            delay = CALLER_WATCH * self.table.limits.grace_s
            self.watch = asyncio.get_running_loop().call_later(delay, self._judge_caller)

    def _judge_caller(self) -> None:
        self.watch = None
        running = self.running
        if running.task.cancelling() > running.cancelling + running.cancels_sent:
            self.table.start_task(self.table.stop(running, Stop.CALLER_GONE))

    def expire(self) -> None:
        self.table.start_task(self.table.stop(self.running, Stop.TIMEOUT))


@types.coroutine
def _drive(
    work: Work,
    waits_for: Any,
    running: RunningCall,
    table: Running,
    timer: _Timer,
    release: Release,
    context: ToolContext,
) -> Generator[Any, None, ToolOutput]:
    """Run the rest of a coroutine in this task, able to walk away from it."""
    has_reader = running.call.backpressure is not None
    while True:
        thrown: BaseException | None = None
        try:
            yield waits_for
            if has_reader and (drain := context.backpressure()) is not None:
                yield from drain
        except asyncio.CancelledError as error:
            if running.cancels_delivered < running.cancels_sent:
                running.cancels_delivered += 1
            else:  # the tool's own timeout, or whoever awaits us was cancelled
                timer.watch_caller()
            if running.abandoned:
                _detach(work, error, running, table, release)
                raise
            thrown = error
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # what the tool waits for has failed: it is told
            thrown = error
        try:
            waits_for = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration as finished:
            return finished.value  # type: ignore[no-any-return]


def _detach(
    work: Work,
    error: asyncio.CancelledError,
    running: RunningCall,
    table: Running,
    release: Release,
) -> None:
    """Let abandoned work go on in a task of its own, with its slot, for a bounded time."""
    slot, running.slot = running.slot, None

    async def go_on() -> None:
        try:
            async with asyncio.timeout(table.limits.slot_s):
                await _finish_coroutine(work, error)
        except TimeoutError:
            _log.error("abandoned work did not end in %g s and was dropped", table.limits.slot_s)
        except Exception as failure:  # a tool's own code, after its caller was answered
            log_failure(_log, failure, "abandoned work failed")
        finally:
            if slot is not None:
                release(*slot)

    table.let_go(go_on())


@types.coroutine
def _finish_coroutine(work: Work, error: asyncio.CancelledError) -> Generator[Any, None, None]:
    """What is left of a coroutine that was started elsewhere; a cancel now really ends it."""
    thrown: BaseException | None = error
    while True:
        try:
            waiting = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration:
            return
        thrown = None
        try:
            yield waiting
        except (asyncio.CancelledError, GeneratorExit):
            work.close()
            raise
        except BaseException as failed:
            thrown = failed


async def _settle(running: RunningCall) -> None:
    """Balance the cancellations we sent to the caller's task, delivered or not."""
    if running.cancels_sent > running.cancels_delivered:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            running.cancels_delivered += 1
    for _ in range(running.cancels_sent):
        running.task.uncancel()


def _partial(output: Any, error: BaseException | None) -> ToolOutput | None:
    if _is_output(output):
        return output
    fields = error.detail_fields if isinstance(error, ToolError) else {}
    if not isinstance(text := fields.get("partial_output"), str):
        return None
    return ToolOutput(content=[TextBlock(text)], success=False)


def _as_tool_error(error: BaseException, running: RunningCall) -> ToolError:
    if isinstance(error, ToolError):
        if isinstance(error, ToolCancelled) and error.reason is None:
            error.reason = "by_the_tool"
        return error
    # The text may hold anything the tool came across: only the log gets it, redacted.
    log_failure(_log, error, "tool %s failed (call %s)", running.call.tool, running.call.id)
    return ToolExecutionError(
        GENERIC_FAILURE,
        underlying=error if isinstance(error, Exception) else None,
        is_user_visible=False,
        reason="exception",
        details={EXCEPTION: type(error).__name__},
    )
