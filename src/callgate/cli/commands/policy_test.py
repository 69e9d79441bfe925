"""`callgate policy test`: which calls on record other settings would decide otherwise.

Nothing runs, nobody is asked, and no file that a call names is opened.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from datetime import datetime

from callgate.audit.reading import newest_calls
from callgate.cli.commands.audit import since_ms
from callgate.cli.embedded import open_runtime
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.records.stores import with_store
from callgate.cli.ui.decision_words import decided_by
from callgate.cli.ui.output import print_json
from callgate.cli.ui.progress import Progress
from callgate.cli.ui.terminal import Paint, columns, is_terminal, paint_for
from callgate.cli.ui.visible import clip, visible
from callgate.config.backtest_inputs import changed_settings, lookups, settings_in_force
from callgate.config.load import SettingsError
from callgate.core.errors import ToolErrorClass
from callgate.policy.backtesting.backtests import Backtest, Change, backtest
from callgate.policy.backtesting.rejudging import Doubt
from callgate.policy.decide import Decision
from callgate.sessions.deleting import all_sessions
from callgate.wiring.registration import register_known

_DOUBTS = {
    Doubt.ARGUMENTS: "it depends on what is cut or redacted on record",
    Doubt.TOOL: "the tool is not registered here: which of its arguments are paths is not known",
    Doubt.LINK: "where its path led cannot be told from the path's text",
    Doubt.SANDBOX: "it depends on what the sandbox of this machine can promise",
    Doubt.WORKSPACE: "the settings of its workspace cannot be used",
}


def test(options: Namespace) -> int:
    if len(options.words) != 1:
        raise CliError("which settings? callgate policy test FILE, or - for stdin")
    since = since_ms(options.since)
    data, name = _read(options.words[0])
    options.mode = None
    wired, _ = open_runtime(options, register=register_known)
    home = wired.home
    modes = {session.id: session.mode for session in with_store(options, all_sessions)}
    try:
        found = backtest(
            settings_in_force(home),
            changed_settings(home, data, name),
            newest_calls(home.audit, since, options.limit),
            since_ms=since,
            lookups=lookups(home, wired.dispatcher.registry.find),
            modes=modes,
            report=Progress(),
        )
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error
    except OSError as error:
        raise CliError(
            f"the audit log cannot be read: {error}",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="audit_unreadable",
        ) from error
    if options.json:
        print_json(found.described())
    else:
        _show(found, paint_for(sys.stdout))
    return FAILED if options.check and found.loosened else OK


def _read(file: str) -> tuple[bytes, str]:
    """The settings to test, and what they are called."""
    if file == "-":
        return sys.stdin.buffer.read(), "stdin"
    try:
        with open(file, "rb") as opened:
            return opened.read(), file
    except OSError as error:
        raise CliError(f"{file} cannot be read: {error.strerror}") from error


def _show(found: Backtest, paint: Paint) -> None:
    print(f"{_calls(found.judged)} since {_when(found.since_ms)}, judged by what is on record")
    print(f"  {found.same:>9,}  same")
    loosened = {change.step for change in found.changes if change.loosened}
    for step, count in found.steps.items():
        mark = paint("red", "loosened") if step in loosened else "stricter"
        print(f"  {count:>9,}  {step.replace('->', ' -> '):<14} {mark}")
    undecidable = sum(found.undecidable.values())
    if undecidable:
        print(f"  {undecidable:>9,}  {paint('yellow', 'not decidable')}")
    for doubt, count in found.undecidable.items():
        print(f"  {'':>9}    {count:,}: {_DOUBTS[doubt]}")
    if found.unjudged:
        print(f"  {found.unjudged:>9,}  not counted: no such tool, or wrong arguments")
    for change in found.changes:
        print()
        _show_change(change, paint)


def _show_change(change: Change, paint: Paint) -> None:
    newest, room = change.newest, columns() if is_terminal(sys.stdout) else None
    word = paint("red", "loosened") if change.loosened else "stricter"
    times = f"{_calls(change.count)}{', the newest' if change.count > 1 else ''}"
    print(f"{word}  {visible(newest.tool)}: {times} at {_when(newest.ts)} by {newest.caller}")
    print("  " + (visible(newest.args) if room is None else clip(newest.args, max(room - 3, 20))))
    print(f"  was {_decision(change.old)}")
    print(f"  now {_decision(change.new)}")


def _decision(decision: Decision) -> str:
    return f"{decision.outcome}: {visible(decision.sentence)} ({decided_by(decision)})"


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
