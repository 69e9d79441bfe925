"""`callgate policy test` and `policy suggest`: the recorded calls under other settings or rules.

`test` lists recorded calls that other settings would decide differently. `suggest` prints narrow
rules for calls that were allowed repeatedly; `--write` saves them like an `always` answer. Both run
no call, ask no approver, and open no file that a call names.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from datetime import datetime

from callgate.audit.reading import newest_calls
from callgate.cli.commands.audit import since_ms
from callgate.cli.commands.policy import decided_by
from callgate.cli.embedded import open_runtime
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.logs import Progress
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import find_session, with_store
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Cell, Column, print_field, print_rows, wrap
from callgate.cli.ui.terminal import Paint, paint_for, room, say
from callgate.cli.ui.visible import visible
from callgate.config.load import SettingsError, check_rule
from callgate.config.saved import rule_lines, save_rules
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Mode
from callgate.core.stores import Store
from callgate.features.reporting.backtest_inputs import (
    changed_settings,
    lookups,
    settings_in_force,
    suggested_rules,
)
from callgate.features.reporting.backtests import Backtest, DecisionChange, backtest
from callgate.features.reporting.narrow_rules import LeftOut, written
from callgate.features.reporting.rejudging import Doubt
from callgate.features.reporting.suggesting import Drop, Suggestion, Suggestions, Wanted
from callgate.instance.wiring.builder import register_known
from callgate.policy.decisions import Decision
from callgate.sessions.artifacts import all_sessions

_LEFT_OUT = {
    LeftOut.DESTRUCTIVE: "destructive, or possibly destructive: these always need approval",
    LeftOut.INTERPRETER: "interpreters, wrappers (env, sudo, xargs) and programs named by a path",
    LeftOut.COMPOUND: "several commands in a line, redirections, or a line that cannot be parsed",
    LeftOut.REDACTED: "arguments that a rule would need are truncated or redacted in the record",
    LeftOut.TOOL: "the tool is not registered here",
    LeftOut.ALWAYS_ASKED: "no rule can allow them",
    LeftOut.PROTECTED: "a path that is protected or outside the roots",
    LeftOut.RULE: "a rule or the workspace's settings require approval, even with an allow rule",
    LeftOut.UNDECIDABLE: "the record does not show if they need approval",
    LeftOut.WORKSPACE: "the settings of the workspace are unusable",
}
_DROPPED = {
    Drop.DENIED: "it would have allowed a call that was denied",
    Drop.UNCLEAR: "it may have allowed a call that was denied",
}


def suggest(options: Namespace) -> int:
    if options.words:
        raise CliError(f"policy suggest takes no arguments: {options.words[0]!r}")
    if options.write:
        refuse_within_a_call("callgate policy suggest --write")
    since = since_ms(options.since)
    options.mode = None
    wired, session = open_runtime(options, register=register_known)
    modes, of_session = with_store(options, lambda store: _stored(store, options.session))
    wanted = Wanted(
        least=options.least,
        session=of_session,
        tool=options.tool,
        workspace=session.workspace,
    )
    home = wired.home
    try:
        found = suggested_rules(
            home,
            wanted,
            since_ms=since,
            tool=wired.registry.find,
            modes=modes,
            limit=options.limit,
            report=Progress(),
        )
        rules = [written(each.rule) for each in found.suggested]
        if options.write and rules:
            for rule in rules:
                check_rule(rule)
            save_rules(home, rules)
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error
    except OSError as error:
        raise CliError(
            f"{'the rules are not saved' if options.write else 'the audit log cannot be read'}:"
            f" {error}",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="not_saved" if options.write else "audit_unreadable",
        ) from error
    if options.json:
        print_json(found.described() | {"written": len(rules) if options.write else 0})
        return OK
    _show(found, paint_for(sys.stdout))
    if options.write:
        say(f"Rules saved in {home.saved_rules}: {len(rules)}.")
    return OK


async def _stored(store: Store, wanted: str | None) -> tuple[dict[str, Mode], str | None]:
    """Return the modes of all sessions, and the full id of the wanted one."""
    id = None if wanted is None else (await find_session(store, wanted)).id
    return {each.id: each.mode for each in await all_sessions(store)}, id


def _show(found: Suggestions, paint: Paint) -> None:
    """Print the suggestions as TOML, with everything but rules as comments."""
    _comment(f"{_many(found.looked_at, 'call')} since {_when(found.since_ms)}")
    for each in found.suggested:
        print()
        _show_rule(each)
    for each in found.dropped:
        print()
        print(f"# {paint('yellow', 'not suggested')}: {_DROPPED[each.dropped or Drop.DENIED]}")
        _comment(f"  {each.rule}")
        _comment(
            f"  approved {_times(each)}; denied: callgate audit search --text {each.denied_call}"
        )
    if found.left_out:
        print()
        _comment("approved, but without a suggested rule:")
    for why, count in found.left_out.items():
        _comment(f"{_many(count, 'call'):>12}: {_LEFT_OUT[why]}")
    if found.rare:
        _comment(f"{_many(found.rare, 'rule')} more: not approved often enough (--least)")
    if found.untried:
        _comment(f"{_many(found.untried, 'rule')} more: beyond the limit of one run")


def _comment(text: str) -> None:
    """Print a comment of TOML, wrapped at a terminal."""
    available = room()
    for row in [visible(text)] if available is None else wrap(text, available - 2):
        print(f"# {row}")


def _show_rule(each: Suggestion) -> None:
    words = (f"{count:,} {step.replace('->', ' -> ')}" for step, count in each.steps.items())
    steps = ", ".join(words)
    unclear = f", {each.undecidable:,} not decidable" if each.undecidable else ""
    _comment(f"approved {_times(each)}")
    _comment(f"changed decisions: {steps or 'none'}; {each.same:,} same{unclear}")
    if each.rule.arguments_sha256 is not None:
        _comment(f"only these arguments: {each.example}")
    print("[[policy.rules]]")
    for line in rule_lines(written(each.rule)):
        print(visible(line))


def _times(each: Suggestion) -> str:
    first, last = (datetime.fromtimestamp(ms / 1000).date() for ms in (each.first_ms, each.last_ms))
    dates = f"on {last}" if first == last else f"from {first} to {last}"
    sessions = _many(each.sessions, "session")
    return f"{_many(each.count, 'time')}, {each.answered:,} by a person, in {sessions}, {dates}"


def _many(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


_MOST_ROWS = 3
"""Maximum number of rows for a call's arguments at a terminal."""
_DOUBTS = {
    Doubt.ARGUMENTS: "depends on data that is truncated or redacted in the record",
    Doubt.TOOL: "the tool is not registered here, so its path arguments are unknown",
    Doubt.LINK: "the target of its path is unknown, because the path contains a link",
    Doubt.SANDBOX: "depends on the sandbox of this machine",
    Doubt.WORKSPACE: "the settings of its workspace are unusable",
}


