"""`callgate preview`: run a command over an overlay, show what it would change, apply it or not.

Two calls like any other: `preview` runs the command, `apply_preview` writes. Each is asked
about as the policy says; where it lets writes pass, a person at the terminal is asked still.
"""

from __future__ import annotations

import asyncio
import shlex
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from callgate.cli.commands.call import run_call
from callgate.cli.dry_run import register, register_preview
from callgate.cli.embedded import find_tool, open_runtime
from callgate.cli.errors import CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.call_results import CallOutcome
from callgate.cli.ui.dialog import Lines, agreed
from callgate.cli.ui.envelope import envelope
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.tty import open_tty
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolError
from callgate.dispatch.permission.presentation import arguments_text
from callgate.policy.rules import Outcome
from callgate.tools.preview import ApplyPreview, arguments
from callgate.tools.previews import Preview, discard
from callgate.wiring.runtime import Wired

Show = Callable[[CallOutcome], int] | None


def preview(options: Namespace) -> int:
    if not options.words:
        raise CliError("which command? callgate preview -- COMMAND ...")
    refuse_within_a_call("callgate preview")
    options.verbose = options.quiet = options.wait = False
    previews: list[Preview] = []
    shown: list[dict[str, Any]] = []
    show = _collecting(shown) if options.json else None
    try:
        code = _rehearse(options, previews, show)
        if previews and previews[0].changes and not options.discard:
            code = _apply(options, previews[0], show, code)
    finally:
        for each in previews:
            discard(each)
    if options.json:
        print_json({**shown[0], "apply": shown[1] if len(shown) > 1 else None})
    return code


def _rehearse(options: Namespace, previews: list[Preview], show: Show) -> int:
    wired, session = open_runtime(options, audit=True, meant="preview")
    register_preview(wired, session, previews.append)
    words = options.words
    call = ToolCall(
        tool="preview",
        arguments={"command": words[0] if len(words) == 1 else shlex.join(words)},
        session=session,
        caller=CallerKind.CLI,
        timeout_s=options.timeout,
    )
    return run_call(wired, call, find_tool(wired, "preview"), options, show=show)


def _apply(options: Namespace, found: Preview, show: Show, code: int) -> int:
    """Apply it if someone wants it; else the exit code stays."""
    tty = None if options.json or options.no_input else open_tty()
    if not options.apply and tty is None:
        say("callgate: nothing was applied; --apply does")
        return code
    wired, session = open_runtime(options, audit=True, meant="apply_preview")
    register(wired, lambda: ApplyPreview(found))
    call = ToolCall(
        tool="apply_preview",
        arguments=arguments(found),
        session=session,
        caller=CallerKind.CLI,
    )
    if not options.apply and not _wanted(wired, call, options):
        asyncio.run(wired.close())
        say("callgate: nothing was applied")
        return code
    return run_call(wired, call, find_tool(wired, "apply_preview"), options, show=show)


def _wanted(wired: Wired, call: ToolCall, options: Namespace) -> bool:
    """Whether the person wants it. Where the policy asks anyway, that is the question."""
    try:
        _, decision = wired.runtime.explain(call)
    except ToolError:
        return True  # the call will end in it, and be recorded
    if decision.outcome is not Outcome.ALLOW and not options.yes:
        return True
    tty = open_tty()
    if tty is None:
        return False
    lines = arguments_text(call.arguments).splitlines()
    return asyncio.run(agreed(tty, Lines(lines), "Apply these changes?"))


def _collecting(shown: list[dict[str, Any]]) -> Callable[[CallOutcome], int]:
    """Keep a result instead of printing it: `--json` prints one object."""

    def show(ended: CallOutcome) -> int:
        shown.append(envelope(ended.result))
        return ended.exit_code

    return show
