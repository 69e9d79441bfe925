"""Shell command lines and rules: the verdict of rules, and the rules that an approval can save.

    text -> read_command -> ParsedCommand -> judge(rules) -> Judgement

Every command of a line is evaluated alone, and the strictest result counts: deny, ask, no rule,
allow. A line is allowed only if it is understood completely, an allowing rule covers every command
in it, and it has only commands: no rule covers a redirection to a file or a variable assignment.
Restricting rules also match the recognized parts of an unclear line, and commands behind wrappers.
A list of denied commands is not a boundary, because it can be evaded; the sandbox is one.

    git commit -m 'Fix it'   ->  git commit -m 'Fix it'       exactly these words
                                 git commit -m ?*             git commit -m <one text>

A proposed wider pattern keeps the program, its subcommand and its options. A wildcard replaces only
a value with a known meaning: a message, a path, a name. It covers one word, never an option; a
path or name does not begin with `/`, `@`, `+` or `:` and has no `..`. For a command outside the
table `_SHAPES` the proposal has exactly its words, and the table excludes programs that execute
arbitrary code. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from callgate.policy.rules import Proposal
from callgate.policy.shell_patterns import (
    CommandPattern,
    Doubt,
    ParsedCommand,
    Redirect,
    Segment,
    TooMuch,
    matches,
    parse_pattern,
    program_name,
    quote,
    touches,
)
from callgate.policy.shell_reader import read_command
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
    "RulesVerdict",
    "Outcome",
    "generalise",
]

Outcome = Literal["allow", "ask", "deny"]
Rules = Sequence[tuple[CommandPattern, str]]
"""Patterns with their outcome: `allow`, `ask` or `deny`."""

_OUTCOMES: dict[str, Outcome] = {"allow": "allow", "ask": "ask", "deny": "deny"}
_STRICTNESS: dict[Outcome | None, int] = {"allow": 0, None: 1, "ask": 2, "deny": 3}


class RulesVerdict(msgspec.Struct, frozen=True):
    """The verdict of the rules about one command of a line."""

    segment: Segment
    outcome: Outcome | None = None
    """None if no rule matches."""
    rule: int | None = None
    """The position of the matching rule; None if no rule determined the outcome."""
    reason: str = ""
    """Reason for a person, if no rule determined the outcome."""


class Judgement(msgspec.Struct, frozen=True):
    """The verdict of the rules about a whole line."""

    outcome: Outcome | None
    """None if no rule decides: the outcome is the same as without command rules."""
    rules: tuple[int, ...]
    """Positions of the deciding rules; empty if a doubt or a limit decided."""
    sentence: str
    """The reason, for a person."""
    verdicts: tuple[RulesVerdict, ...] = ()
    doubts: tuple[Doubt, ...] = ()


def judge(parsed: ParsedCommand, rules: Rules) -> Judgement:
    """Evaluate all rules for every command of a line; the strictest result counts."""
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
        raise ValueError(f"the decision of a rule is allow, ask or deny, not {error}") from None


def _over_limit(parsed: ParsedCommand) -> Judgement:
    sentence = f"The command contains {Doubt.TOO_LONG}."
    doubts = tuple(dict.fromkeys((*parsed.doubts, Doubt.TOO_LONG)))
    return Judgement(outcome="deny", rules=(), sentence=sentence, doubts=doubts)


def _judge_segment(segment: Segment, rules: list[tuple[CommandPattern, Outcome]]) -> RulesVerdict:
    restricting = [(at, rule) for at, rule in enumerate(rules) if rule[1] != "allow"]
    asking: RulesVerdict | None = None
    if restricting:
        for argv in commands_within(segment):
            for at, (pattern, outcome) in restricting:
                if (outcome == "deny" or asking is None) and touches(pattern, argv):
                    verdict = RulesVerdict(segment, outcome, at)
                    if outcome == "deny":
                        return verdict
                    asking = verdict
    if asking is not None:
        return asking
    for at, (pattern, outcome) in enumerate(rules):
        if outcome == "allow" and segment.literal and matches(pattern, segment.argv):
            uncovered = _uncovered(segment)
            if uncovered:
                return RulesVerdict(segment, "ask", reason=uncovered)
            return RulesVerdict(segment, "allow", at)
    return RulesVerdict(segment)


def _uncovered(segment: Segment) -> str:
    """Return the effect of a segment that rules do not cover, such as a redirection."""
    if segment.assignments:
        return "it sets a variable"
    for redirect in segment.redirects:
        if not redirect.harmless:
            target = "a file" if redirect.target is None else _clip(redirect.target)
            return f"it {'writes to' if redirect.writes else 'takes its input from'} {target}"
    return ""


def _sentence(
    outcome: Outcome | None,
    deciding: Sequence[RulesVerdict],
    parsed: ParsedCommand,
    rules: list[tuple[CommandPattern, Outcome]],
) -> str:
    for verdict in deciding:
        if verdict.rule is None and verdict.reason:
            return f"{_clip(verdict.segment.text)} needs approval, because {verdict.reason}."
        if verdict.rule is not None and outcome is not None:
            pattern = rules[verdict.rule][0]
            words = {"allow": "allows", "ask": "requires approval for", "deny": "denies"}[outcome]
            return f"The rule {_clip(str(pattern))} {words} {_clip(verdict.segment.text)}."
    if outcome == "ask":
        return f"It is not fully understood: it contains {'; '.join(parsed.doubts)}."
    return "No rule decides about it."


def _clip(text: str) -> str:
    """Return a part of a command for a sentence: short, with invisible characters escaped."""
    return repr(text if len(text) <= 80 else text[:60] + "…" + text[-19:])


_ANY_ARGUMENTS = frozenset(
    {"ls", "cat", "head", "tail", "wc", "stat", "du", "df", "grep", "cut", "tr", "nl", "tac"}
    | {"cmp", "comm", "basename", "dirname", "realpath", "readlink", "pwd", "echo", "which"}
    | {"id", "uname", "whoami", "md5sum", "sha1sum", "sha256sum", "cksum"}
)
"""Programs that never write a file or run another program, with any arguments."""
_ANY_ARGUMENTS_AFTER = {
    "git": frozenset({"status", "rev-parse", "ls-files", "ls-tree", "merge-base", "describe"}),
}
"""Their subcommands with this property. `git log` is not here: `--output` writes a file."""
_READS_COMMANDS = frozenset(
    {"sh", "bash", "dash", "zsh", "ksh", "fish", "python", "python3", "node", "deno", "bun"}
    | {"perl", "ruby", "php", "lua", "psql", "mysql", "sqlite3", "osascript"}
)
_ALWAYS_READ_COMMANDS = frozenset({"xargs", "parallel", "at", "batch"})
"""Programs that read commands from standard input."""


def generalise(parsed: ParsedCommand) -> str | None:
    """Return the pattern to suggest for a saved rule: as wide as is safe, which is rarely wide.

    Return None if no pattern describes the command: it has several commands, a doubt or a
    redirection, or its program reads commands from standard input.
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


