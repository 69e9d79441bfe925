"""`callgate mcp ...`: one module a subcommand, loaded when it runs."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from types import ModuleType


def __getattr__(name: str) -> Callable[[Namespace], int]:
    """The function of a subcommand."""
    module = _module(name)
    if module is None:
        raise AttributeError(name)
    command: Callable[[Namespace], int] = getattr(module, name)
    return command


def _module(name: str) -> ModuleType | None:
    """Of a subcommand: it has a function of that name."""
    match name:
        case "list" | "logs" | "restart":
            from callgate.cli import mcp_servers  # lazy: this subcommand alone  # noqa: PLC0415

            return mcp_servers
        case "approve" | "update" | "login":
            from callgate.cli import mcp_approve  # lazy: this subcommand alone  # noqa: PLC0415

            return mcp_approve
        case "add" | "remove":
            from callgate.cli import mcp_add  # lazy: this subcommand alone  # noqa: PLC0415

            return mcp_add
        case "import":
            from callgate.cli import mcp_import  # lazy: this subcommand alone  # noqa: PLC0415

            return mcp_import
        case "serve":
            from callgate.cli import mcp_serve  # lazy: this subcommand alone  # noqa: PLC0415

            return mcp_serve
        case "wrap":
            from callgate.cli import mcp_wrap  # lazy: this subcommand alone  # noqa: PLC0415

            return mcp_wrap
    return None
