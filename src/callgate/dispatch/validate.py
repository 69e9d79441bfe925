"""Stage 2: do the arguments fit the tool's schema?"""

from __future__ import annotations

from typing import Any

from callgate.core.schemas import Checked
from callgate.dispatch.registry import Registered


def validate(arguments: Any, tool: Registered) -> Checked:
    """The arguments as the tool will get them; `ToolValidationError` lists every violation."""
    if type(arguments) is str and tool.definition.input == "text":
        arguments = {"text": arguments}
    return tool.schema.check(arguments)
