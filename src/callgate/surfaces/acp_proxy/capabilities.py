"""What an agent is told that its client can do: what the editor can, and what we do. Pure."""

from __future__ import annotations

from typing import Any


def combined(params: Any) -> dict[str, Any]:
    """The parameters of `initialize` for the agent. Files and terminals are ours. A sign-in that
    runs the agent at a terminal would start it outside of the proxy."""
    given = dict(params) if isinstance(params, dict) else {}
    able = given.get("clientCapabilities")
    capabilities = dict(able) if isinstance(able, dict) else {}
    capabilities["fs"] = {"readTextFile": True, "writeTextFile": True}
    capabilities["terminal"] = True
    auth = capabilities.get("auth")
    if isinstance(auth, dict) and auth.get("terminal"):
        capabilities["auth"] = {**auth, "terminal": False}
    return {**given, "clientCapabilities": capabilities}
