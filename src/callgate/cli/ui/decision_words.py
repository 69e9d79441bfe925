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
    "mode_none": "the mode",
    "mode_read": "the mode",
    "mode_write": "the mode",
    "network": "the setting for the network",
    "per_tool": "the setting for this tool",
    "repaired": "the model's text, which had to be mended",
    "rule": "a rule",
    "settings_invalid": "settings that cannot be used",
    "trusted_caller": "who calls",
    "trusted_override": "the setting for trusted workspaces",
    "trusted_workspace": "the workspace, which is trusted",
}


def decided_by(decision: Decision) -> str:
    """What decided, and where that is written."""
    return visible(f"{WORDS[decision.reason]}, {decision.origin}")
