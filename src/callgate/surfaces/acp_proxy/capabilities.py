"""The capabilities that the agent and the editor are told of each other. Pure."""

from __future__ import annotations

from typing import Any

_TERMINAL_LOGIN = "terminal-auth"
"""Key in `_meta`: the editor runs a command of the agent in its own terminal, to sign in."""


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
    return {**given, "clientCapabilities": _without_terminal_login(capabilities)}


def guarded(answer: Any) -> Any:
    """The agent's answer to `initialize` for the editor: without sign-ins that the editor would run
    in its terminal, and without MCP servers of the editor, whose calls the gate would not see."""
    if not isinstance(answer, dict):
        return answer
    changed = dict(answer)
    methods = answer.get("authMethods")
    if isinstance(methods, list):
        kept = [each for each in methods if not _runs_in_terminal(each)]
        changed["authMethods"] = [_without_terminal_login(each) for each in kept]
    able = answer.get("agentCapabilities")
    servers = able.get("mcpCapabilities") if isinstance(able, dict) else None
    if isinstance(able, dict) and isinstance(servers, dict) and servers.get("acp"):
        less = {name: value for name, value in servers.items() if name != "acp"}
        changed["agentCapabilities"] = {**able, "mcpCapabilities": less}
    return changed


def _runs_in_terminal(method: Any) -> bool:
    return isinstance(method, dict) and method.get("type") == "terminal"


def _without_terminal_login(value: Any) -> Any:
    meta = value.get("_meta") if isinstance(value, dict) else None
    if not isinstance(meta, dict) or _TERMINAL_LOGIN not in meta:
        return value
    less = {name: each for name, each in meta.items() if name != _TERMINAL_LOGIN}
    return {**value, "_meta": less}
