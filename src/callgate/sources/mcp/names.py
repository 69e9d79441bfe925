"""What the tool of an MCP server is called.

    mcp__github__create_issue      by models: letters, digits, _ and - are all that they take
    mcp.github/create_issue        by rules and people

The name of a server has no `__` in it and does not end with `_`, so both can be read in one way
only. Where two tools would be called the same, the second is refused by the registry.
"""

from __future__ import annotations

import hashlib
import re

LONGEST = 64
"""Characters that every model takes."""
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]")


def model_name(server: str, tool: str) -> str:
    """A name that is too long is cut, and tells by its end which one it was."""
    name = f"mcp__{server}__{_UNUSUAL.sub('_', tool)}"
    if len(name) <= LONGEST:
        return name
    mark = hashlib.sha256(tool.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - len(mark) - 1]}_{mark}"


def rule_name(server: str, tool: str) -> str:
    return f"mcp.{server}/{tool}"
