"""`callgate mcp ...`: one module a subcommand, loaded when it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from callgate.cli.loading import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

COMMANDS: Mapping[str, str] = {
    "list": "callgate.cli.mcp_servers",
    "logs": "callgate.cli.mcp_servers",
    "restart": "callgate.cli.mcp_servers",
    "approve": "callgate.cli.mcp_approve",
    "update": "callgate.cli.mcp_approve",
    "login": "callgate.cli.mcp_approve",
    "add": "callgate.cli.mcp_add",
    "remove": "callgate.cli.mcp_add",
    "import": "callgate.cli.mcp_import",
    "serve": "callgate.cli.mcp_serve",
    "wrap": "callgate.cli.mcp_wrap",
}
"""Subcommand to the module that has a function of its name."""


def __getattr__(name: str) -> Callable[[Namespace], int]:
    if name not in COMMANDS:
        raise AttributeError(name)
    command: Callable[[Namespace], int] = getattr(load(COMMANDS[name]), name)
    return command
