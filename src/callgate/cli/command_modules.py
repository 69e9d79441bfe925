"""The function of a command, whose module is loaded when the command runs."""

# ruff: noqa: PLC0415

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from types import ModuleType


def command_function(name: str) -> Callable[[Namespace], int]:
    """The function that is called like the last word of a command, in the module of its first."""
    module: ModuleType
    match name.split():
        case ["acp"]:
            from callgate.cli.editor import acp as module  # lazy: when it runs
        case ["acp-proxy"]:
            from callgate.cli.editor import acp_proxy as module  # lazy: when it runs
        case ["audit", "export"]:
            from callgate.cli.commands import audit_export as module  # lazy: when it runs
        case ["audit", _]:
            from callgate.cli.commands import audit as module  # lazy: when it runs
        case ["call"]:
            from callgate.cli.commands import call as module  # lazy: when it runs
        case ["chat"]:
            from callgate.cli.chat import chat as module  # lazy: when it runs
        case ["completion"]:
            from callgate.cli.commands import completion as module  # lazy: when it runs
        case ["confirmations", *_]:
            from callgate.cli.commands import confirmations as module  # lazy: when it runs
        case ["dashboard"]:
            from callgate.cli.serving import dashboard as module  # lazy: when it runs
        case ["demo"]:
            from callgate.cli.setup import demo as module  # lazy: when it runs
        case ["doctor"]:
            from callgate.cli.commands import doctor as module  # lazy: when it runs
        case ["events"]:
            from callgate.cli.commands import events as module  # lazy: when it runs
        case ["hook", _]:
            from callgate.cli.hooks import hook as module  # lazy: when it runs
        case ["host"]:
            from callgate.cli.hosts import host as module  # lazy: when it runs
        case ["host", "check"]:
            from callgate.cli.hosts import check as module  # lazy: when it runs
        case ["host", "new"]:
            from callgate.cli.hosts import new as module  # lazy: when it runs
        case ["hosts", _]:
            from callgate.cli.hosts import hosts as module  # lazy: when it runs
        case ["init"]:
            from callgate.cli.setup import init as module  # lazy: when it runs
        case ["keys", _]:
            from callgate.cli.commands import keys as module  # lazy: when it runs
        case ["mcp", "add" | "remove"]:
            from callgate.cli.mcp import add as module  # lazy: when it runs
        case ["mcp", "approve" | "login" | "update"]:
            from callgate.cli.mcp import approve as module  # lazy: when it runs
        case ["mcp", "import"]:
            from callgate.cli.mcp import import_servers as module  # lazy: when it runs
        case ["mcp", "list" | "logs" | "restart"]:
            from callgate.cli.mcp import servers as module  # lazy: when it runs
        case ["mcp", "serve"]:
            from callgate.cli.mcp import serve as module  # lazy: when it runs
        case ["mcp", "wrap"]:
            from callgate.cli.mcp import wrap as module  # lazy: when it runs
        case ["notify", _]:
            from callgate.cli.commands import notify as module  # lazy: when it runs
        case ["parse"]:
            from callgate.cli.commands import parse as module  # lazy: when it runs
        case ["policy", "explain"]:
            from callgate.cli.commands import policy as module  # lazy: when it runs
        case ["policy", "export" | "import"]:
            from callgate.cli.commands import policy_rules as module  # lazy: when it runs
        case ["policy", "suggest"]:
            from callgate.cli.commands import policy_suggest as module  # lazy: when it runs
        case ["policy", "test"]:
            from callgate.cli.commands import policy_test as module  # lazy: when it runs
        case ["preview"]:
            from callgate.cli.commands import preview as module  # lazy: when it runs
        case ["prune"]:
            from callgate.cli.commands import prune as module  # lazy: when it runs
        case ["run"]:
            from callgate.cli.chat import run as module  # lazy: when it runs
        case ["sandbox"]:
            from callgate.cli.sandboxed_agents import sandbox as module  # lazy: when it runs
        case ["serve"]:
            from callgate.cli.serving import serve as module  # lazy: when it runs
        case ["servers"]:
            from callgate.cli.serving import servers as module  # lazy: when it runs
        case ["sessions", _]:
            from callgate.cli.commands import sessions as module  # lazy: when it runs
        case ["skills", _]:
            from callgate.cli.commands import skills as module  # lazy: when it runs
        case ["status"]:
            from callgate.cli.serving import status as module  # lazy: when it runs
        case ["stop"]:
            from callgate.cli.serving import stop as module  # lazy: when it runs
        case ["store", _]:
            from callgate.cli.commands import store as module  # lazy: when it runs
        case ["tools"]:
            from callgate.cli.commands import tools as module  # lazy: when it runs
        case ["trust"]:
            from callgate.cli.commands import trust as module  # lazy: when it runs
        case ["undo"]:
            from callgate.cli.commands import undo as module  # lazy: when it runs
        case ["watch"]:
            from callgate.cli.commands import watch as module  # lazy: when it runs
        case ["worker"]:
            from callgate.cli.workers import worker as module  # lazy: when it runs
        case ["workers", _]:
            from callgate.cli.workers import workers as module  # lazy: when it runs
        case _:
            raise ValueError(name)
    function: Callable[[Namespace], int] = getattr(module, name.split()[-1].replace("-", "_"))
    return function
