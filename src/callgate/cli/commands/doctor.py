"""`callgate doctor`: a summary of the installation's state, and commands that fix its problems.

The summary has one line per question:

    findings of `checks.all_checks` --> Verdict(question, answer, level, problems)

A verdict has the worst level of its checks. Problems name the command that fixes them.
Pure, apart from `Facts`, which `facts_of` collects.

`-v` adds every check with its paths and identifiers. The exit code is 1 if a check failed, else 0.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from callgate.cli.commands.checks import all_checks, sandbox_of
from callgate.cli.commands.machine_checks import described, seen
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.findings import AgentHere, Finding, Level, Patient
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Cell, Column, print_field, print_rows
from callgate.cli.ui.tty import open_tty
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.feature import port
from callgate.socket.instances import running

Findings = Mapping[str, Finding]

_GRAVITY = {Level.OK: 0, Level.NOTE: 1, Level.FAILED: 2}
_NO = {Level.OK: "yes", Level.NOTE: "yes", Level.FAILED: "NO"}


class Facts(NamedTuple):
    """Facts that verdicts need in addition to the findings."""

    approvals: tuple[str, ...]
    """The ways in which a question reaches the user."""
    agents: tuple[AgentHere, ...]
    """All known agents; none if their feature is not installed."""
    has_instance: bool
    """False for an instance that a call started: it ends when it is unused."""
    has_records: bool
    """False if no call was recorded yet."""
    has_sandbox: bool
    """False if the settings switch it off."""


class DoctorAnswer(NamedTuple):
    question: str
    answer: str
    level: Level
    problems: tuple[Finding, ...]
    checks: tuple[str, ...]
    """The checks that it depends on."""


class DoctorQuestion(NamedTuple):
    text: str
    checks: tuple[str, ...]
    answer: Callable[[Findings, Facts], str]
    advice: Callable[[Findings, Facts], Sequence[Finding]] = lambda _, __: ()
    """Problems in addition to those of the checks."""


def facts_of(home: Home, workspace: str, *, has_sandbox: bool) -> Facts:
    instances = running(home.path)
    agents_here = port("agents_here")
    approvals = [] if open_tty() is None else ["terminal"]
    if any(each.http is not None for each in instances):
        approvals.append("dashboard")
    try:
        approvals += [
            f"notices to {name}"
            for name in getattr(load_user(home)[0].table("notify"), "targets", {})
        ]
    except SettingsError:
        pass  # another verdict reports it
    return Facts(
        approvals=tuple(approvals),
        agents=() if agents_here is None else tuple(agents_here(home.path, workspace)),
        has_instance=any(each.environment is None for each in instances),
        has_records=os.path.exists(home.audit),
        has_sandbox=has_sandbox,
    )


def verdicts(findings: Findings, facts: Facts) -> list[DoctorAnswer]:
    """Return the verdicts in the order of `QUESTIONS`. Pure.

    A question whose checks all belong to removed features is left out.
    """
    return [
        _verdict(each, findings, facts)
        for each in QUESTIONS
        if not each.checks or findings.keys() & {*each.checks}
    ]


def _verdict(question: DoctorQuestion, findings: Findings, facts: Facts) -> DoctorAnswer:
    known = [findings[name] for name in question.checks if name in findings]
    problems = [each for each in known if each.level is not Level.OK]
    problems += question.advice(findings, facts)
    level = max((each.level for each in problems), key=_GRAVITY.__getitem__, default=Level.OK)
    answer = question.answer(findings, facts)
    shown = [each for each in problems if each.text != answer or each.fix is not None]
    if question.checks != _SETTINGS:  # wrong settings fail several checks, and are reported once
        shown = [each for each in shown if each.text != findings["settings"].text]
    return DoctorAnswer(question.text, answer, level, tuple(shown), question.checks)


def _sandbox(findings: Findings, facts: Facts) -> str:
    if not facts.has_sandbox:
        return "no, the settings switch the sandbox off"
    if findings["settings"].level is Level.FAILED:
        return "unknown until the settings are valid"
    if findings["sandbox"].level is Level.FAILED:
        return "NO, so commands are refused"
    return "yes" if findings["sandbox"].level is Level.OK else "yes, with exceptions"


def _approvals(findings: Findings, facts: Facts) -> str:
    return ", ".join(facts.approvals) or "nowhere, so calls that need approval are refused"


def _no_approvals(findings: Findings, facts: Facts) -> list[Finding]:
    if facts.approvals:
        return []
    text = "there is no terminal here, and no instance with a dashboard runs"
    return [Finding(Level.NOTE, text, "callgate serve --detach")]


def _agents(findings: Findings, facts: Facts) -> str:
    guarded = ", ".join(each.label for each in facts.agents if each.is_guarded)
    if not guarded:
        return "none"
    if findings["hooks"].level is Level.FAILED:
        return f"NO ({guarded})"
    return guarded if facts.has_instance else f"{guarded}; every call is refused now"


def _agent_advice(findings: Findings, facts: Facts) -> list[Finding]:
    advice = [
        Finding(Level.NOTE, f"{each.label} is installed here", f"callgate protect {each.name}")
        for each in facts.agents
        if each.is_installed and not each.is_guarded
    ]
    if any(each.is_guarded for each in facts.agents) and not facts.has_instance:
        advice.append(Finding(Level.NOTE, "no instance runs", "callgate serve --detach"))
    return advice


def _audit(findings: Findings, facts: Facts) -> str:
    found = findings["audit"]
    if found.level is Level.FAILED:
        return "NOT intact" if found.fix == "callgate audit verify" else "NOT usable"
    return "intact" if facts.has_records else "empty until the first call"


def _settings(findings: Findings, facts: Facts) -> str:
    wrong = any(findings[name].level is Level.FAILED for name in _SETTINGS if name in findings)
    return "NO" if wrong else "yes"


def _tools(findings: Findings, facts: Facts) -> str:
    if findings["settings"].level is Level.FAILED:
        return "unknown until the settings are valid"
    return "NOT usable" if findings["tools"].level is Level.FAILED else findings["tools"].text


def _text_of(name: str) -> Callable[[Findings, Facts], str]:
    return lambda findings, _: findings[name].text


def _instance(findings: Findings, facts: Facts) -> str:
    if not facts.has_instance:
        return findings["instance"].text
    return {Level.OK: "yes", Level.NOTE: "yes, with older settings", Level.FAILED: "NO"}[
        findings["instance"].level
    ]


def _machine(findings: Findings, facts: Facts) -> str:
    return _NO[max((findings[name].level for name in _MACHINE), key=_GRAVITY.__getitem__)]


_SETTINGS = ("home", "settings", "workspace", "trust", "shared")
_MACHINE = ("python", "platform", "wall")

QUESTIONS: tuple[DoctorQuestion, ...] = (
    DoctorQuestion("Commands are sandboxed", ("sandbox",), _sandbox),
    DoctorQuestion("Approvals reach you", (), _approvals, _no_approvals),
    DoctorQuestion("Agents are protected", ("hooks",), _agents, _agent_advice),
    DoctorQuestion("Audit log", ("audit",), _audit),
    DoctorQuestion("Settings are valid", _SETTINGS, _settings),
    DoctorQuestion("Tools", ("tools", "hosts", "servers"), _tools),
    DoctorQuestion("Model", ("models",), _text_of("models")),
    DoctorQuestion("An instance runs", ("instance",), _instance),
    DoctorQuestion("Storage", ("store", "space"), _text_of("space")),
    DoctorQuestion("This machine is supported", _MACHINE, _machine),
)


_COLOURS = {Level.OK: "green", Level.NOTE: "yellow", Level.FAILED: "red"}


def _show_sight(patient: Patient) -> int:
    sandbox = sandbox_of(patient)
    if sandbox is None or sandbox.surroundings.profile is None:
        raise CliError("commands run without a sandbox", hint="callgate doctor shows the reason.")
    for heading, paths in seen(sandbox, patient.workspace).items():
        print(heading)
        for path in paths or ["nothing"]:
            print(f"  {visible(path)}")
    return OK


def doctor(options: Namespace) -> int:
    if options.words:
        raise CliError(
            f"unexpected argument {options.words[0]!r}", hint="See callgate doctor --help."
        )
    patient = Patient(Home.from_environment(), os.getcwd())
    if options.sandbox and not options.json:
        return _show_sight(patient)
    findings = {name: check(patient) for name, check in all_checks().items()}
    healthy = all(found.level is not Level.FAILED for found in findings.values())
    sandbox = sandbox_of(patient)
    is_off = sandbox is not None and sandbox.surroundings.profile is None
    facts = facts_of(patient.home, patient.workspace, has_sandbox=not is_off)
    answers = verdicts(findings, facts)
    if options.json:
        checks = [{"check": name, **found._asdict()} for name, found in findings.items()]
        profiles = None if sandbox is None else described(sandbox, patient.workspace)
        answered = [_as_json(each) for each in answers]
        print_json({"ok": healthy, "verdicts": answered, "checks": checks, "sandbox": profiles})
        return OK if healthy else FAILED
    for verdict in answers:
        _show_verdict(verdict)
    if options.verbose:
        print()
        _show_checks(findings)
    else:
        print("\ncallgate doctor -v lists every check.")
    return OK if healthy else FAILED


def _as_json(verdict: DoctorAnswer) -> dict[str, Any]:
    problems = [each._asdict() for each in verdict.problems]
    return {**verdict._asdict(), "problems": problems}


def _show_verdict(verdict: DoctorAnswer) -> None:
    """Print the answer, then each problem, and on a separate row the command that fixes it."""
    colour = None if verdict.level is Level.OK else _COLOURS[verdict.level]
    print_field(f"{verdict.question}: ", f"{verdict.answer}.", label_colour=colour)
    for problem in verdict.problems:
        if problem.text != verdict.answer:
            print_field("  ", problem.text)
        if problem.fix is not None:
            print(visible(f"  -> {problem.fix}"))  # one piece, to be copied


def _show_checks(findings: Mapping[str, Finding]) -> None:
    rows = [
        (Cell(found.level, _COLOURS[found.level]), name, _with_fix(found))
        for name, found in findings.items()
    ]
    print_rows((Column("level", least=6), Column("check", least=10), Column("found")), rows)


def _with_fix(found: Finding) -> str:
    return found.text if found.fix is None else f"{found.text}  -> {found.fix}"
