"""`callgate undo`: put files back, by a call like any other; or list what could be undone."""

from __future__ import annotations

import os
from argparse import Namespace
from datetime import datetime
from typing import Any

from callgate.cli.commands.call import run_call
from callgate.cli.embedded import find_tool, open_runtime
from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolErrorClass, ToolRegistrationError
from callgate.tools.undo import Undo
from callgate.workspace.paths import readable, sayable
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import Recorded

_LISTED = 20
_SEARCHED = 1_000
"""Calls among which `--last` looks for one of the directory."""
_NAMED = 3
"""Files of a call that a list names."""


def undo(options: Namespace) -> int:
    history = History(os.path.join(Home.from_environment().path, "undo"))
    try:
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
    """What to undo; None where nothing was named."""
    by_turn = options.session is not None or options.to is not None
    if options.last:
        if options.words or by_turn:
            raise CliError("--last names the call: name no other")
        return {"call_id": _last(history, options.workspace)}
    if len(options.words) > 1 or (options.words and by_turn):
        raise CliError("undo takes one call, or --session and --to")
    if options.words:
        return {"call_id": options.words[0]}
    if not by_turn:
        return None
    if options.session is None or options.to is None:
        raise CliError("--session and --to go together")
    return {"session": options.session, "to_turn": options.to}


def _last(history: History, workspace: str | None) -> str:
    """The last call that changed files in a directory, and was no undoing itself."""
    directory = os.path.realpath(os.path.expanduser(workspace or "."))
    for recorded in history.latest(_SEARCHED):
        origin = recorded.changes[-1].origin
        if os.path.realpath(origin.directory) == directory and origin.tool != "undo":
            return origin.call
    raise CliError(
        f"no change is kept of {visible(directory)}",
        hint="callgate undo lists what is kept.",
        error_class=ToolErrorClass.NOT_FOUND,
        reason="not_found",
    )


def _workspace(history: History, arguments: dict[str, Any]) -> str:
    """Where the changes were made."""
    if "call_id" in arguments:
        found = history.of_call(arguments["call_id"])
    else:
        found = history.of_session(arguments["session"])
    if not found.changes:
        raise CliError(
            "no change is kept of " + visible(str(next(iter(arguments.values())))),
            hint="callgate undo lists what is kept.",
            error_class=ToolErrorClass.NOT_FOUND,
            reason="not_found",
        )
    return found.changes[-1].origin.directory


def _run(history: History, arguments: dict[str, Any], options: Namespace) -> int:
    wired, session = open_runtime(options, audit=True, meant="undo")
    try:
        wired.runtime.register(lambda: Undo(history, only_look=options.dry_run))
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
    for each in calls:
        when = datetime.fromtimestamp(each["at"]).strftime("%Y-%m-%d %H:%M:%S")
        print(visible(f"{each['call']}  {when}  {each['tool']}  {_named(each['files'])}"))
    if not calls:
        print("No changes are kept.")
    return OK


def _described(recorded: Recorded) -> dict[str, Any]:
    last = recorded.changes[-1]
    kinds = {each.real: each.kind for each in recorded.changes}
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
        "damaged": recorded.damaged,
    }


def _relative(real: str, workspace: str) -> str:
    root = os.path.realpath(workspace).rstrip("/") + "/"
    return sayable(real.removeprefix(root))


def _named(files: list[dict[str, str]]) -> str:
    names = ", ".join(f"{each['kind']} {readable(each['path'])}" for each in files[:_NAMED])
    return names + (f" and {len(files) - _NAMED} more" if len(files) > _NAMED else "")
