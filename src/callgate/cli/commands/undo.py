"""`callgate undo` and `preview`: restore changed files, and show changes before they happen.

`callgate preview` consists of two ordinary calls: `preview` runs the command, `apply_preview`
writes the files. The policy decides about each. Even if it allows writes, a person at the terminal
must agree before they are applied.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from argparse import Namespace
from collections.abc import Callable
from datetime import datetime
from typing import Any

from callgate.cli.commands.audit import since_ms
from callgate.cli.commands.call import run_call
from callgate.cli.dry_run import register, register_preview
from callgate.cli.embedded import find_tool, open_runtime
from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.call_results import CallOutcome, envelope
from callgate.cli.ui.dialog import Lines, agreed
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Column, print_rows
from callgate.cli.ui.terminal import say
from callgate.cli.ui.tty import open_tty
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import Settings
from callgate.config.undo_store import open_history
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolError, ToolErrorClass, ToolRegistrationError
from callgate.dispatch.permission.confirmations import arguments_text
from callgate.instance.wiring.runtime import Wired
from callgate.policy.rules import Outcome
from callgate.tools.preview import ApplyPreview, arguments
from callgate.tools.previews import Preview, discard
from callgate.tools.undo import Undo
from callgate.workspace.paths import readable, sayable
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import Recorded

_LISTED = 20
_SEARCHED = 1_000
"""Maximum number of calls that `--last` searches."""
_NAMED = 3
"""Maximum number of files per call in the list."""


def undo(options: Namespace) -> int:
    home = Home.from_environment()
    try:
        settings = load_user(home)[0]
    except SettingsError:  # the list is readable without them; a call refuses unusable settings
        settings = Settings()
    history = open_history(home, settings)
    try:
        history.settle_unfinished()
        arguments = _arguments(options, history)
        if arguments is None:
            return _list(history, as_json=options.json)
        refuse_within_a_call("callgate undo")
        if options.workspace is None:
            options.workspace = _workspace(history, arguments)
    except OSError as error:
        raise CliError(
            f"the history cannot be read: {error}",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="history_unreadable",
        ) from error
    return _run(history, arguments, options)


def _arguments(options: Namespace, history: History) -> dict[str, Any] | None:
    """Return the arguments of the tool `undo`; None if no call or turn was named."""
    chosen = {
        "a call": bool(options.words),
        "--last": options.last,
        "--session": options.session is not None,
        "--turn": options.turn is not None,
        "--since": options.since is not None,
        "--from": options.begin is not None,
    }
    named = [name for name, is_given in chosen.items() if is_given]
    if options.to is not None and options.session is None:
        raise CliError("--to needs --session")
    if len(named) > 1 or len(options.words) > 1:
        raise CliError("undo needs one of: a call, --from, --last, --session, --turn, --since")
    if not named:
        if options.others:
            raise CliError("--others needs the changes to undo")
        return None
    others = {"others": True} if options.others else {}
    if options.last:
        return {"call_id": _last(history, options.workspace), **others}
    if options.words:
        return {"call_id": options.words[0], **others}
    if options.begin is not None:
        return {"from_call": options.begin, **others}
    if options.turn is not None:
        return {"turn": options.turn, **others}
    if options.since is not None:
        return {"since": since_ms(options.since) / 1000, **others}
    to = {} if options.to is None else {"to_turn": options.to}
    return {"session": options.session, **to, **others}


def _last(history: History, workspace: str | None) -> str:
    """Return the last call that changed files in a directory, except calls of `undo`."""
    directory = os.path.realpath(os.path.expanduser(workspace or "."))
    for recorded in history.latest(_SEARCHED):
        origin = recorded.changes[-1].origin
        if os.path.realpath(origin.directory) == directory and origin.tool != "undo":
            return origin.call
    raise CliError(
        f"no recorded change in {visible(directory)}",
        hint="callgate undo lists the recorded changes.",
        error_class=ToolErrorClass.NOT_FOUND,
        reason="not_found",
    )


def _workspace(history: History, arguments: dict[str, Any]) -> str:
    """Return the workspace of the changes."""
    if call := arguments.get("call_id", arguments.get("from_call")):
        found = history.of_call(call)
    elif "turn" in arguments:
        found = history.of_turn(arguments["turn"])
    elif "since" in arguments:
        return os.path.realpath(".")
    else:
        found = history.of_session(arguments["session"])
    if not found.changes:
        raise CliError(
            "no recorded change of " + visible(str(next(iter(arguments.values())))),
            hint="callgate undo lists the recorded changes.",
            error_class=ToolErrorClass.NOT_FOUND,
            reason="not_found",
        )
    return found.changes[-1].origin.directory


def _run(history: History, arguments: dict[str, Any], options: Namespace) -> int:
    wired, session = open_runtime(options, audit=True, meant="undo")
    try:
        wired.runtime.tools.register(lambda: Undo(history, only_look=options.dry_run))
    except ToolRegistrationError as error:
        raise CliError(str(error), hint="A loaded tool has this name.") from error
    call = ToolCall(tool="undo", arguments=arguments, session=session, caller=CallerKind.CLI)
    options.verbose = options.quiet = options.wait = False
    return run_call(wired, call, find_tool(wired, "undo"), options)


def _list(history: History, *, as_json: bool) -> int:
    calls = [_described(recorded) for recorded in history.latest(_LISTED)]
    if as_json:
        print_json({"ok": True, "calls": calls})
        return OK
    rows = [
        (
            each["call"],
            datetime.fromtimestamp(each["at"]).strftime("%Y-%m-%d %H:%M:%S"),
            each["tool"],
            _named(each["files"]),
        )
        for each in calls
    ]
    print_rows((Column("call"), Column("when"), Column("tool"), Column("files")), rows)
    if not calls:
        print("No changes are recorded.")
    return OK


def _described(recorded: Recorded) -> dict[str, Any]:
    last = recorded.changes[-1]
    kinds = {each.real: each.kind for each in recorded.changes if not each.is_source}
    return {
        "call": last.origin.call,
        "at": last.at / 1e9,
        "tool": last.origin.tool,
        "session": last.origin.session,
        "turn": last.origin.turn,
        "workspace": sayable(last.origin.directory),
        "files": [
            {"path": _relative(real, last.origin.directory), "kind": kind}
            for real, kind in kinds.items()
        ],
        "count": len(kinds),
        "damaged": recorded.damaged,
    }


def _relative(real: str, workspace: str) -> str:
    root = os.path.realpath(workspace).rstrip("/") + "/"
    return sayable(real.removeprefix(root))


def _named(files: list[dict[str, str]]) -> str:
    names = ", ".join(f"{each['kind']} {readable(each['path'])}" for each in files[:_NAMED])
    return names + (f" and {len(files) - _NAMED} more" if len(files) > _NAMED else "")


Show = Callable[[CallOutcome], int] | None


def preview(options: Namespace) -> int:
    if not options.words:
        raise CliError("no command was given: callgate preview -- COMMAND ...")
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
    """Apply the changes if the person agrees; otherwise return `code` unchanged."""
    tty = None if options.json or options.no_input else open_tty()
    if not options.apply and tty is None:
        say("callgate: nothing was applied; use --apply to apply the changes")
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
    """Whether to make the call. Asks the person, unless the policy's own question follows."""
    try:
        _, decision = wired.runtime.permission.explain(call)
    except ToolError:
        return True  # the call fails with this error and is recorded
    if decision.outcome is not Outcome.ALLOW and not options.yes:
        return True
    tty = open_tty()
    if tty is None:
        return False
    lines = arguments_text(call.arguments).splitlines()
    return asyncio.run(agreed(tty, Lines(lines), "Apply these changes?"))


def _collecting(shown: list[dict[str, Any]]) -> Callable[[CallOutcome], int]:
    """Collect results instead of printing them, because `--json` prints one object."""

    def show(ended: CallOutcome) -> int:
        shown.append(envelope(ended.result))
        return ended.exit_code

    return show
