"""The execute stage: run the tool in the caller's task, under a time limit, and stop it on request.

The tool's coroutine is driven step by step inside the task that called the dispatcher: no
task per call, no timer for a tool that never waits, and `asyncio.timeout` or a task group
inside the tool sees the task it expects. Work that ignores its cancellation is moved to another
task, so that its caller gets an answer.
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
from callgate.core.tools import Tool, ToolOutput
from callgate.dispatch.environments import CallContext
from callgate.dispatch.foreign_code import log_failure, watched
from callgate.dispatch.running import Running, RunningCall, Stop
from callgate.dispatch.subjects import Subject

_log = logging.getLogger("callgate.dispatch")

Work = Coroutine[Any, Any, ToolOutput]
Release = Callable[[str, str, int | None], None]
_BLOCKS = frozenset({TextBlock, ImageBlock, JsonBlock})

CALLER_WATCH = 10
"""Grace periods that a tool has for its cleanup after a cancellation from another task."""


class Stopped(Exception):
    """The work did not finish: the error, and the output up to then."""

    def __init__(self, error: ToolError, partial: ToolOutput | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.partial = partial


async def execute(
    subject: Subject,
    context: CallContext,
    running: RunningCall,
    table: Running,
    timeout_s: float,
    release: Release,
    waits: Callable[[], None],
) -> ToolOutput:
    """Return the output of the call's work. `release` frees the slot of abandoned work, and `waits`
    is called if the work does not end in its first step."""
    factory = subject.tool.factory if subject.work is None else subject.work.factory
    error: BaseException | None = None
    output: ToolOutput | None = None
    tool: Tool | None = None
    timer: _Timer | None = None
    ends_at = running.began + timeout_s
    token = watched.set([running.call.tool, running.call.session.id])
    try:
        tool = running.tool = factory()
        running.context, running.limit_s = context, timeout_s
        work = tool.execute(subject.checked.arguments, context)
        try:
            waits_for = work.send(None)
        except StopIteration as finished:  # the tool never waits: it cannot be interrupted
            output = finished.value
        else:
            waits()
            timer = _Timer(running, table, ends_at)
            output = await _drive(work, waits_for, running, table, timer, release, context)
        if running.stop is None and perf_counter() > ends_at:  # it blocked the loop
            running.stop = Stop.TIMEOUT
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as raised:  # a tool's own code: any exception ends only this call
        error = raised
    finally:
        running.tool = None
        watched.reset(token)
        if timer is not None:
            timer.disarm()
    if running.cancels_sent:
        await _settle(running)
    if running.task.cancelling() > running.cancelling:  # the awaiting task was cancelled
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
    return output if context.diagnostics is None else context.diagnosed(output)


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
        """Check later whether a cancellation from another task still counts. If so, its
        target is the caller, and the tool ignores it."""
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
    context: CallContext,
) -> Generator[Any, None, ToolOutput]:
    """Run the rest of a coroutine in this task; abandoned work can leave it."""
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
            else:  # the tool's own timeout, or a cancellation of the caller
                timer.watch_caller()
            if running.abandoned:
                _detach(work, error, running, table, release)
                raise
            thrown = error
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # the awaited future failed: pass the error to the tool
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
    """Move abandoned work, with its slot, to another task for a bounded time."""
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
    """Drive the rest of a coroutine that another task started. A cancellation ends it."""
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
    """Balance the cancellations that we sent to the caller's task, delivered or not."""
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
    # The text may contain any data that the tool saw: only the log gets it, redacted.
    log_failure(_log, error, "tool %s failed (call %s)", running.call.tool, running.call.id)
    return ToolExecutionError(
        GENERIC_FAILURE,
        underlying=error if isinstance(error, Exception) else None,
        is_user_visible=False,
        reason="exception",
        details={EXCEPTION: type(error).__name__},
    )