def test(options: Namespace) -> int:
    if len(options.words) != 1:
        raise CliError("settings are missing: callgate policy test FILE, or - for stdin")
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
            lookups=lookups(home, wired.registry.find),
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
        _show_changes(found, paint_for(sys.stdout))
    return FAILED if options.check and found.loosened else OK


def _read(file: str) -> tuple[bytes, str]:
    """Return the settings to test, and their name."""
    if file == "-":
        return sys.stdin.buffer.read(), "stdin"
    try:
        with open(file, "rb") as opened:
            return opened.read(), file
    except OSError as error:
        raise CliError(f"{file} cannot be read: {error.strerror}") from error


def _show_changes(found: Backtest, paint: Paint) -> None:
    calls = f"{_calls(found.judged)} since {_when(found.since_ms)}"
    print_field("", f"{calls}, evaluated from the audit log")
    print(f"  {found.same:>9,}  same")
    loosened = {change.step for change in found.changes if change.loosened}
    for step, count in found.steps.items():
        mark = paint("red", "loosened") if step in loosened else "stricter"
        print(f"  {count:>9,}  {step.replace('->', ' -> '):<14} {mark}")
    undecidable = sum(found.undecidable.values())
    if undecidable:
        print(f"  {undecidable:>9,}  {paint('yellow', 'not decidable')}")
    for doubt, count in found.undecidable.items():
        print_field(f"  {'':>9}    ", f"{count:,}: {_DOUBTS[doubt]}")
    if found.unjudged:
        print_field(f"  {found.unjudged:>9,}  ", "not counted: unknown tool, or invalid arguments")
    for change in found.changes:
        print()
        _show_change(change)


def _show_change(change: DecisionChange) -> None:
    newest = change.newest
    word = Cell("loosened", "red") if change.loosened else Cell("stricter")
    times = f"{_calls(change.count)}{', the newest' if change.count > 1 else ''}"
    about = f"{newest.tool}: {times} at {_when(newest.ts)} by {newest.caller}"
    print_rows((Column("change"), Column("calls")), [(word, about)])
    print_field("  ", newest.args, most=_MOST_ROWS)
    print_field("  was ", _decision(change.old))
    print_field("  now ", _decision(change.new))


def _decision(decision: Decision) -> str:
    return f"{decision.outcome}: {decision.sentence} ({decided_by(decision)})"


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"
