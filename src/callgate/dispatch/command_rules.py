"""What path rules say of one call's command: which of them bind it, and which places it names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.errors import ToolError
from callgate.core.resolved_paths import ResolvedPath
from callgate.dispatch.subjects import Subject, question
from callgate.dispatch.tools.registry import Registry
from callgate.policy.decide import Rulebook
from callgate.policy.path_rules import PathRule, binding, words
from callgate.workspace.paths import opening

if TYPE_CHECKING:
    from callgate.dispatch.commands.path_search import Matches

_MOST_WORDS = 1_000
"""Of a command that are looked at; what only the others name is not allowed by them."""


class CommandRules:
    def __init__(self, policies: Callable[[str], Rulebook], registry: Registry) -> None:
        self._policies = policies
        self._registry = registry

    def of(self, call: ToolCall, subject: Subject) -> tuple[PathRule, ...]:
        """The rules that bind the call's command, as the policy is now."""
        with opening():  # the settings may be read anew, while a tool runs
            book = self._policies(call.session.workspace)
        if not book.has_rules:
            return ()
        around = subject.enclosure
        online = around is None or around.delegated or around.widened or around.is_online
        asking = msgspec.structs.replace(question(call, subject, book), network=online)
        return binding(book, asking, self._registry.file_tools())

    def named(
        self, call: ToolCall, subject: Subject, locate: Callable[[str], ResolvedPath]
    ) -> tuple[ResolvedPath, ...]:
        """Places that the command names, that a rule asks about and none denies: the question is
        about these too, and a yes to it is one to them."""
        command = subject.checked.arguments.get("command")
        rules = self.of(call, subject)
        if not isinstance(command, str) or all(rule.denies for rule in rules):
            return ()
        found = {resolved.real: resolved for resolved in _resolved_paths(command, subject, locate)}
        return tuple(resolved for resolved in found.values() if _is_asked_about(resolved, rules))

    def matches(self, call: ToolCall, subject: Subject) -> Matches:
        """What a command would be kept from now. Blocks; raises `PathRuleUnkept`."""
        from callgate.dispatch.commands.path_search import (  # lazy: only a dry run asks  # noqa: PLC0415
            find,
        )

        session = call.session
        roots = (session.workspace, *(root.path for root in session.extra_roots))
        return find(self.of(call, subject), roots, (*subject.resolved_paths, *subject.named))


def _resolved_paths(
    command: str, subject: Subject, locate: Callable[[str], ResolvedPath]
) -> Iterator[ResolvedPath]:
    directory = subject.resolved_paths[0].given if subject.resolved_paths else "."
    for word in islice(dict.fromkeys(words(command)), _MOST_WORDS):
        try:
            yield locate(os.path.join(directory, word))
        except ToolError:
            continue  # outside, or no path at all


def _is_asked_about(resolved: ResolvedPath, rules: tuple[PathRule, ...]) -> bool:
    matching = [rule for rule in rules if rule.covers(resolved)]
    return bool(matching) and not any(rule.denies for rule in matching)
