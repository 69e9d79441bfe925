"""What programs that fetch and run MCP servers need around them: the network, and their caches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

_NPM = ["~/.npm", "~/.cache/node"]
_UV = ["~/.cache/uv", "~/.local/share/uv"]
_CACHES = {
    "npx": _NPM, "npm": _NPM, "pnpm": [*_NPM, "~/.local/share/pnpm", "~/.cache/pnpm"],
    "yarn": [*_NPM, "~/.cache/yarn", "~/.yarn"], "bunx": ["~/.bun"], "bun": ["~/.bun"],
    "uvx": _UV, "uv": _UV, "pipx": ["~/.cache/pipx", "~/.local/share/pipx", "~/.local/pipx"],
    "deno": ["~/.cache/deno"],
}  # fmt: skip
_OWN_JAIL = frozenset({"docker", "podman"})


def around(command: Sequence[str]) -> dict[str, Any]:
    """The keys of `[mcp.NAME]` without which such a program cannot work. Whoever adds the server
    sees them, and approves them with it."""
    program = os.path.basename(command[0])
    if program in _OWN_JAIL:
        return {"profile": "open"}
    if program in _CACHES:
        return {"network": "all", "writable": [*_CACHES[program]]}
    return {}
