"""The validate stage: check the arguments against the tool's schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.core.schemas import Checked
from callgate.dispatch.tools.registry import Registered


def validate(arguments: Any, tool: Registered) -> Checked:
    """Return the arguments for the tool; `ToolValidationError` lists every violation."""
    if type(arguments) is str and tool.definition.input == "text":
        arguments = {"text": arguments}
    if aliases := tool.definition.argument_aliases:
        arguments = _respelt(arguments, aliases)
    return tool.schema.check(arguments)


def _respelt(arguments: Any, aliases: Mapping[str, str]) -> Any:
    """Return the arguments with the schema's names. If an argument has both spellings, both stay,
    and the schema check reports the alias as unknown."""
    if not isinstance(arguments, dict) or aliases.keys().isdisjoint(arguments):
        return arguments
    return {
        name if (name := aliases.get(key, key)) == key or name not in arguments else key: value
        for key, value in arguments.items()
    }
