"""The permission algorithm, from a question about a call to a decision.

    OPINIONS -> LIFTABLE -> RELAXATIONS -> NARROWINGS  =  decide
    decide -> TIGHTENINGS -> grants -> ask             =  the stage authorize

Each name is a list of pure functions, in `opinions`, `relaxations` and `tightenings`. The first
opinion with an answer wins; a relaxation turns an ask into an allow and never changes a deny; a
tightening only makes a decision stricter. Grants are remembered answers; the authorize stage looks
them up only if the decision is to ask.

Rules about paths also bind a command, which names no path itself. A rule that denies or asks about
a path binds a command if its other conditions hold for the call. If the rule applies to reading,
the sandbox hides the path. If it applies only to writing, the path is read-only. `tool` of the rule
decides: `write_file` is about writing, `read_file` or all tools are not.
`dispatch.commands.path_search` finds the files. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.effects import SideEffects
from callgate.core.sessions import ResolvedPath
from callgate.policy.decisions import Decision, Question
from callgate.policy.opinions import answer, applies, hosts_of, speaks_of_command
from callgate.policy.relaxations import relax
from callgate.policy.rules import Outcome, Policy, Rule, glob_matches, rule_is_about
from callgate.policy.tightenings import LIFTABLE, NARROWINGS

_REMEMBERED = 20_000
_MOST_SELECTIONS = 1_000


class Selection(NamedTuple):
    """Policies with only the rules that calls of some tools can match."""

    user: Policy
    workspace: Policy | None
    is_cacheable: bool
    """Whether no rule depends on the arguments or paths of a call."""


class Rulebook:
    """The policies for one workspace.

    A decision that depends on no argument and path of the call is cached, and a call is compared
    only with the rules that its tool can match. New settings make a new rulebook.
    """

    __slots__ = (
        "_selections",
        "budgets",
        "directory",
        "has_rules",
        "refusal",
        "remembered",
        "user",
        "workspace",
    )

    def __init__(
        self,
        user: Policy,
        workspace: Policy | None = None,
        directory: str | None = None,
        refusal: Decision | None = None,
    ) -> None:
        self.user = user
        self.workspace = workspace
        self.directory = directory
        """The workspace with links resolved, as in the settings; None: as in the session."""
        self.refusal = refusal
        """The decision about all calls with effects while the settings cannot be used."""
        self.has_rules = bool(user.rules) or (workspace is not None and bool(workspace.rules))
        self.budgets = user.budgets + (() if workspace is None else workspace.budgets)
        self.remembered: dict[tuple[str, str, str], Decision] = {}
        """Cache by the key of a tool, mode and caller. The key has plain strings, because hashes
        of enum members are slow.
        """
        self._selections: dict[tuple[object, ...], Selection] = {}

    @property
    def most_hosts(self) -> tuple[str, ...] | None:
        """Upper limit for the hosts that commands can reach here; None: no limit."""
        return None if self.workspace is None else self.workspace.hosts

    def decide(self, question: Question, key: str = "") -> Decision:
        """Decide and, if nothing else determines the decision, cache it under the key of the tool.

        The key must differ between calls with and without `bears_rules`.
        """
        user, workspace, is_cacheable = self._select(question)
        decision = decide(question, user, workspace)
        if key and is_cacheable:
            if len(self.remembered) >= _REMEMBERED:
                self.remembered.clear()
            self.remembered[key, question.mode._value_, question.caller._value_] = decision
        return decision

    def _select(self, question: Question) -> Selection:
        if not self.has_rules:
            return Selection(self.user, self.workspace, is_cacheable=True)
        if question.reading:  # the rules about `read_file` count, too
            return Selection(self.user, self.workspace, is_cacheable=False)
        bears = bears_rules(question.resolved_paths, question.arguments)
        key = (question.names, question.caller._value_, question.workspace, *bears)
        selection = self._selections.get(key)
        if selection is None:
            if len(self._selections) >= _MOST_SELECTIONS:
                self._selections.clear()
            selection = self._selections[key] = self._selection(question)
        return selection

    def _selection(self, question: Question) -> Selection:
        user = _with_rules_about(question, self.user)
        workspace = None if self.workspace is None else _with_rules_about(question, self.workspace)
        rules = user.rules + (() if workspace is None else workspace.rules)
        depends = self.directory is None or any(_depends_on_call(rule) for rule in rules)
        return Selection(user, workspace, is_cacheable=not depends)


def bears_rules(paths: Sequence[ResolvedPath], arguments: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether rules about paths, and rules about commands, can match a call."""
    return bool(paths), "command" in arguments


def _with_rules_about(question: Question, policy: Policy) -> Policy:
    """Return the policy without the rules that no call like this one matches."""
    has_paths, has_command = bears_rules(question.resolved_paths, question.arguments)
    rules = tuple(
        rule
        for rule in policy.rules
        if (has_paths or rule.path is None)
        and (has_command or rule.command is None)
        and rule_is_about(rule, question.names, question.caller, question.workspace)
    )
    return msgspec.structs.replace(policy, rules=rules)


