"""What a shell command line says it will run, and what a list of rules says about that.

    text -> read_command -> ParsedCommand -> judge(rules) -> Judgement

Every command of a line is judged alone and the strictest answer counts: deny, then ask,
then no rule at all, then allow. A line is allowed only if it is understood completely and
an allowing rule covers every command in it, and nothing but commands: a file that is read
or written by redirection, or a variable that is set, is in no rule. Rules that restrict
also look at what could be made out of a line that is not understood, and behind wrappers.

Nothing here is a wall. A list of denied commands can always be got around; the sandbox is
what holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from callgate.policy.shell_patterns import (
    CommandPattern,
    matches,
    parse_pattern,
    program_name,
    quote,
    touches,
)
from callgate.policy.shell_reader import read_command
from callgate.policy.shell_reading import TooMuch
from callgate.policy.shell_values import Doubt, ParsedCommand, Redirect, Segment
from callgate.policy.shell_wrappers import commands_within

__all__ = [
    "read_command",
    "ParsedCommand",
    "Segment",
    "Redirect",
    "Doubt",
    "CommandPattern",
    "parse_pattern",
    "matches",
    "judge",
    "Judgement",
    "Verdict",
    "Outcome",
    "generalise",
]

Outcome = Literal["allow", "ask", "deny"]
Rules = Sequence[tuple[CommandPattern, str]]
"""Patterns with what they say: `allow`, `ask` or `deny`."""

_OUTCOMES: dict[str, Outcome] = {"allow": "allow", "ask": "ask", "deny": "deny"}
_STRICTNESS: dict[Outcome | None, int] = {"allow": 0, None: 1, "ask": 2, "deny": 3}


class Verdict(msgspec.Struct, frozen=True):
    """What the rules say about one command of a line."""

    segment: Segment
    outcome: Outcome | None = None
    """None where no rule speaks about it."""
    rule: int | None = None
    """The position of the rule that matched; None where no rule made the outcome."""
    reason: str = ""
    """For a person, where no rule made the outcome."""


class Judgement(msgspec.Struct, frozen=True):
    """What the rules say about a whole line."""

    outcome: Outcome | None
    """None where no rule decides: what would be done without command rules is done."""
    rules: tuple[int, ...]
    """Positions of the rules that made the outcome; empty where a doubt or a limit did."""
    sentence: str
    """Why, for a person."""
    verdicts: tuple[Verdict, ...] = ()
    doubts: tuple[Doubt, ...] = ()


def judge(parsed: ParsedCommand, rules: Rules) -> Judgement:
    """Judge every command of a line by every rule; the strictest answer counts."""
    known = _checked(rules)
    if parsed.too_long:
        return _over_limit(parsed)
    try:
        verdicts = tuple(_judge_segment(segment, known) for segment in parsed.segments)
    except TooMuch:
        return _over_limit(parsed)
    outcome = max((v.outcome for v in verdicts), key=_STRICTNESS.__getitem__, default=None)
    if parsed.doubts and known and _STRICTNESS[outcome] < _STRICTNESS["ask"]:
        outcome = "ask"
    deciding = tuple(verdict for verdict in verdicts if verdict.outcome == outcome)
    made_by = dict.fromkeys(v.rule for v in deciding if v.rule is not None and outcome)
    return Judgement(
        outcome=outcome,
        rules=tuple(made_by),
        sentence=_sentence(outcome, deciding, parsed, known),
        verdicts=verdicts,
        doubts=parsed.doubts,
    )


def _checked(rules: Rules) -> list[tuple[CommandPattern, Outcome]]:
    try:
        return [(pattern, _OUTCOMES[outcome]) for pattern, outcome in rules]
    except KeyError as error:
        raise ValueError(f"a rule says allow, ask or deny, not {error}") from None


def _over_limit(parsed: ParsedCommand) -> Judgement:
    sentence = f"The command contains {Doubt.TOO_LONG}."
    doubts = tuple(dict.fromkeys((*parsed.doubts, Doubt.TOO_LONG)))
    return Judgement(outcome="deny", rules=(), sentence=sentence, doubts=doubts)


def _judge_segment(segment: Segment, rules: list[tuple[CommandPattern, Outcome]]) -> Verdict:
    restricting = [(at, rule) for at, rule in enumerate(rules) if rule[1] != "allow"]
    asking: Verdict | None = None
    if restricting:
        for argv in commands_within(segment):
            for at, (pattern, outcome) in restricting:
                if (outcome == "deny" or asking is None) and touches(pattern, argv):
                    verdict = Verdict(segment, outcome, at)
                    if outcome == "deny":
                        return verdict
                    asking = verdict
    if asking is not None:
        return asking
    for at, (pattern, outcome) in enumerate(rules):
        if outcome == "allow" and segment.literal and matches(pattern, segment.argv):
            uncovered = _uncovered(segment)
            if uncovered:
                return Verdict(segment, "ask", reason=uncovered)
            return Verdict(segment, "allow", at)
    return Verdict(segment)


def _uncovered(segment: Segment) -> str:
    """What a segment does beside running its words, which no rule speaks about."""
    if segment.assignments:
        return "it sets a variable"
    for redirect in segment.redirects:
        if not redirect.harmless:
            target = "a file" if redirect.target is None else _clip(redirect.target)
            return f"it {'writes to' if redirect.writes else 'takes its input from'} {target}"
    return ""


def _sentence(
    outcome: Outcome | None,
    deciding: Sequence[Verdict],
    parsed: ParsedCommand,
    rules: list[tuple[CommandPattern, Outcome]],
) -> str:
    for verdict in deciding:
        if verdict.rule is None and verdict.reason:
            return f"{_clip(verdict.segment.text)} asks, because {verdict.reason}."
        if verdict.rule is not None and outcome is not None:
            pattern = rules[verdict.rule][0]
            words = {"allow": "allows", "ask": "asks about", "deny": "denies"}[outcome]
            return f"The rule {_clip(str(pattern))} {words} {_clip(verdict.segment.text)}."
    if outcome == "ask":
        return f"It is not fully understood: it contains {'; '.join(parsed.doubts)}."
    return "No rule decides about it."


def _clip(text: str) -> str:
    """A piece of a command for a sentence: short, and with nothing invisible in it."""
    return repr(text if len(text) <= 80 else text[:60] + "…" + text[-19:])


_ANY_ARGUMENTS = frozenset(
    {"ls", "cat", "head", "tail", "wc", "stat", "du", "df", "grep", "cut", "tr", "nl", "tac"}
    | {"cmp", "comm", "basename", "dirname", "realpath", "readlink", "pwd", "echo", "which"}
    | {"id", "uname", "whoami", "md5sum", "sha1sum", "sha256sum", "cksum"}
)
"""Programs that no argument can make write a file or run another program."""
_ANY_ARGUMENTS_AFTER = {
    "git": frozenset({"status", "rev-parse", "ls-files", "ls-tree", "merge-base", "describe"}),
}
"""The same for one of their subcommands. `git log` is not here: `--output` writes a file."""
_READS_COMMANDS = frozenset(
    {"sh", "bash", "dash", "zsh", "ksh", "fish", "python", "python3", "node", "deno", "bun"}
    | {"perl", "ruby", "php", "lua", "psql", "mysql", "sqlite3", "osascript"}
)
_ALWAYS_READ_COMMANDS = frozenset({"xargs", "parallel", "at", "batch"})
"""Programs that take from their input what they are to run."""


def generalise(parsed: ParsedCommand) -> str | None:
    """The pattern to suggest for a saved rule: as wide as is safe, which is mostly not wide.

    None where no pattern says what the person saw: more than one command, a doubt, a
    redirection, or a program that is told by its input what to do.
    """
    if parsed.doubts or len(parsed.segments) != 1:
        return None
    segment = parsed.segments[0]
    if not segment.argv or not segment.argv[0] or segment.redirects or segment.assignments:
        return None
    program, *arguments = segment.argv
    if program in _ANY_ARGUMENTS:
        return f"{program} *"
    if arguments and arguments[0] in _ANY_ARGUMENTS_AFTER.get(program, ()):
        return f"{program} {arguments[0]} *"
    try:
        if any(map(_told_by_input, commands_within(segment))):
            return None
    except TooMuch:
        return None
    return " ".join(map(quote, segment.argv))


def _told_by_input(argv: tuple[str, ...]) -> bool:
    program, *arguments = argv
    name = program_name(program)
    if name in _ALWAYS_READ_COMMANDS or program_name(argv[-1]) in _READS_COMMANDS:
        return True  # also `docker exec -i box sh`
    operands = [word for word in arguments if not word.startswith("-")]
    return name in _READS_COMMANDS and (not operands or "-" in arguments or "-s" in arguments)
