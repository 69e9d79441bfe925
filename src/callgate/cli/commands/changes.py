"""`callgate diff` and `checkout`: show the changes of calls, and write an earlier workspace."""

from __future__ import annotations

import os
from argparse import Namespace

import msgspec

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible, visible_text
from callgate.config.home import Home
from callgate.core.errors import ToolErrorClass
from callgate.workspace.paths import readable, sayable
from callgate.workspace.undo import checkout as copies
from callgate.workspace.undo import timelines
from callgate.workspace.undo.history import History

_HINT = "callgate undo lists the calls that changed files."
_NAMED = 10


def diff(options: Namespace) -> int:
    refuse_within_a_call("callgate diff")
    history = _history()
    try:
        shown = timelines.of_call(history, _one(options.words, "diff CALL"))
    except OSError as error:
        raise _unreadable(error) from error
    if shown is None:
        raise _unknown(options.words[0])
    if options.json:
        print_json({"ok": True, "call": options.words[0], **msgspec.to_builtins(shown)})
    else:
        print(visible_text(shown.text) if shown.count else "The call changed nothing in the end.")
    return OK


def checkout(options: Namespace) -> int:
    refuse_within_a_call("callgate checkout")
    if len(options.words) != 2:
        raise CliError("checkout needs a call and a directory: callgate checkout CALL DIR")
    call, directory = options.words
    home, history = Home.from_environment(), _history()
    try:
        found = history.of_call(call)
        if not found.changes:
            raise _unknown(call)
        workspace = found.changes[-1].origin.directory
        if not os.path.isdir(workspace):
            raise CliError(f"the workspace {visible(sayable(workspace))} does not exist")
        target = copies.target_of(directory, workspace, home.path)
        later = timelines.later_than(history, found.changes)
        later += found.changes if options.before else ()
        written = copies.write(history, later, workspace, target)
    except copies.CheckoutRefused as error:
        raise CliError(str(error), hint="Name a new or empty directory elsewhere.") from error
    except OSError as error:
        raise CliError(
            f"the workspace cannot be written to {visible(directory)}: {error.strerror or error}",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="checkout_failed",
        ) from error
    when = "before" if options.before else "after"
    if options.json:
        fields = {"ok": True, "call": call, "when": when, "directory": sayable(target)}
        print_json({**fields, **written._asdict()})
        return OK
    print(f"Wrote the workspace {when} {visible(call)} to {visible(sayable(target))}")
    _warn("changed by other programs since, so with the present content", written.changed)
    _warn("not stored, so absent", written.missing)
    _warn("not copied", written.skipped)
    return OK


def _warn(title: str, paths: list[str]) -> None:
    if paths:
        more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
        say(f"callgate: {title}: {', '.join(map(readable, paths[:_NAMED]))}{more}")


def _history() -> History:
    history = History(os.path.join(Home.from_environment().path, "undo"))
    try:
        history.settle_unfinished()
    except OSError as error:
        raise _unreadable(error) from error
    return history


def _one(words: list[str], usage: str) -> str:
    if len(words) != 1:
        raise CliError(f"a call is needed: callgate {usage}", hint=_HINT)
    return words[0]


def _unknown(call: str) -> CliError:
    return CliError(
        f"no recorded change of call {visible(call)}",
        hint=_HINT,
        error_class=ToolErrorClass.NOT_FOUND,
        reason="not_found",
    )


def _unreadable(error: OSError) -> CliError:
    return CliError(
        f"the history cannot be read: {error}",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="history_unreadable",
    )
