"""What a policy is made of: class defaults, tools, trusted workspaces, and rules.

A rule matches a call when every condition it states holds. Of the rules that match, deny
beats ask beats allow. An `allow` must cover every place a call touches; a `deny` or an
`ask` needs only one, and compares without regard to case, so that a case-insensitive file
system cannot hide a file from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.content import Label
from callgate.core.effects import SideEffects
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.text.path_globs import RuleGlob
from callgate.core.text.wildcards import Match, compile_tokens, parse_wildcards
from callgate.policy.shell_patterns import CommandPattern


class PolicyMode(StrEnum):
    """What the settings may say of an effect or of a tool."""

    AUTO = "auto"
    PROMPT_ONCE = "prompt_once"
    PROMPT = "prompt"
    DENY = "deny"


class Outcome(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"

    @property
    def strictness(self) -> int:
        return _STRICTNESS[self]


_STRICTNESS = {Outcome.ALLOW: 0, Outcome.ASK: 1, Outcome.DENY: 2}


class Origin(msgspec.Struct, frozen=True):
    """Where a setting stands, so that a decision can name it."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


_EMPTY: tuple[Any, ...] = (None, "", [], {})
BUILT_IN = Origin("built-in default")


class Setting(msgspec.Struct, frozen=True):
    """A policy word and where it was written."""

    mode: PolicyMode
    origin: Origin = BUILT_IN


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    decision: Outcome
    tool: str | None = None
    """A glob over the tool's name."""
    path: str | None = None
    """A glob over the places a call touches; relative to their root, or absolute."""
    command: CommandPattern | None = None
    caller: CallerKind | None = None
    arguments: Mapping[str, str] = {}
    """Argument name to a glob over its text."""
    without: tuple[str, ...] = ()
    """Arguments that a call does not have, or has empty."""
    arguments_sha256: str | None = None
    """Exactly these arguments."""
    workspace: str | None = None
    """Only in this directory or below."""
    network: bool | tuple[str, ...] | None = None
    """Whether the call asks for the network. An `allow` covers such a call only if this is
    true, and then covers the others too. Hosts are a yes that goes no further than these."""
    untrusted_destinations: bool = False
    """An `allow` that holds also for destinations that untrusted content brought in."""
    origin: Origin = BUILT_IN

    def __str__(self) -> str:
        conditions = [
            f"{name} = {value}"
            for name, value in (
                ("tool", self.tool),
                ("path", self.path),
                ("command", self.command),
                ("caller", self.caller),
                ("workspace", self.workspace),
                ("arguments_sha256", self.arguments_sha256),
                ("network", _network_text(self.network)),
                ("untrusted_destinations", "true" if self.untrusted_destinations else None),
            )
            if value is not None
        ]
        conditions += [f"{name} = {glob}" for name, glob in self.arguments.items()]
        conditions += [f"without {name}" for name in self.without]
        return f"{self.decision} {', '.join(conditions)}"


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How much may happen before a person is asked."""

    amount: str
    """`calls`, `bytes_out` or `destinations`."""
    per: Literal["session", "day"]
    tool: str | None = None
    """None: of all tools together."""
    limit: int
    origin: Origin = BUILT_IN


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    destinations: tuple[str, ...] = ()
    """Globs of addresses, hosts and accounts to which anything may go."""
    labels: Mapping[Label, tuple[str, ...]] = {}
    """Globs of tools whose output has a label, beside what they declare."""
    parameters: Mapping[str, tuple[str, ...]] = {}
    """Tool to the parameters that say where its effect goes."""
    without_conversation: bool = False
    """Guard sessions too in which nobody tells what the user wrote."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    default: Mapping[SideEffects, Setting] = {}
    """Classes left out take the built-in default; in a workspace's own file: no opinion."""
    per_tool: Mapping[str, Setting] = {}
    trusted_workspaces: tuple[str, ...] = ()
    """Absolute directories in which writes need no question."""
    trusted_origin: Origin = BUILT_IN
    trusted_workspace_overrides: Mapping[SideEffects, Setting] = {}
    rules: tuple[Rule, ...] = ()
    confirm_destructive: bool = False
    """In mode write: ask before a destructive tool all the same."""
    guard: GuardSettings = GuardSettings()
    hosts: tuple[str, ...] | None = None
    """In a workspace's own file: no command reaches any other. None: no opinion."""
    budgets: tuple[Budget, ...] = ()
    """Each of them holds, so that a workspace's own can only narrow."""


