"""`callgate policy suggest`: narrow rules for what was allowed again and again.

Nothing runs and nobody is asked. Rules are printed; `--write` saves them, as an `always` answer is.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from datetime import datetime

from callgate.cli.commands.audit import since_ms
from callgate.cli.embedded import open_runtime
from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.records.stores import find_session, with_store
from callgate.cli.ui.output import print_json
from callgate.cli.ui.progress import Progress
from callgate.cli.ui.terminal import Paint, paint_for, say
from callgate.cli.ui.visible import visible
from callgate.config.backtest_inputs import suggested_rules
from callgate.config.load import SettingsError, check_rule
from callgate.config.rule_texts import rule_lines
from callgate.config.saved import save_rules
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Mode
from callgate.core.stores import Store
from callgate.policy.suggestions.narrow_rules import LeftOut, written
from callgate.policy.suggestions.suggesting import Drop, Suggestion, Suggestions, Wanted
from callgate.sessions.deleting import all_sessions
from callgate.wiring.registration import register_known

_LEFT_OUT = {
    LeftOut.DESTRUCTIVE: "destructive, or not known not to be: these are always asked about",
    LeftOut.INTERPRETER: "interpreters, wrappers (env, sudo, xargs) and programs of a directory",
    LeftOut.COMPOUND: "several commands in a line, redirections, or a line not fully understood",
    LeftOut.REDACTED: "arguments that a rule would need are cut or redacted on record",
    LeftOut.TOOL: "the tool is not registered here",
    LeftOut.ALWAYS_ASKED: "no rule answers for them",
    LeftOut.PROTECTED: "a path that is protected or outside",
    LeftOut.RULE: "a rule asks, or the settings of the workspace: an allow does not change that",
    LeftOut.UNDECIDABLE: "whether they are asked about cannot be told from the record",
    LeftOut.WORKSPACE: "the settings of the workspace cannot be used",
}
_DROPPED = {
    Drop.DENIED: "it would have allowed a call that was denied",
    Drop.UNCLEAR: "whether it would have allowed a call that was denied cannot be told",
}


def suggest(options: Namespace) -> int:
    if options.words:
        raise CliError("policy suggest takes no words")
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
            tool=wired.dispatcher.registry.find,
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
    """The modes of all sessions, and the id of the one that is wanted."""
    id = None if wanted is None else (await find_session(store, wanted)).id
    return {each.id: each.mode for each in await all_sessions(store)}, id


def _show(found: Suggestions, paint: Paint) -> None:
    """As TOML: what is not a rule is a comment."""
    print(f"# {_many(found.looked_at, 'call')} since {_when(found.since_ms)}")
    for each in found.suggested:
        print()
        _show_rule(each)
    for each in found.dropped:
        print()
        print(f"# {paint('yellow', 'not suggested')}: {_DROPPED[each.dropped or Drop.DENIED]}")
        print(f"#   {visible(str(each.rule))}")
        print(
            f"#   agreed to {_times(each)}; denied: callgate audit search --text {each.denied_call}"
        )
    if found.left_out:
        print("\n# agreed to, and no rule is suggested for:")
    for why, count in found.left_out.items():
        print(f"# {_many(count, 'call'):>12}: {_LEFT_OUT[why]}")
    if found.rare:
        print(f"# {_many(found.rare, 'rule')} more: not agreed to often enough (--least)")
    if found.untried:
        print(f"# {_many(found.untried, 'rule')} more: beyond what is tried at once")


def _show_rule(each: Suggestion) -> None:
    words = (f"{count:,} {step.replace('->', ' -> ')}" for step, count in each.steps.items())
    steps = ", ".join(words)
    unclear = f", {each.undecidable:,} not decidable" if each.undecidable else ""
    print(f"# agreed to {_times(each)}")
    print(f"# would have answered: {steps or 'nothing otherwise'}; {each.same:,} same{unclear}")
    if each.rule.arguments_sha256 is not None:
        print(f"# exactly these arguments: {visible(each.example)}")
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
