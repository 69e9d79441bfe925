"""`callgate call`: run one tool once. The result goes to stdout, everything else to stderr."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from callgate.cli import remote_call as remote
from callgate.cli.arguments import read_arguments
from callgate.cli.embedded import find_tool, open_runtime
from callgate.cli.errors import CliError
from callgate.cli.ui import call_results
from callgate.cli.ui.call_results import CallOutcome
from callgate.cli.ui.terminal import has_terminal, is_terminal, say
from callgate.cli.ui.visible import shorten, visible_text
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolError
from callgate.core.events import (
    CALLED,
    CONFIRMATION_REQUESTED,
    OUTPUT_DELTA,
    PROGRESS,
    TERMINAL,
    Event,
)
from callgate.dispatch.tools.registry import Registered
from callgate.instance.watchdog import watch_runtime
from callgate.instance.wiring.runtime import Wired
from callgate.redaction.data import summarize

if TYPE_CHECKING:  # a usual call is read without it
    from argparse import Namespace

    from callgate.cli.logs import ProgressLine
    from callgate.dispatch.permission.confirmations import Confirmer

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def call(options: Namespace) -> int:
    if not options.words:
        raise CliError(
            "no tool was named: callgate call NAME [key=value ...]", hint="See callgate tools."
        )
    looks = not options.no_instance
    if looks and (code := remote.call(options)) is not None:
        return code
    remote.refuse_within_a_call()
    wired, session = open_runtime(options, audit=True, meant=options.words[0])
    name, *words = options.words
    tool = find_tool(wired, name)
    arguments: Any = {}
    unreadable: ToolError | None = None
    try:
        schema = {} if tool is None else tool.definition.input_schema
        arguments = read_arguments(words, options.args, schema)
    except ToolError as error:
        unreadable = error
    tool_call = ToolCall(
        tool=name if tool is None else tool.name,
        arguments=arguments,
        session=session,
        caller=CallerKind.CLI,
        timeout_s=options.timeout,
        trace=None if wired.tracing is None else wired.tracing.current(),
    )
    session.title = shorten(f"{tool_call.tool} {summarize(arguments)}", 80)
    code = run_call(wired, tool_call, tool, options, unreadable)
    if looks or getattr(options, "found_none", False):
        _start_instance(wired, session.workspace, options)
    return code


def _start_instance(wired: Wired, workspace: str, options: Namespace) -> None:
    """Start an instance for later calls, if the settings permit it."""
    minutes = wired.settings.instance.on_demand_minutes
    if minutes == 0 or (minutes is None and "XDG_RUNTIME_DIR" not in os.environ):
        return
    if options.debug or os.environ.get("CALLGATE_LOG"):  # an instance has its own log
        return
    from callgate.cli.commands import on_demand  # lazy: see above  # noqa: PLC0415

    if minutes := on_demand.idle_minutes(wired.settings):
        on_demand.start_instance(wired.home.path, workspace, minutes)


def run_call(
    wired: Wired,
    call: ToolCall,
    tool: Registered | None,
    options: Namespace,
    unreadable: ToolError | None = None,
    show: Callable[[CallOutcome], int] | None = None,
) -> int:
    """Make a call, show its result, and return the exit code.

    `unreadable`: the reason why the arguments could not be read. `show` replaces the usual
    output and returns the exit code.
    """
    live = _Live(options.verbose, options.wait, _progress_line(options))
    runner = asyncio.Runner()
    ended = runner.run(_run(wired, call, options, live, unreadable))
    version = wired.policies.version(call.session.workspace)
    code = _show(ended, tool, options, live, version) if show is None else show(ended)
    if ended.goes_on:
        sys.stdout.flush()
        os._exit(code)
    runner.close()
    return code


def _progress_line(options: Namespace) -> ProgressLine | None:
    if not is_terminal(sys.stderr) or options.verbose or options.quiet:
        return None
    from callgate.cli.logs import ProgressLine  # lazy: only at a terminal  # noqa: PLC0415

    return ProgressLine(wanted=True)


async def _run(
    wired: Wired, call: ToolCall, options: Namespace, live: _Live, unreadable: ToolError | None
) -> CallOutcome:
    runtime = wired.runtime
    try:
        watch_runtime(wired)
        if unreadable is not None:
            return CallOutcome(runtime.calls.refuse(call, unreadable))
        answers = _confirmer(wired, call, options)
        attached: AbstractContextManager[None] = nullcontext()
        if answers is not None or options.wait:
            attached = runtime.permission.attach(answers, call.session.id)
        unlisten = wired.bus.listen(live)
        with attached:
            ended = await _until_the_end(wired, call)
        unlisten()
        live.stop_waiting()
        return ended
    finally:
        await wired.close()


def _confirmer(wired: Wired, call: ToolCall, options: Namespace) -> Confirmer | None:
    """Return the approver of the call; None if there is none."""
    if not options.yes and (options.no_input or options.wait or not has_terminal()):
        return None
    from callgate.cli.ui.confirmation_prompt import confirmer  # lazy: only where one can be asked  # noqa: PLC0415

    return confirmer(wired, call, options)


async def _until_the_end(wired: Wired, call: ToolCall) -> CallOutcome:
    """Run the call. The first signal cancels it, and its end is awaited."""
    loop = asyncio.get_running_loop()
    signals: list[int] = []
    async with asyncio.TaskGroup() as group:
        work = group.create_task(wired.runtime.calls.run(call))

        def stop(number: int) -> None:
            signals.append(number)
            if len(signals) == 1:
                say("callgate: stopping the call")
                group.create_task(wired.runtime.calls.cancel(call.id))

        for each in _SIGNALS:
            loop.add_signal_handler(each, stop, each)
        try:
            await asyncio.wait({work})
        finally:
            for each in _SIGNALS:
                loop.remove_signal_handler(each)
    return CallOutcome(work.result(), signals[0] if signals else None)


class _Live:
    """Live output on stderr: tool output with `-v`, questions with `--wait`."""

    def __init__(self, on: bool, wait: bool, waiting: ProgressLine | None) -> None:
        self._on = on
        self._wait = wait
        self._waiting = waiting
        self.streamed = False

    def stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()

    def __call__(self, event: Event) -> None:
        if event.type == CALLED and self._waiting is not None:
            self._waiting.start(str(event.payload["tool_name"]))
        elif event.type in TERMINAL or event.type == CONFIRMATION_REQUESTED:
            self.stop_waiting()
        if self._wait and event.type == CONFIRMATION_REQUESTED:
            id = event.payload["confirmation_request_id"]
            say(f"callgate: waiting for an answer: callgate confirmations allow {id}")
        if not self._on:
            return
        if event.type == OUTPUT_DELTA:
            self.streamed = True
            sys.stderr.write(visible_text(str(event.payload["text"])))
            sys.stderr.flush()
        elif event.type == PROGRESS:
            fraction = event.payload.get("fraction")
            percent = "" if fraction is None else f" {fraction:.0%}"
            say(f"progress:{percent} {event.payload.get('message') or ''}".rstrip())


def _show(
    ended: CallOutcome, tool: Registered | None, options: Namespace, live: _Live, policy: str
) -> int:
    schema = None if tool is None else tool.definition.input_schema
    answered_by = {"instance": None, "policy": policy}
    return call_results.show(
        ended, schema, options, streamed=live.streamed, answered_by=answered_by
    )
