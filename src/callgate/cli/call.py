"""`callgate call`: run one tool once. Its result on stdout, everything else on stderr."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, NamedTuple

from callgate.audit.summaries import summarize
from callgate.cli.arguments import read_arguments
from callgate.cli.asking import Asker
from callgate.cli.embedded import find_tool, open_runtime
from callgate.cli.envelope import block_text, envelope, shown_blocks
from callgate.cli.exits import EXIT_CODES, OK
from callgate.cli.lineage import refuse_within_a_call
from callgate.cli.output import print_json, print_text
from callgate.cli.problems import CliError
from callgate.cli.terminal import Paint, is_terminal, say, wants_colour
from callgate.cli.tty import open_tty
from callgate.cli.visible import clip, visible_text
from callgate.config.saved import saved_rule
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import ImageBlock
from callgate.core.errors import ToolError, ToolErrorClass
from callgate.core.events import CONFIRMATION_REQUESTED, OUTPUT_DELTA, PROGRESS, Event
from callgate.core.results import ErrorInfo, ToolResult
from callgate.dispatch.confirmations import Answer, Confirmation, Confirmer
from callgate.dispatch.registry import Registered
from callgate.dispatch.sandboxes import OFF
from callgate.policy.rules import Outcome
from callgate.wiring import Wired

_DISK = ("store_unwritable", "audit_unwritable", "undo_unwritable")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(NamedTuple):
    result: ToolResult
    signal: int | None = None
    """The first of those that told us to stop."""

    @property
    def exit_code(self) -> int:
        error = self.result.error
        if error is None:
            return OK
        if self.signal is not None and error.error_class is ToolErrorClass.CANCELLED:
            return 128 + self.signal
        return EXIT_CODES[error.error_class]

    @property
    def goes_on(self) -> bool:
        """The work could not be stopped: a thread of it still runs, and would be waited for."""
        error = self.result.error
        return error is not None and (error.details or {}).get("stopped") is False


def call(options: Namespace) -> int:
    if not options.words:
        raise CliError("which tool? callgate call NAME [key=value ...]", hint="See callgate tools.")
    refuse_within_a_call("callgate call")
    wired, session = open_runtime(options, audit=True)
    name, *pairs = options.words
    tool = find_tool(wired, name)
    arguments: Any = {}
    unreadable: ToolError | None = None
    try:
        schema = {} if tool is None else tool.definition.input_schema
        arguments = read_arguments(pairs, options.args, schema)
    except ToolError as error:
        unreadable = error
    made = ToolCall(
        tool=name if tool is None else tool.name,
        arguments=arguments,
        session=session,
        caller=CallerKind.CLI,
        timeout_s=options.timeout,
    )
    session.title = clip(f"{made.tool} {summarize(arguments)}", 80)
    return run_call(wired, made, tool, options, unreadable)


def run_call(
    wired: Wired,
    made: ToolCall,
    tool: Registered | None,
    options: Namespace,
    unreadable: ToolError | None = None,
    show: Callable[[Ended], int] | None = None,
) -> int:
    """Make a call and show how it ended; the exit code. `unreadable` is why it cannot run.

    `show` does it in another way, and gives the exit code.
    """
    live = _Live(options.verbose, options.wait)
    runner = asyncio.Runner()
    ended = runner.run(_run(wired, made, options, live, unreadable))
    code = _show(ended, tool, options, live) if show is None else show(ended)
    if ended.goes_on:
        sys.stdout.flush()
        os._exit(code)
    runner.close()
    return code


async def _run(
    wired: Wired, made: ToolCall, options: Namespace, live: _Live, unreadable: ToolError | None
) -> Ended:
    runtime = wired.runtime
    try:
        if unreadable is not None:
            return Ended(runtime.refuse(made, unreadable))
        confirmer = _confirmer(wired, made, options)
        attached: AbstractContextManager[None] = nullcontext()
        if confirmer is not None or options.wait:
            attached = runtime.attach(confirmer, made.session.id)
        unlisten = wired.bus.listen(live)
        with attached:
            ended = await _until_the_end(wired, made)
        unlisten()
        return ended
    finally:
        await wired.close()


async def _until_the_end(wired: Wired, made: ToolCall) -> Ended:
    """Run the call; the first signal stops it, and it is waited for."""
    loop = asyncio.get_running_loop()
    signals: list[int] = []
    async with asyncio.TaskGroup() as group:
        work = group.create_task(wired.runtime.call(made))

        def stop(number: int) -> None:
            signals.append(number)
            if len(signals) == 1:
                say("callgate: stopping the call")
                group.create_task(wired.runtime.cancel(made.id))

        for each in _SIGNALS:
            loop.add_signal_handler(each, stop, each)
        try:
            await asyncio.wait({work})
        finally:
            for each in _SIGNALS:
                loop.remove_signal_handler(each)
    return Ended(work.result(), signals[0] if signals else None)


def _confirmer(wired: Wired, made: ToolCall, options: Namespace) -> Confirmer | None:
    """Who answers a question: `--yes`, the person at the terminal, or nobody."""
    if options.yes:
        return _say_yes
    tty = None if options.no_input or options.wait else open_tty()
    if tty is None:
        return None

    def suggest() -> Mapping[str, str | bool]:
        subject, _ = wired.runtime.explain(made)
        return saved_rule(
            tool=subject.tool.name,
            decision=Outcome.ALLOW,
            workspace=made.session.workspace,
            arguments=subject.checked.arguments,
            arguments_sha256=subject.checked.sha256,
            places=subject.places,
            network=subject.widened,
        )

    async def rehearse(question: Confirmation) -> str:
        previews = import_module("callgate.cli.preview")  # heavy, and rarely wanted
        said = await previews.rehearse(wired, made.session, str(question.arguments["command"]))
        return str(said)

    can = made.tool == "shell" and wired.sandbox.surroundings is not OFF
    paint = Paint(wants_colour(True, os.environ))
    return Asker(tty, paint, suggest, rehearse if can else None)


async def _say_yes(question: Confirmation) -> Answer:
    what = question.command_summary or question.input_summary
    say(f"--yes allows {question.tool}: {clip(what, 200)}")
    return Answer(decision=Outcome.ALLOW, by="--yes")


class _Live:
    """On stderr: with `-v` what a tool says while it works, with `--wait` what is asked."""

    def __init__(self, on: bool, wait: bool) -> None:
        self._on = on
        self._wait = wait
        self.streamed = False

    def __call__(self, event: Event) -> None:
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


def _show(ended: Ended, tool: Registered | None, options: Namespace, live: _Live) -> int:
    result = ended.result
    if options.json:
        print_json(envelope(result))
    # On one terminal, what was seen live is not shown again.
    elif not (live.streamed and is_terminal(sys.stdout) and is_terminal(sys.stderr)):
        _show_content(result, options.quiet)
    for note in result.diagnostics:
        say(f"note: {note}")
    if result.error is not None:
        reported = result.error.reason == "tool_reported"
        message = f"{result.tool} reported failure" if reported else result.error.message
        say(f"error ({result.error.error_class}): {message}")
        hint = _hint(result.error, tool, result.tool)
        if hint is not None:
            say(f"hint: {hint}")
    if options.verbose:
        say(f"callgate: embedded runtime, call {result.call_id}, {result.duration_ms:.0f} ms")
    return ended.exit_code


def _show_content(result: ToolResult, quiet: bool) -> None:
    blocks = shown_blocks(result)
    if result.ok and not "".join(map(block_text, blocks)):
        if not quiet:
            print_text("ok")
        return
    if blocks:
        print_text("\n".join(map(block_text, blocks)))
    if any(isinstance(block, ImageBlock) for block in blocks):
        say("hint: --json prints the image as base64.")


def _hint(error: ErrorInfo, tool: Registered | None, name: str) -> str | None:
    if error.reason == "no_confirmer":
        return (
            "--yes allows it this once; a rule in settings.toml allows it for good; "
            f"callgate policy explain {name} ... says why it is asked."
        )
    if not error.user_visible:
        return "CALLGATE_LOG=debug shows what happened."
    match error.error_class:
        case ToolErrorClass.NOT_FOUND:
            return "callgate tools --all lists the tools."
        case ToolErrorClass.VALIDATION_ERROR if tool is not None:
            return f"{name} takes {_takes(tool)}"
        case ToolErrorClass.PERMISSION_DENIED if error.reason in _DISK:
            return "callgate doctor says more."
        case ToolErrorClass.PERMISSION_DENIED:
            return f"callgate policy explain {name} ... says which rule decided."
    return None


def _takes(tool: Registered) -> str:
    """What arguments there are, as one would write them."""
    schema = tool.definition.input_schema
    required = schema.get("required", ())
    words = []
    for key, each in schema.get("properties", {}).items():
        kind = each.get("type", "value")
        word = f"{key}={kind if isinstance(kind, str) else '|'.join(kind)}"
        words.append(word if key in required else f"[{word}]")
    return " ".join(words) or "no arguments."
