"""The parts of a policy: class defaults, tools, trusted workspaces, and rules.

A rule matches a call when all its conditions hold. If several rules match, deny
beats ask beats allow. An `allow` must cover every path of a call; a `deny` or an
`ask` needs only one, and ignores case, so that a case-insensitive file
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
from callgate.core.patterns import Match, RuleGlob, compile_tokens, parse_wildcards
from callgate.core.sessions import ResolvedPath
from callgate.policy.shell_patterns import CommandPattern


class PolicyMode(StrEnum):
    """The setting of an effect or of a tool."""

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
    """Location of a setting, for messages."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


_EMPTY: tuple[Any, ...] = (None, "", [], {})
BUILT_IN = Origin("built-in default")


class Setting(msgspec.Struct, frozen=True):
    """A policy mode and the location of its setting."""

    mode: PolicyMode
    origin: Origin = BUILT_IN


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    decision: Outcome
    tool: str | None = None
    """A glob over the name of the tool."""
    path: str | None = None
    """A glob over the paths of a call; relative to their root, or absolute."""
    command: CommandPattern | None = None
    caller: CallerKind | None = None
    arguments: Mapping[str, str] = {}
    """Argument names, each with a glob over its text."""
    without: tuple[str, ...] = ()
    """Arguments that must be absent or empty."""
    arguments_sha256: str | None = None
    """Hash of the exact arguments."""
    workspace: str | None = None
    """The rule applies only in this directory or below."""
    network: bool | tuple[str, ...] | None = None
    """Whether the call requests network access. An `allow` covers such a call only if this is
    true, and then covers other calls too. A list of hosts allows only these.
    """
    reversible: bool | None = None
    """Whether `callgate undo` can revert all effects of the call."""
    untrusted_destinations: bool = False
    """The `allow` also covers destinations from untrusted content."""
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
                ("reversible", _network_text(self.reversible)),
                ("untrusted_destinations", "true" if self.untrusted_destinations else None),
            )
            if value is not None
        ]
        conditions += [f"{name} = {glob}" for name, glob in self.arguments.items()]
        conditions += [f"without {name}" for name in self.without]
        return f"{self.decision} {', '.join(conditions)}"


class Proposal(msgspec.Struct, frozen=True):
    """A command pattern for a new rule, with a description of its coverage for a person."""

    pattern: str
    covers: str


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """An amount beyond which calls need approval."""

    amount: str
    """`calls`, `bytes_out` or `destinations`."""
    per: Literal["session", "day"]
    tool: str | None = None
    """None: all tools together."""
    limit: int
    origin: Origin = BUILT_IN


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    destinations: tuple[str, ...] = ()
    """Globs of addresses, hosts and accounts that are always permitted destinations."""
    labels: Mapping[Label, tuple[str, ...]] = {}
    """Globs of tools whose output has a label, in addition to the declared ones."""
    parameters: Mapping[str, tuple[str, ...]] = {}
    """Parameters that name the destination of the effect, by tool."""
    without_conversation: bool = False
    """Guard sessions whose conversation is not known, too."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    default: Mapping[SideEffects, Setting] = {}
    """Missing classes have the built-in default; in a workspace's settings: no opinion."""
    per_tool: Mapping[str, Setting] = {}
    trusted_workspaces: tuple[str, ...] = ()
    """Absolute directories in which writes need no approval."""
    trusted_origin: Origin = BUILT_IN
    trusted_workspace_overrides: Mapping[SideEffects, Setting] = {}
    rules: tuple[Rule, ...] = ()
    confirm_destructive: bool = False
    """A destructive tool needs approval even in mode write."""
    read_commands: Setting | None = None
    """Whether read-only commands run without approval, in the read-only sandbox without network.
    None: only in mode guarded; in a workspace's settings: no opinion.
    """
    reversible: Setting | None = None
    """Whether reversible calls run without approval in mode ask. None: they do not; in a
    workspace's settings: no opinion.
    """
    guard: GuardSettings = GuardSettings()
    guarded_rules: tuple[str, ...] | None = None
    """Names of the rules that mode guarded contains (`guarded_rules`). None: all."""
    hosts: tuple[str, ...] | None = None
    """In a workspace's settings: commands reach only these hosts. None: no opinion."""
    budgets: tuple[Budget, ...] = ()
    """All of them apply, so the budgets of a workspace can only narrow."""


