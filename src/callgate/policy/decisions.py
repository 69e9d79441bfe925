"""The values of a permission check: a question about a call, and the decision about it.

`Reason` is the one list of reasons why a call is allowed, needs approval or is denied. Its codes
appear in the audit log, in events and in the output of `--json`, so a code never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode, ResolvedPath
from callgate.policy.provenance.sources import Flow, Trace
from callgate.policy.rules import BUILT_IN, Budget, Origin, Outcome


class Reason(StrEnum):
    """Reason of a decision: a code, and its sentence if there is only one."""

    sentence: str
    """For a person, with fields for `str.format`. Empty: the sentence depends on the call."""
    overrides_grants: bool
    """Remembered answers for the whole tool do not cover such a call (`policy.tightenings`)."""

    def __new__(cls, code: str, sentence: str = "", overrides_grants: bool = False) -> Reason:
        member = str.__new__(cls, code)
        member._value_ = code
        member.sentence = sentence
        member.overrides_grants = overrides_grants
        return member

    # Opinions.
    MODE_NONE = "mode_none", "Mode none runs no tool."
    MODE_READ = "mode_read"
    RULE = "rule"
    PER_TOOL = "per_tool", "per_tool says {mode} for {tool}."
    TRUSTED_OVERRIDE = "trusted_override"
    TRUSTED_WORKSPACE = (
        "trusted_workspace",
        "{root} is a trusted workspace: writes need no approval.",
    )
    CLASS_DEFAULT = "class_default"
    SETTINGS_INVALID = "settings_invalid", "The settings cannot be used: {problem}"

    # Relaxations; mode read is another one.
    READ_COMMANDS = (
        "read_commands",
        "{allowing} commands that only read, in the read-only sandbox without network.",
    )
    REVERSIBLE = (
        "reversible",
        "`reversible` allows calls whose effects callgate undo can revert.",
    )
    MODE_WRITE = "mode_write", "Mode write needs no approval."
    MODE_GUARDED = "mode_guarded"
    TRUSTED_CALLER = "trusted_caller", "Caller {caller} is part of the program itself."

    # Tightenings; a rule that asks about a named path and mode guarded are two more.
    DESTRUCTIVE = "destructive", "{tool} is destructive, so it always needs approval."
    NETWORK = "network", "It needs the network."
    UNTRUSTED_DESTINATION = "untrusted_destination", "", True
    PRIVATE_OUTWARD = "private_outward", "", True
    SECRET_OUTWARD = (
        "secret_outward",
        "The call would send a possible secret out of this machine.",
        True,
    )
    UNNAMED_HOST = "unnamed_host"
    CONTROL_FILE = "control_file", "", True
    PIPELINE = "pipeline", "A server executes {path} after a push, so writing it needs approval."
    PAUSED = (
        "paused",
        "Several calls of this turn were refused because of their destinations. Calls that send"
        " data out are paused until the user writes again.",
    )
    REPAIRED = "repaired", "The model's text had to be repaired to read this call."
    ALWAYS_ASKED = "always_asked", "This call needs approval each time."
    UNBOUND = "unbound", "Rules about paths cannot bind a command that the agent runs itself."
    NOT_UNDERSTOOD = (
        "not_understood",
        "The agent would run this itself, and what it does is not fully understood.",
    )
    BUDGET = "budget"
    BUDGET_UNKNOWN = (
        "budget_unknown",
        "The used part of the budgets is unknown: {problem}.",
    )

    # Refusals of earlier stages, which a backtest repeats.
    DISABLED = "disabled", "{tool} is disabled."
    WORKSPACE_ESCAPE = "workspace_escape", "A path leads out of the workspace."
    READ_ONLY_ROOT = "read_only_root", "{root} is open for reading only."
    PROTECTED_PATH = "protected_path", "Files there are executed automatically later."

    @property
    def is_of_guard(self) -> bool:
        """Whether the question is about where a call sends data."""
        return self.overrides_grants or self in (Reason.MODE_GUARDED, Reason.UNNAMED_HOST)

    @property
    def is_mode(self) -> bool:
        """Whether the mode of the session decided."""
        return self in _MODES


_MODES = frozenset({Reason.MODE_NONE, Reason.MODE_READ, Reason.MODE_WRITE, Reason.MODE_GUARDED})
REFUSALS = frozenset(
    {Reason.DISABLED, Reason.WORKSPACE_ESCAPE, Reason.READ_ONLY_ROOT, Reason.PROTECTED_PATH}
)
"""Reasons that appear in no decision about a new call: an earlier stage refuses the call."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The question to the policy: may this call run?"""

    tool: str
    aliases: tuple[str, ...] = ()
    effect: SideEffects
    destructive: bool = False
    mode: Mode = Mode.ASK
    caller: CallerKind = CallerKind.LIBRARY
    workspace: str = "/"
    resolved_paths: tuple[ResolvedPath, ...] = ()
    arguments: Mapping[str, Any] = {}
    arguments_sha256: str = ""
    read_only_sandbox: bool = False
    """The command will run in a sandbox without write access; mode read then allows it."""
    network: bool = False
    """The command requests network access, which it does not have by default."""
    reading: bool = False
    """A command that only reads (`read_commands`), in the read-only sandbox without network."""
    contained: bool = False
    """The command will run in a sandbox that reaches no host without approval."""
    reversible: bool = False
    """`callgate undo` can revert all effects of the call."""
    outward: bool = False
    """The call sends data out of this machine, or may."""
    flow: Flow | None = None
    """The sources of its destinations; None: not determined, or unknown."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.tool, *self.aliases)

    @property
    def is_jailed(self) -> bool:
        """Whether the call acts only through a command in the read-only sandbox."""
        return self.effect is SideEffects.EXECUTE and self.read_only_sandbox


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    outcome: Outcome
    reason: Reason
    sentence: str
    """The reason, as a sentence for a person."""
    origin: Origin = BUILT_IN
    remember: bool = False
    """`prompt_once`: an approval counts for the rest of the session."""
    explicit: bool = False
    """The user's settings require this question: mode write does not lift it."""
    counts_once: bool = False
    """An approval counts for this call only; remembered answers do not apply."""
    hosts: tuple[tuple[str, ...], ...] = ()
    """Lists of hosts, for a call that requests network access: it reaches the hosts that are on
    all of them. Empty: it reaches all hosts.
    """
    budgets: tuple[Budget, ...] = ()
    """The budgets that count the call before it may run."""
    is_read_command: bool = False
    """The unset setting `read_commands` would have allowed the call."""
    provenance: tuple[Trace, ...] = ()
    """The known sources of the destinations."""
    any_destination: bool = False
    """The deciding rule also allows destinations from untrusted content."""
    policy_reason: str = ""
    """For the audit record: the reason and its origin."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "policy_reason", f"{self.reason} ({self.origin})")

    def is_stricter_than(self, other: Decision) -> bool:
        return self.outcome.strictness > other.outcome.strictness


def refuse_effects(problem: str, origin: Origin) -> Decision:
    """Return the decision about calls with effects while the settings cannot be used."""
    end = "" if problem.endswith("?") else "."
    return Decision(
        outcome=Outcome.DENY,
        reason=Reason.SETTINGS_INVALID,
        sentence=Reason.SETTINGS_INVALID.sentence.format(problem=problem.rstrip(".") + end),
        origin=origin,
    )
