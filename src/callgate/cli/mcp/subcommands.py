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
            from callgate.cli.mcp import servers  # lazy: this subcommand alone  # noqa: PLC0415

            return servers
        case "approve" | "update" | "login":
            from callgate.cli.mcp import approve  # lazy: this subcommand alone  # noqa: PLC0415

            return approve
        case "add" | "remove":
            from callgate.cli.mcp import add  # lazy: this subcommand alone  # noqa: PLC0415

            return add
        case "import":
            from callgate.cli.mcp import import_servers  # lazy: this subcommand alone  # noqa: PLC0415

            return import_servers
        case "serve":
            from callgate.cli.mcp import serve  # lazy: this subcommand alone  # noqa: PLC0415

            return serve
        case "wrap":
            from callgate.cli.mcp import wrap  # lazy: this subcommand alone  # noqa: PLC0415

            return wrap
    return None