CLASS_DEFAULTS: Mapping[SideEffects, Setting] = {
    SideEffects.NONE: Setting(PolicyMode.AUTO),
    SideEffects.READ: Setting(PolicyMode.AUTO),
    SideEffects.WRITE: Setting(PolicyMode.PROMPT),
    SideEffects.NETWORK: Setting(PolicyMode.PROMPT),
    SideEffects.EXECUTE: Setting(PolicyMode.PROMPT),
}


def is_within(path: str, directory: str) -> bool:
    """Whether an absolute path is a directory or is below it (`/ws-evil` is not in `/ws`)."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


@lru_cache(maxsize=4096)
def compile_glob(pattern: str, *, paths: bool) -> Match:
    """Compile a glob. In paths `*` and `?` stay within a segment and `**` crosses segments;
    elsewhere `*` matches any text.

    Raises `ValueError` for a path pattern with too many readings.
    """
    return RuleGlob(pattern).matches if paths else compile_tokens(parse_wildcards(pattern))


def glob_matches(pattern: str, text: str, *, paths: bool, fold: bool) -> bool:
    """Whether a glob matches. `paths`: as in `compile_glob`; `fold`: ignore case."""
    if fold:
        pattern, text = pattern.casefold(), text.casefold()
    return compile_glob(pattern, paths=paths)(text)


def covers_path(rule: Rule, resolved: ResolvedPath) -> bool:
    """Whether the rule's path glob matches this path."""
    if rule.path is None:
        return False
    text = resolved.real if rule.path.startswith("/") else resolved.relative
    return glob_matches(rule.path, text, paths=True, fold=rule.decision is not Outcome.ALLOW)


def rule_is_about(rule: Rule, tools: tuple[str, ...], caller: CallerKind, workspace: str) -> bool:
    """Whether the conditions hold that all calls of a tool from one place share."""
    fold = rule.decision is not Outcome.ALLOW
    if rule.tool is not None and not any(
        glob_matches(rule.tool, tool, paths=False, fold=fold) for tool in tools
    ):
        return False
    if rule.caller is not None and rule.caller is not caller:
        return False
    return rule.workspace is None or is_within(workspace, rule.workspace)


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
    reversible: bool = False,
) -> bool:
    """Whether all conditions except the command hold; commands are evaluated together elsewhere.

    `tools` is the tool's name and its aliases: a rule about one of them applies to the tool.
    """
    fold = rule.decision is not Outcome.ALLOW
    if not rule_is_about(rule, tools, caller, workspace) or not _covers_network(rule, network):
        return False
    if rule.arguments_sha256 is not None and rule.arguments_sha256 != arguments_sha256:
        return False
    if rule.reversible is not None and rule.reversible is not reversible:
        return False
    if rule.path is not None:
        covered = [covers_path(rule, resolved) for resolved in resolved_paths]
        if not covered or not (any(covered) if fold else all(covered)):
            return False
    if any(arguments.get(name) not in _EMPTY for name in rule.without):
        return False
    return all(
        name in arguments
        and glob_matches(glob, _as_text(arguments[name]), paths=False, fold=fold)
        and (fold or not reaches_inside(glob, name, arguments[name]))
        for name, glob in rule.arguments.items()
    )


def reaches_inside(glob: str, name: str, value: Any) -> bool:
    """Whether a host has private addresses (`private:NAME`), which a glob does not mention.

    The owner of a name decides where it leads, so a glob for names covers public addresses only."""
    prefix = "private:"
    is_private = name == "host" and isinstance(value, str) and value.startswith(prefix)
    return is_private and not glob.startswith(prefix)


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
