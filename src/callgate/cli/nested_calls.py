"""Refusal of commands that a tool call started, so that an agent cannot approve its own calls.

Each command of a runtime has a mark in its environment and in a limit that every descendant
inherits (`sandbox.processes.command_marks`). This check prevents accidental self-approval: a
process can clear both marks on purpose, and then only the sandbox stops it.
"""

from __future__ import annotations

from callgate.cli.errors import CliError
from callgate.core.errors import ToolErrorClass
from callgate.sandbox.processes.command_marks import is_within_a_call


def refuse_within_a_call(command: str) -> None:
    """End the command if a running call started it."""
    if is_within_a_call():
        raise CliError(
            f"{command} is refused inside a running call: a tool cannot approve its own calls",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="within_a_call",
        )