_EXACT = "exactly these words"
_MOST_OPERANDS = 8
_NOT_RELATIVE = ("-", "/", "@", "+", ":")
_RELATIVE = "[!/@+:]*"
"""Excludes `@FILE` (more arguments from a file), `+NAME` (another toolchain, for Rust programs)
and `:/` (the whole repository, for git).
"""


class _Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The variable parts in equivalent runs of one program."""

    options: frozenset[str] = frozenset()
    """Options that stay as written. With any other option only the exact words are proposed."""
    values: frozenset[str] = frozenset()
    """Options whose value, the next word, stays too."""
    texts: frozenset[str] = frozenset()
    """Options with a free text as value: it is stored, never executed."""
    operand: Literal["path", "name", "none"] = "none"
    """Kind of operands that a wildcard can replace."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DIFF = _words("--stat --cached --staged --name-only --name-status -w --no-color --numstat")
_LOG = _DIFF | _words("-p --oneline --graph --all -1 -2 -3 -5 -10 -20 -n1 -n5 -n10 --no-merges")
_LINT = _words("--fix --quiet -q --check --diff --write -w --no-cache --strict --list-different")

_SHAPES: Mapping[str, _Shape] = {
    "git commit": _Shape(
        options=_words("-a --all -q --quiet -s --signoff --no-edit"),
        texts=_words("-m -am --message"),
    ),
    "git add": _Shape(options=_words("-A -u -v --all --update --"), operand="path"),
    "git stash push": _Shape(options=_words("-u -q"), texts=_words("-m --message")),
    "git switch": _Shape(options=_words("-q --quiet -c --create"), operand="name"),
    "git diff": _Shape(options=_DIFF | {"--"}, operand="name"),
    "git log": _Shape(options=_LOG | {"--"}, operand="name"),
    "git show": _Shape(options=_LOG, operand="name"),
    "git blame": _Shape(options=_words("-w -s"), operand="path"),
    "pytest": _Shape(
        options=_words(
            "-q -v -vv -x -s -l --lf --ff --sw -ra -rA --tb=short --tb=long --tb=line --tb=no"
            " --no-header --maxfail=1 --exitfirst --quiet --verbose --last-failed"
        ),
        values=_words("-k -m -n --maxfail --tb"),
        operand="path",
    ),
    "go test": _Shape(options=_words("-v -race -short -count=1 -cover"), operand="path"),
    "go vet": _Shape(operand="path"),
    "go build": _Shape(options=_words("-v -race"), operand="path"),
    "cargo test": _Shape(options=_words("-q --release --workspace --all --lib"), operand="name"),
    "ruff check": _Shape(options=_LINT, operand="path"),
    "ruff format": _Shape(options=_LINT, operand="path"),
    "black": _Shape(options=_LINT, operand="path"),
    "isort": _Shape(options=_LINT, operand="path"),
    "mypy": _Shape(options=_LINT, operand="path"),
    "flake8": _Shape(operand="path"),
    "gofmt": _Shape(options=_words("-l -w -d -s"), operand="path"),
    "rustfmt": _Shape(options=_words("--check"), operand="path"),
    "prettier": _Shape(options=_LINT, operand="path"),
    "eslint": _Shape(options=_LINT, operand="path"),
    "mkdir": _Shape(options=_words("-p -v"), operand="path"),
    "touch": _Shape(operand="path"),
}  # fmt: skip
"""By program and subcommand. Their options never name a program, a configuration or an output."""


