"""Which rules about paths bind a command, which names no path itself, and what they match.

A rule that denies or asks about a path binds a command if all else that it states holds for the
call. It hides the path if it speaks of reading, and makes it read-only if it speaks of writing
alone, which its `tool` says: a rule for `write_file` is about writing, one for `read_file` or
for every tool is not.

Pure: `dispatch.commands.path_search` looks for the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.effects import SideEffects
from callgate.core.resolved_paths import ResolvedPath
from callgate.policy.decide import Question, Rulebook, applies, speaks_of_command
from callgate.policy.rules import Outcome, Rule, glob_matches

FileTools = Mapping[str, SideEffects]
"""The tools that read and write files themselves, by every name that they have."""


class PathRule(msgspec.Struct, frozen=True):
    """A rule that binds a command."""

    rule: Rule
    hides: bool
    """It is about reading too: what matches is not there. Else it is read-only."""

    @property
    def pattern(self) -> str:
        return self.rule.path or ""

    @property
    def is_absolute(self) -> bool:
        return self.pattern.startswith("/")

    @property
    def is_unbounded(self) -> bool:
        """No directory is named that its matches are in."""
        return "**" in (_names(self.pattern) or ["**"])[0]

    @property
    def denies(self) -> bool:
        return self.rule.decision is Outcome.DENY

    def matches(self, path: str) -> bool:
        """Whether it covers a path: absolute if the rule is, else relative to its root."""
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
        """The name, folded, that every match ends in; None: it has wildcards."""
        name = self.pattern.rpartition("/")[2]
        return None if not name or set("*?") & set(name) else name.casefold()

    def literal(self, depth: int) -> str | None:
        """The name that a match has at this depth, if there is only one (but for its case)."""
        segments = _names(self.pattern)
        within = depth < len(segments) and not set("*?") & set("".join(segments[: depth + 1]))
        return segments[depth] if within else None


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def binding(book: Rulebook, question: Question, files: FileTools) -> tuple[PathRule, ...]:
    """The rules that bind the command of one call."""
    rules = ((rule, _hides(rule, question, files)) for rule in restricting(book))
    return tuple(PathRule(rule, hides) for rule, hides in rules if hides is not None)


def binding_processes(
    book: Rulebook, workspace: str, files: FileTools, names: tuple[str, ...] = ()
) -> tuple[PathRule, ...]:
    """The rules that bind a process which serves many calls, of whoever they are: a host or an
    MCP server, with the tools of these names."""
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
    """Every rule that denies or asks about a path."""
    for policy in (book.user, book.workspace):
        for rule in () if policy is None else policy.rules:
            if rule.decision is not Outcome.ALLOW and rule.path is not None:
                yield rule


def _hides(rule: Rule, question: Question, files: FileTools) -> bool | None:
    """Whether it hides what it matches, or makes it read-only; None: it does not bind."""
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
    """The words of a command line that may be names of files, as far as they can be read."""
    from callgate.policy.commands import read_command  # lazy: only for rules about paths  # noqa: PLC0415

    parsed = read_command(command)
    for segment in parsed.segments:
        if segment.literal:
            for word in segment.argv[1:]:
                yield word
                if "=" in word:
                    yield word.partition("=")[2]
        yield from (each.target for each in segment.redirects if each.target is not None)
