"""`callgate policy explain`: what would be decided about a call, by which rule, from where.

Nothing runs, nobody is asked and nothing is recorded. `policy test` stands in `policy_test`.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from callgate.cli.arguments import read_arguments
from callgate.cli.embedded import find_tool, open_runtime
from callgate.cli.errors import OK, CliError
from callgate.cli.records.stores import find_session, with_store
from callgate.cli.ui.decision_words import decided_by
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import Paint, paint_for
from callgate.cli.ui.visible import visible
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import Label
from callgate.core.errors import ToolError
from callgate.core.sessions import Session
from callgate.dispatch.permission.budgets import BudgetForecast, forecast
from callgate.dispatch.subjects import Subject, question
from callgate.policy.commands import Verdict, judge, read_command
from callgate.policy.decide import applies
from callgate.policy.provenance.sources import lines_for_person
from callgate.policy.rules import Origin, Outcome, Rule
from callgate.wiring.runtime import Wired


class CommandVerdict(NamedTuple):
    """What the rules say about one command of a line."""

    command: str
    decision: str | None = None
    """None where no rule speaks about it."""
    rule: str | None = None
    origin: Origin | None = None
    why: str | None = None

    def __str__(self) -> str:
        by = "" if self.rule is None else f" ({self.rule}, {self.origin})"
        why = "" if self.why is None else f": {self.why}"
        return f"{self.decision or 'no rule'}: {self.command}{by}{why}"

    def described(self) -> dict[str, Any]:
        return self._asdict() | {"origin": _described_origin(self.origin)}


class Restriction(NamedTuple):
    """What a path rule keeps from a command."""

    path: str
    how: str
    """`not there`, `read-only`, or that nothing keeps it."""
    rule: str
    origin: Origin


_COLOURS = {Outcome.ALLOW: "green", Outcome.ASK: "yellow", Outcome.DENY: "red"}


def explain(options: Namespace) -> int:
    if not options.words:
        raise CliError("which tool? callgate policy explain TOOL [key=value ...]")
    wired, session = open_runtime(options, meant=options.words[0])
    if options.session is not None:
        _place(session, options)
    name, *words = options.words
    tool = find_tool(wired, name)
    call: ToolCall | None = None
    try:
        schema = {} if tool is None else tool.definition.input_schema
        call = ToolCall(
            tool=name if tool is None else tool.name,
            arguments=read_arguments(words, options.args, schema),
            session=session,
            caller=CallerKind(options.caller),
        )
        if options.said is not None or options.read:
            flows = wired.dispatcher.authority.flows
            flows.tell(session, options.said or "")
            flows.assume(session, map(Label, options.read))
        subject, decision = wired.runtime.explain(call, by_agent=options.by_agent)
        restrictions = _restrictions(wired, call, subject)
    except ToolError as error:
        _show_end(name if call is None else call.tool, error, options.json)
        return OK
    verdicts = _command_verdicts(wired, call, subject)
    budgets = BudgetForecast(decision)
    if decision.budgets:
        guard = wired.policies(session.workspace).user.guard
        budgets = with_store(options, partial(forecast, call, subject, decision, guard))
    if options.json:
        print_json(_described(call, subject, budgets, verdicts, restrictions))
    else:
        _show(call, subject, budgets, verdicts, restrictions, paint_for(sys.stdout))
    return OK


def _place(session: Session, options: Namespace) -> None:
    """Suppose the call in a session that there is: its mode, what it has used of its budgets."""
    stored = with_store(options, lambda store: find_session(store, options.session))
    session.id, session.parent = stored.id, stored.parent
    if options.mode is None:
        session.mode = stored.mode


def _show_end(tool: str, error: ToolError, as_json: bool) -> None:
    """The call would end before the policy is asked."""
    if as_json:
        ended = {"class": error.error_class, "message": error.message, "reason": error.reason}
        print_json({"tool": tool, "decision": None, "ends_before": ended})
    else:
        print(f"no decision: the call would end before ({error.error_class})")
        print(f"  {visible(error.message)}")


def _show(
    call: ToolCall,
    subject: Subject,
    budgets: BudgetForecast,
    verdicts: list[CommandVerdict],
    restrictions: list[Restriction],
    paint: Paint,
) -> None:
    decision = budgets.decision
    print(f"{paint(_COLOURS[decision.outcome], decision.outcome)}: {visible(decision.sentence)}")
    print(f"  by         {decided_by(decision)}")
    print(f"  tool       {subject.tool.name} ({subject.tool.effect})")
    print(f"  caller     {call.caller}, mode {call.session.mode}")
    print(f"  workspace  {visible(call.session.workspace)}")
    if subject.enclosure is not None:
        print(f"  sandbox    {subject.enclosure}")
    for each in restrictions:
        print(f"  {each.how:<9}  {visible(f'{each.path} ({each.rule}, {each.origin})')}")
    for path in subject.resolved_paths:
        print(f"  path       {visible(path.real)}")
    for line in lines_for_person(decision.provenance):
        print(f"  value      {visible(line)}")
    for verdict in verdicts:
        print(f"  command    {visible(str(verdict))}")
    for line in budgets.usage:
        print(f"  budget     {visible(line)}")


def _described(
    call: ToolCall,
    subject: Subject,
    budgets: BudgetForecast,
    verdicts: list[CommandVerdict],
    restrictions: list[Restriction],
) -> dict[str, Any]:
    decision = budgets.decision
    return {
        "tool": subject.tool.name,
        "side_effects": subject.tool.effect,
        "decision": decision.outcome,
        "reason": decision.reason,
        "sentence": decision.sentence,
        "origin": _described_origin(decision.origin),
        "caller": call.caller,
        "mode": call.session.mode,
        "workspace": call.session.workspace,
        "sandbox": None if subject.enclosure is None else str(subject.enclosure),
        "paths": [path.real for path in subject.resolved_paths],
        "provenance": msgspec.to_builtins(decision.provenance),
        "arguments_sha256": subject.checked.sha256,
        "commands": [verdict.described() for verdict in verdicts],
        "restrictions": [
            each._asdict() | {"origin": _described_origin(each.origin)} for each in restrictions
        ],
        "budgets": list(budgets.usage),
        "ends_before": None,
    }


def _restrictions(wired: Wired, call: ToolCall, subject: Subject) -> list[Restriction]:
    """Raises `ToolError` where a rule cannot be kept, and the command would not start."""
    if subject.enclosure is None:
        return []
    rules = wired.dispatcher.command_rules
    if subject.enclosure.profile is None:
        return [
            Restriction(each.pattern, "not kept", str(each.rule), each.rule.origin)
            for each in rules.of(call, subject)
        ]
    return [
        Restriction(
            each.shown,
            "not there" if each.rule.hides else "read-only",
            str(each.rule.rule),
            each.rule.rule.origin,
        )
        for each in rules.matches(call, subject).matches
    ]


def _command_verdicts(wired: Wired, call: ToolCall, subject: Subject) -> list[CommandVerdict]:
    """What the command rules say about each command of a line; empty for other tools."""
    command = subject.checked.arguments.get("command")
    if not isinstance(command, str):
        return []
    rules = _command_rules(wired, call, subject)
    judgement = judge(
        read_command(command),
        [(rule.command, rule.decision) for rule in rules if rule.command is not None],
    )
    verdicts = [_command_verdict(verdict, rules) for verdict in judgement.verdicts]
    if judgement.doubts:
        doubts = "; ".join(f"it contains {doubt}" for doubt in judgement.doubts)
        verdicts.append(CommandVerdict(command, why=f"not fully understood: {doubts}"))
    return verdicts


def _command_verdict(verdict: Verdict, rules: list[Rule]) -> CommandVerdict:
    text, why = verdict.segment.text, verdict.reason or None
    if verdict.rule is None:
        return CommandVerdict(text, verdict.outcome, why=why)
    rule = rules[verdict.rule]
    return CommandVerdict(text, verdict.outcome, str(rule.command), rule.origin, why)


def _command_rules(wired: Wired, call: ToolCall, subject: Subject) -> list[Rule]:
    """The user's rules about commands, and those of the workspace, which allow nothing."""
    book = wired.policies(call.session.workspace)
    narrowing = () if book.workspace is None else book.workspace.rules
    rules = [*book.user.rules, *(r for r in narrowing if r.decision is not Outcome.ALLOW)]
    policy_question = question(call, subject, book)
    return [rule for rule in rules if rule.command is not None and applies(rule, policy_question)]


def _described_origin(origin: Origin | None) -> dict[str, Any] | None:
    return None if origin is None else {"file": origin.file, "line": origin.line}
