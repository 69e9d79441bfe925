"""What programs that fetch and run MCP servers need around them: the network.

Their packages and caches are the server's own (`sources.packages`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from callgate.sources.packages.package_commands import is_runner

_OWN_JAIL = frozenset({"docker", "podman"})


def around(command: Sequence[str]) -> dict[str, Any]:
    """The keys of `[mcp.NAME]` without which such a program cannot work. Whoever adds the server
    sees them, and approves them with it."""
    if os.path.basename(command[0]) in _OWN_JAIL:
        return {"profile": "open"}
    return {"network": "all"} if is_runner(command) else {}