def proposals(parsed: ParsedCommand, *, network: bool = False) -> tuple[Proposal, ...]:
    """Return patterns to propose for a command, the narrowest first.

    None if no pattern describes the command. For a command with network access, only the exact
    words are proposed.
    """
    suggested = generalise(parsed)
    if suggested is None:
        return ()
    argv = parsed.segments[0].argv
    exact = Proposal(" ".join(map(quote, argv)), _EXACT)
    found = [exact]
    if not network:
        if suggested != exact.pattern:
            found.append(Proposal(suggested, f"{suggested[:-2]} <any options and arguments>"))
        elif (wider := _wider(argv)) is not None:
            found.append(wider)
    return tuple(each for each in found if _covers(each.pattern, parsed))


def _covers(pattern: str, parsed: ParsedCommand) -> bool:
    return judge(parsed, [(parse_pattern(pattern), "allow")]).outcome == "allow"


def _wider(argv: Sequence[str]) -> Proposal | None:
    """Return the pattern with wildcards for values, or None if a word has no known meaning."""
    for count in (3, 2, 1):
        shape = _SHAPES.get(" ".join(argv[:count])) if len(argv) >= count else None
        if shape is None:
            continue
        words = list(_replaced(shape, argv[count:]))
        if None in words or all(each is None or each[0] == each[1] for each in words):
            return None
        fixed = [quote(each) for each in argv[:count]]
        known = [each for each in words if each is not None]
        return Proposal(
            " ".join([*fixed, *(pattern for pattern, _ in known)]),
            " ".join([*fixed, *(shown for _, shown in known)]),
        )
    return None


def _replaced(shape: _Shape, words: Sequence[str]) -> Iterator[tuple[str, str] | None]:
    """Yield each word as a pattern and as text for a person, or None for an unknown word."""
    left = iter(words)
    operands = 0
    for word in left:
        name, equals, _ = word.partition("=")
        if word in shape.options:
            yield quote(word), quote(word)
        elif word in shape.values | shape.texts:
            value = next(left, None)
            is_value = value is not None and not value.startswith("-")
            yield (quote(word), quote(word)) if is_value else None
            if value is not None and word in shape.texts:
                yield "?*", "<one text>"
            elif value is not None:
                yield quote(value), quote(value)
        elif equals and name in shape.texts and name.startswith("--"):
            yield f"{name}=*", f"{name}=<one text>"
        elif word.startswith(_NOT_RELATIVE) or ".." in word.split("/") or shape.operand == "none":
            yield None
        else:
            operands += 1
            yield _operand(shape, word) if operands <= _MOST_OPERANDS else None


def _operand(shape: _Shape, word: str) -> tuple[str, str]:
    directory, slash, _ = word.partition("/")
    if shape.operand == "path" and slash:
        return f"{quote(directory)}/*", f"<one path in {directory}/>"
    return _RELATIVE, f"<one {'relative path' if shape.operand == 'path' else 'name'}>"
