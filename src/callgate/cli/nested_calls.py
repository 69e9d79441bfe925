"""Whether this command was started by a tool: then it must not approve what that tool does.

A command that a runtime runs carries a mark in its environment and in a limit that every
descendant inherits (`sandbox.processes.command_marks`). Whoever clears both on purpose gets
through here: this keeps an agent from approving itself by accident, and the sandbox keeps it from
doing more.
"""

from __future__ import annotations

from callgate.cli.errors import CliError
from callgate.core.errors import ToolErrorClass
from callgate.sandbox.processes.command_marks import is_within_a_call


def refuse_within_a_call(command: str) -> None:
    """End the command if a running call started it."""
    if is_within_a_call():
        raise CliError(
            f"{command} is refused inside a running call: a tool cannot approve itself",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="within_a_call",
        )