CLASS_DEFAULTS: Mapping[SideEffects, Setting] = {
    SideEffects.NONE: Setting(PolicyMode.AUTO),
    SideEffects.READ: Setting(PolicyMode.AUTO),
    SideEffects.WRITE: Setting(PolicyMode.PROMPT),
    SideEffects.NETWORK: Setting(PolicyMode.PROMPT),
    SideEffects.EXECUTE: Setting(PolicyMode.PROMPT),
}


def is_within(path: str, directory: str) -> bool:
    """Whether an absolute path is a directory or lies below it (`/ws-evil` is not in `/ws`)."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


@lru_cache(maxsize=4096)
def compile_glob(pattern: str, *, paths: bool) -> Match:
    """`*` and `?` stay within a path segment, `**` crosses them; elsewhere `*` is anything.

    Raises `ValueError` for a path pattern that has too many meanings."""
    return RuleGlob(pattern).matches if paths else compile_tokens(parse_wildcards(pattern))


def glob_matches(pattern: str, text: str, *, paths: bool, fold: bool) -> bool:
    """`paths`: as in `compile_glob`; `fold`: without regard to case."""
    if fold:
        pattern, text = pattern.casefold(), text.casefold()
    return compile_glob(pattern, paths=paths)(text)


def covers_path(rule: Rule, resolved: ResolvedPath) -> bool:
    """Whether the rule's path glob matches this place."""
    if rule.path is None:
        return False
    text = resolved.real if rule.path.startswith("/") else resolved.relative
    return glob_matches(rule.path, text, paths=True, fold=rule.decision is not Outcome.ALLOW)


def rule_applies(
    rule: Rule,
    *,
    tools: tuple[str, ...],
    caller: CallerKind,
    workspace: str,
    resolved_paths: tuple[ResolvedPath, ...],
    arguments: Mapping[str, Any],
    arguments_sha256: str,
    network: bool = False,
) -> bool:
    """Whether every condition but the command holds; commands are judged all together.

    `tools` is the tool's name and its aliases: a rule about one of them is about the tool."""
    fold = rule.decision is not Outcome.ALLOW
    if rule.tool is not None and not any(
        glob_matches(rule.tool, tool, paths=False, fold=fold) for tool in tools
    ):
        return False
    if not _covers_network(rule, network):
        return False
    if rule.caller is not None and rule.caller is not caller:
        return False
    if rule.workspace is not None and not is_within(workspace, rule.workspace):
        return False
    if rule.arguments_sha256 is not None and rule.arguments_sha256 != arguments_sha256:
        return False
    if rule.path is not None:
        covered = [covers_path(rule, resolved) for resolved in resolved_paths]
        if not covered or not (any(covered) if fold else all(covered)):
            return False
    if any(arguments.get(name) not in _EMPTY for name in rule.without):
        return False
    return all(
        name in arguments and glob_matches(glob, _as_text(arguments[name]), paths=False, fold=fold)
        for name, glob in rule.arguments.items()
    )


def _covers_network(rule: Rule, network: bool) -> bool:
    if rule.decision is Outcome.ALLOW:
        return bool(rule.network) or not network
    return rule.network is None or bool(rule.network) is network


def _network_text(network: bool | tuple[str, ...] | None) -> str | None:
    if isinstance(network, tuple):
        return f"[{', '.join(network)}]"
    return None if network is None else str(network).lower()


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
