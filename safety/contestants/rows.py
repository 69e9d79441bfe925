"""Who takes part in which half, in the order of the tables."""

from __future__ import annotations

from safety.contestants.callgate_modes import CallgateMode
from safety.contestants.contextforge import ContextForge
from safety.contestants.governance_toolkit import GovernanceToolkit
from safety.contestants.hooks import CallgateHook
from safety.contestants.plain import Plain
from safety.contestants.ports import Contestant
from safety.contestants.shells import BareShell, CallgateShell, SandboxRuntime

DOJO_ROWS: tuple[Contestant, ...] = (
    Plain("none", "no gate"),
    Plain("allow-list", "allow-list of tool names for the application", listed_only=True),
    ContextForge("contextforge", "ContextForge's plugins, their own settings"),
    GovernanceToolkit("governance-toolkit", "agent governance toolkit, its default policy"),
    GovernanceToolkit(
        "governance-toolkit-approval",
        "agent governance toolkit, every effect approved by a person who reads",
        sensitive=True,
    ),
    CallgateMode("ask", "callgate `ask` (default), a person who reads", "ask"),
    CallgateMode(
        "ask-session", 'callgate `ask`, answers "for this session"', "ask", person_kind="session"
    ),
    CallgateMode(
        "ask-wide",
        'callgate `ask`, answers "for this session, the whole tool"',
        "ask",
        person_kind="wide",
    ),
    CallgateMode("guarded", "callgate `guarded`, a person who reads", "guarded"),
    CallgateMode(
        "guarded-session",
        'callgate `guarded`, answers "for this session"',
        "guarded",
        person_kind="session",
    ),
    CallgateMode("write", "callgate `write`", "write"),
)

SHELL_ROWS: tuple[Contestant, ...] = (
    BareShell("bare", "bare shell"),
    SandboxRuntime("sandbox-runtime", "sandbox-runtime, writes in the project, no network"),
    CallgateShell("ask", "callgate `ask` (default), a person who reads", "ask"),
    CallgateShell(
        "ask-session", 'callgate `ask`, answers "for this session"', "ask", person_kind="session"
    ),
    CallgateShell("guarded", "callgate `guarded`, a person who reads", "guarded"),
    CallgateShell(
        "guarded-session",
        'callgate `guarded`, answers "for this session"',
        "guarded",
        person_kind="session",
    ),
    CallgateShell("write", "callgate `write`", "write"),
)

_ADAPTIVE = (
    "none", "ask", "ask-session", "ask-wide", "guarded", "guarded-session", "write",
)  # fmt: skip
ORDER_ROWS: tuple[Contestant, ...] = tuple(row for row in DOJO_ROWS if row.name in _ADAPTIVE)
SEARCH_ROWS: tuple[Contestant, ...] = ORDER_ROWS
ADAPTIVE_ROWS: tuple[Contestant, ...] = (
    *ORDER_ROWS,
    CallgateHook("hook-ask", "callgate `ask`, behind Claude Code's hook", "ask"),
    CallgateHook("hook-guarded", "callgate `guarded`, behind Claude Code's hook", "guarded"),
    CallgateHook("hook-write", "callgate `write`, behind Claude Code's hook", "write"),
)
