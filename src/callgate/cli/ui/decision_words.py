"""What decided about a call, in words; `--json` has the codes."""

from __future__ import annotations

from callgate.cli.ui.visible import visible
from callgate.policy.decide import Decision

WORDS = {
    "always_asked": "the tool itself",
    "budget": "a budget",
    "budget_unknown": "a budget whose count cannot be read",
    "class_default": "the setting for its effect",
    "destructive": "the tool, which is destructive",
    "mode_guarded": "the mode",
    "mode_none": "the mode",
    "mode_read": "the mode",
    "mode_write": "the mode",
    "network": "the setting for the network",
    "not_understood": "the command, which is not understood",
    "per_tool": "the setting for this tool",
    "private_outward": "the guard",
    "repaired": "the model's text, which had to be mended",
    "rule": "a rule",
    "secret_outward": "the guard",
    "settings_invalid": "settings that cannot be used",
    "trusted_caller": "who calls",
    "trusted_override": "the setting for trusted workspaces",
    "trusted_workspace": "the workspace, which is trusted",
    "unbound": "a path rule, which cannot bind it",
    "untrusted_destination": "the guard",
}


def decided_by(decision: Decision) -> str:
    """What decided, and where that is written."""
    return visible(f"{WORDS[decision.reason]}, {decision.origin}")
