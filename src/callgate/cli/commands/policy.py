"""`callgate policy`: explain decisions; print and add saved rules; print rules for registries.

`explain` runs no tool, asks no approver and records nothing. `--json` has the codes of reasons.
A home has its rules in `rules.toml`; homes that share a store have them in the store.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from callgate.cli.arguments import read_arguments
from callgate.cli.embedded import find_tool, open_runtime
from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import find_session, find_shared_store, with_store
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import print_field
from callgate.cli.ui.terminal import Paint, paint_for, say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError, check_rule, read_saved_rules
from callgate.config.saved import rule_lines, save_rule
from callgate.config.stores import shared_homes
from callgate.core.calls import BY_ITS_AGENT, CallerKind, ToolCall
from callgate.core.content import Label
from callgate.core.errors import ToolError, ToolErrorClass
from callgate.core.sessions import Mode, Session
from callgate.dispatch.command_paths import CommandRules
from callgate.dispatch.permission.budgets import BudgetForecast, forecast
from callgate.dispatch.sites.here import Here
from callgate.dispatch.subjects import Subject, question
from callgate.feature import port
from callgate.instance.wiring.runtime import Wired
from callgate.policy.commands import RulesVerdict, judge, read_command
from callgate.policy.decisions import Decision, Reason
from callgate.policy.opinions import applies
from callgate.policy.provenance.sources import lines_for_person
from callgate.policy.rules import Origin, Outcome, Rule

WORDS = {
    Reason.ALWAYS_ASKED: "the tool itself",
    Reason.BUDGET: "a budget",
    Reason.BUDGET_UNKNOWN: "a budget whose count is unreadable",
    Reason.CLASS_DEFAULT: "the setting for its effect",
    Reason.CONTROL_FILE: "the guard",
    Reason.DESTRUCTIVE: "the tool, which is destructive",
    Reason.MODE_GUARDED: "the mode",
    Reason.MODE_NONE: "the mode",
    Reason.MODE_READ: "the mode",
    Reason.MODE_WRITE: "the mode",
    Reason.NETWORK: "the setting for the network",
    Reason.NOT_UNDERSTOOD: "the command, which is not understood",
    Reason.PAUSED: "the guard",
    Reason.PER_TOOL: "the setting for this tool",
    Reason.PIPELINE: "the path, from which a server executes files",
    Reason.PRIVATE_OUTWARD: "the guard",
    Reason.READ_COMMANDS: "the setting for commands that only read",
    Reason.REPAIRED: "the model's text, which was repaired",
    Reason.REVERSIBLE: "the setting for calls that can be undone",
    Reason.RULE: "a rule",
    Reason.SECRET_OUTWARD: "the guard",
    Reason.SETTINGS_INVALID: "the settings, which are invalid",
    Reason.TRUSTED_CALLER: "the trusted caller",
    Reason.TRUSTED_OVERRIDE: "the setting for trusted workspaces",
    Reason.TRUSTED_WORKSPACE: "the workspace, which is trusted",
    Reason.UNBOUND: "a path rule, which cannot bind it",
    Reason.UNNAMED_HOST: "the guard",
    Reason.UNTRUSTED_DESTINATION: "the guard",
}


def decided_by(decision: Decision) -> str:
    """Return the reason of a decision, and its origin."""
    return visible(f"{WORDS[decision.reason]}, {decision.origin}")


class CommandVerdict(NamedTuple):
    """Decision of the rules about one command of a shell line."""

    command: str
    decision: str | None = None
    """None if no rule matches."""
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
    """Effect of a path rule on the sandbox of a command."""

    path: str
    how: str
    """`not there`, `read-only`, or `not kept` if nothing enforces the rule."""
    rule: str
    origin: Origin


_COLOURS = {Outcome.ALLOW: "green", Outcome.ASK: "yellow", Outcome.DENY: "red"}


def explain(options: Namespace) -> int:
    if not options.words:
        raise CliError("no tool was named: callgate policy explain TOOL [key=value ...]")
    wired, session = open_runtime(options, meant=options.words[0])
    if options.session is not None:
        _use_stored_session(session, options)
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
            labels = [*map(Label, options.read)]
            wired.runtime.permission.assume(session, options.said or "", labels)
        rewriting = options.by_agent and _is_rewritten(wired, call)
        handed_over = msgspec.structs.replace(call, handover=BY_ITS_AGENT)
        if options.by_agent and not rewriting:
            call = handed_over
        subject, decision = wired.runtime.permission.explain(call)
        others = wired.runtime.permission.explain(handed_over)[1] if rewriting else None
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
        agents = {} if others is None else {"agents": _described_agents(others)}
        print_json(_described(call, subject, budgets, verdicts, restrictions) | agents)
    else:
        _show(call, subject, budgets, verdicts, restrictions, paint_for(sys.stdout))
        _show_agents(others)
    return OK


def _is_rewritten(wired: Wired, call: ToolCall) -> bool:
    """Whether a hook moves the call into callgate's sandbox.

    It does so by `[hooks] shell`, in mode guarded, or if the command only reads and needs no
    approval there.
    """
    hooks = wired.settings.table("hooks")
    where = getattr(hooks, "shell", None)
    if call.tool != "shell" or where == "sandbox":
        return call.tool == "shell"
    if hooks is not None and where is None and call.session.mode == Mode.GUARDED:
        return wired.runtime.permission.explain(call)[0].contained
    if not Here.is_reading(call.arguments):
        return False
    return wired.runtime.permission.explain(call)[1].reason is Reason.READ_COMMANDS


def _agents(*, rewrites: bool) -> list[str]:
    """Return the agents that accept a rewritten command from a hook, or the other agents."""
    shell_agents = port("shell_agents")
    return [] if shell_agents is None else [*shell_agents(rewrites=rewrites)]


def _show_agents(others: Decision | None) -> None:
    """Print the decision for agents that accept no rewritten command; None: it is the same."""
    if others is None:
        return
    print_field("  agents     ", f'{", ".join(_agents(rewrites=True))} ([hooks] shell = "sandbox")')
    described = f"{', '.join(_agents(rewrites=False))} run it themselves"
    print_field("  others     ", f"{described}: {others.outcome}: {others.sentence}")


def _described_agents(others: Decision) -> list[dict[str, Any]]:
    outside = {"decision": others.outcome, "reason": others.reason, "sentence": others.sentence}
    return [
        {"names": _agents(rewrites=True), "sandboxed": True},
        {"names": _agents(rewrites=False), "sandboxed": False, **outside},
    ]


def _use_stored_session(session: Session, options: Namespace) -> None:
    """Give the session the id, mode and budgets of a stored session."""
    stored = with_store(options, lambda store: find_session(store, options.session))
    session.id, session.parent = stored.id, stored.parent
    if options.mode is None:
        session.mode = stored.mode


def _show_end(tool: str, error: ToolError, as_json: bool) -> None:
    """Report that the call would end before the policy decides."""
    if as_json:
        ended = {"class": error.error_class, "message": error.message, "reason": error.reason}
        print_json({"tool": tool, "decision": None, "ends_before": ended})
    else:
        print(f"no decision: the call would end before ({error.error_class})")
        print_field("  ", error.message)


def _show(
    call: ToolCall,
    subject: Subject,
    budgets: BudgetForecast,
    verdicts: list[CommandVerdict],
    restrictions: list[Restriction],
    paint: Paint,
) -> None:
    decision = budgets.decision
    print_field(f"{decision.outcome}: ", decision.sentence, label_colour=_COLOURS[decision.outcome])
    fields = [
        ("by", decided_by(decision)),
        ("tool", f"{subject.tool.name} ({subject.tool.effect})"),
        ("caller", f"{call.caller}, mode {call.session.mode}"),
        ("workspace", call.session.workspace),
    ]
    if subject.enclosure is not None:
        fields.append(("sandbox", str(subject.enclosure)))
    if subject.tool.has_effects:
        fields.append(("undo", subject.undone_by or "not possible"))
    fields += [(each.how, f"{each.path} ({each.rule}, {each.origin})") for each in restrictions]
    fields += [("path", path.real) for path in subject.resolved_paths]
    fields += [("value", line) for line in lines_for_person(decision.provenance)]
    fields += [("command", str(verdict)) for verdict in verdicts]
    fields += [("budget", line) for line in budgets.usage]
    for label, value in fields:
        print_field(f"  {label:<9}  ", value)


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
        "undone_by": subject.undone_by or None,
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
    """Return the effects of path rules on a command.

    Raises `ToolError` if a rule cannot be enforced, so that the command would not start.
    """
    if subject.enclosure is None:
        return []
    rules = CommandRules(wired.policies, wired.registry)
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
    """Return the decision of the command rules about each command; empty for other tools."""
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


def _command_verdict(verdict: RulesVerdict, rules: list[Rule]) -> CommandVerdict:
    text, why = verdict.segment.text, verdict.reason or None
    if verdict.rule is None:
        return CommandVerdict(text, verdict.outcome, why=why)
    rule = rules[verdict.rule]
    return CommandVerdict(text, verdict.outcome, str(rule.command), rule.origin, why)


def _command_rules(wired: Wired, call: ToolCall, subject: Subject) -> list[Rule]:
    """Return the user's command rules, and the workspace's rules that do not allow."""
    book = wired.policies(call.session.workspace)
    narrowing = () if book.workspace is None else book.workspace.rules
    rules = [*book.user.rules, *(r for r in narrowing if r.decision is not Outcome.ALLOW)]
    policy_question = question(call, subject, book)
    return [rule for rule in rules if rule.command is not None and applies(rule, policy_question)]


def _described_origin(origin: Origin | None) -> dict[str, Any] | None:
    return None if origin is None else {"file": origin.file, "line": origin.line}


def export(options: Namespace) -> int:
    if options.words:
        raise CliError("policy export takes no arguments")
    home = Home.from_environment()
    shared = find_shared_store(home)
    try:
        if shared is not None:
            sys.stdout.write(shared_homes().rules_text(home, shared))
        elif os.path.exists(home.saved_rules):
            with open(home.saved_rules, encoding="utf-8") as file:
                sys.stdout.write(file.read())
    except UnicodeDecodeError:
        problem = f"{home.saved_rules} is not UTF-8"
        raise CliError(problem, reason="settings_invalid") from None
    except OSError as error:
        raise _unusable(error) from error
    return OK


def import_(options: Namespace) -> int:
    if len(options.words) != 1:
        raise CliError("policy import needs one file: callgate policy import FILE")
    refuse_within_a_call("callgate policy import")
    (path,) = options.words
    home = Home.from_environment()
    try:
        rules = _rules(path)
        shared = find_shared_store(home)
        if shared is not None:
            added, removed = shared_homes().import_rules(
                home, shared, path, rules, replace=options.replace
            )
        elif options.replace:
            raise CliError(
                "--replace works only for homes that share a store", hint="Edit rules.toml."
            )
        else:
            known = _rules(home.saved_rules) if os.path.exists(home.saved_rules) else []
            fresh = [rule for rule in rules if rule not in known]
            for rule in fresh:
                save_rule(home, rule)
            added, removed = len(fresh), 0
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error
    except OSError as error:
        raise _unusable(error) from error
    if options.json:
        print_json({"added": added, "removed": removed})
    else:
        say(f"Rules added: {added}, removed: {removed}.")
    return OK


def registries(options: Namespace) -> int:
    if options.words:
        raise CliError("policy registries takes no arguments")
    from callgate.config.registries import rules  # lazy: for this command  # noqa: PLC0415

    for rule in rules(os.path.expanduser("~"), os.environ):
        sys.stdout.write("\n".join(["[[rules]]", *rule_lines(rule)]) + "\n\n")
    return OK


def _rules(path: str) -> list[dict[str, Any]]:
    """Read the rules of a file. Raises `SettingsError` if a rule would be unreadable once saved."""
    if not os.path.exists(path):
        raise CliError(f"there is no file {path}", error_class=ToolErrorClass.NOT_FOUND)
    rules = read_saved_rules(path)
    for rule in rules:
        check_rule(rule)
    return rules


def _unusable(error: OSError) -> CliError:
    return CliError(str(error), error_class=ToolErrorClass.EXECUTION_ERROR, reason="not_saved")


setattr(sys.modules[__name__], "import", import_)  # as the command is called