def _depends_on_call(rule: Rule) -> bool:
    looks = rule.arguments or rule.without or rule.arguments_sha256
    of_call = (rule.path, rule.command, rule.reversible)
    return bool(looks) or any(each is not None for each in of_call)


def decide(question: Question, user: Policy, workspace: Policy | None = None) -> Decision:
    """Return the decision of the user's policy, made stricter (never laxer) by the workspace's."""
    decision = answer(question, user)
    for tightening in LIFTABLE:
        decision = tightening(question, user, decision)
    decision = relax(question, decision, user, workspace)
    rules = user.rules
    if workspace is not None:
        rules += workspace.rules
        for narrowing in NARROWINGS:
            decision = narrowing(question, workspace, decision)
    hosts = hosts_of(question, rules) if question.network else ()
    return msgspec.structs.replace(decision, hosts=hosts) if hosts else decision


FileTools = Mapping[str, SideEffects]
"""The tools that read and write files themselves, by all their names."""


class PathRule(msgspec.Struct, frozen=True):
    """A rule that binds a command."""

    rule: Rule
    hides: bool
    """The rule applies to reading too: matching files are hidden. Otherwise they are read-only."""

    @property
    def pattern(self) -> str:
        return self.rule.path or ""

    @property
    def is_absolute(self) -> bool:
        return self.pattern.startswith("/")

    @property
    def is_unbounded(self) -> bool:
        """Whether the pattern names no directory that contains all matches."""
        return "**" in (_names(self.pattern) or ["**"])[0]

    @property
    def denies(self) -> bool:
        return self.rule.decision is Outcome.DENY

    def matches(self, path: str) -> bool:
        """Whether it matches a path: absolute if the rule is, else relative to its root."""
        return glob_matches(self.pattern, path, paths=True, fold=True)

    def covers(self, resolved: ResolvedPath) -> bool:
        return self.matches(resolved.real if self.is_absolute else resolved.relative)

    def may_match_below(self, path: str) -> bool:
        """Whether something in this directory, or deeper, could match."""
        names, segments = _names(path), _names(self.pattern)
        for name, segment in zip(names, segments, strict=False):
            if "**" in segment:
                return True
            if not glob_matches(segment, name, paths=True, fold=True):
                return False
        return len(names) < len(segments)

    @property
    def last_name(self) -> str | None:
        """The folded last name of every match; None: it has wildcards."""
        name = self.pattern.rpartition("/")[2]
        return None if not name or set("*?") & set(name) else name.casefold()

    def literal(self, depth: int) -> str | None:
        """Return the name of every match at this depth, except for its case, if there is one."""
        segments = _names(self.pattern)
        within = depth < len(segments) and not set("*?") & set("".join(segments[: depth + 1]))
        return segments[depth] if within else None


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def binding(book: Rulebook, question: Question, files: FileTools) -> tuple[PathRule, ...]:
    """Return the rules that bind the command of one call."""
    rules = ((rule, _hides(rule, question, files)) for rule in restricting(book))
    return tuple(PathRule(rule, hides) for rule, hides in rules if hides is not None)


def binding_processes(
    book: Rulebook, workspace: str, files: FileTools, names: tuple[str, ...] = ()
) -> tuple[PathRule, ...]:
    """Return the rules that bind a process with many callers: a host or an MCP server.

    `names` are the names of its tools.
    """
    found: list[PathRule] = []
    for caller in CallerKind:
        question = Question(
            tool=names[0] if names else "",
            aliases=names[1:],
            effect=SideEffects.EXECUTE,
            caller=caller,
            workspace=workspace,
        )
        for network in (False, True):
            either = msgspec.structs.replace(question, network=network)
            found += (rule for rule in binding(book, either, files) if rule not in found)
    return tuple(found)


def restricting(book: Rulebook) -> Iterator[Rule]:
    """Yield every rule that denies or asks about a path."""
    for policy in (book.user, book.workspace):
        for rule in () if policy is None else policy.rules:
            if rule.decision is not Outcome.ALLOW and rule.path is not None:
                yield rule


def _hides(rule: Rule, question: Question, files: FileTools) -> bool | None:
    """Whether the rule hides matches (True) or makes them read-only (False); None: not bound."""
    anywhere = msgspec.structs.replace(rule, path=None)
    if applies(anywhere, question) and speaks_of_command(rule, question):
        return True
    looks = rule.command or rule.arguments or rule.without or rule.arguments_sha256
    if rule.tool is None or looks:
        return None
    of_any_tool = msgspec.structs.replace(anywhere, tool=None)
    if not applies(of_any_tool, question):
        return None
    effects = {
        effect
        for name, effect in files.items()
        if glob_matches(rule.tool, name, paths=False, fold=True)
    }
    if not effects:
        return None
    return effects != {SideEffects.WRITE}


def words(command: str) -> Iterable[str]:
    """Yield the words of a command line that may be file names, as far as it is understood."""
    from callgate.policy.commands import read_command  # lazy: only for rules about paths  # noqa: PLC0415

    parsed = read_command(command)
    for segment in parsed.segments:
        if segment.literal:
            for word in segment.argv[1:]:
                yield word
                if "=" in word:
                    yield word.partition("=")[2]
        yield from (each.target for each in segment.redirects if each.target is not None)
