"""`callgate mcp ...`: a module for each group of subcommands."""

# ruff: noqa: PLC0415

from __future__ import annotations

from callgate.cli.command import (
    APPROVAL,
    FOLLOW,
    WORKSPACE_AND_MODE,
    YES,
    Command,
    bounds,
    count,
    deferred,
    takes,
)
from callgate.cli.command import (
    add as add_options,
)
from callgate.cli.options import JSON, WORKSPACE, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from callgate.cli.parsers import Parser

_GIVEN_UP = "This also ends the quarantine after repeated crashes."


def _mcp_serve(parser: Parser) -> None:
    add_options(parser, *WORKSPACE_AND_MODE)
    parser.add_argument(
        "--no-elicit",
        action="store_true",
        help="ask only in the dashboard or a terminal, never through the client",
    )


def _mcp_offer(parser: Parser) -> None:
    _mcp_serve(parser)
    parser.add_argument(
        "--search-above",
        metavar="N",
        type=count,
        help="list find_tools and call_tool in place of more than N tools; 0: never",
    )
    add_options(parser, Option("--print-config", help="print the configuration for an MCP client"))


def _mcp_wrap(parser: Parser) -> None:
    parser.add_argument("--name", metavar="NAME", help="server name for rules: mcp.NAME/TOOL")
    parser.add_argument(
        "--env",
        metavar="NAME",
        action="append",
        help="environment variable to pass on; repeatable",
    )
    bounds(parser, choices=("none", "loopback", "all"))
    parser.add_argument(
        "--sampling", action="store_true", help="allow the server to send prompts to a model"
    )
    parser.add_argument(
        "--approve",
        action="store_true",
        help="review and approve the server's present tools",
    )
    parser.add_argument("--yes", action="store_true", help="with --approve: do not ask")
    _mcp_serve(parser)


def _logs(parser: Parser) -> None:
    parser.add_argument("-n", metavar="N", type=count, default=20, help="lines; default 20")
    add_options(parser, FOLLOW)


def _mcp_add(parser: Parser) -> None:
    parser.add_argument("--url", metavar="URL", help="URL of a remote server, instead of a command")
    parser.add_argument(
        "--header",
        metavar="NAME:VALUE",
        action="append",
        help="HTTP header for --url; ${NAME} inserts a variable; repeatable",
    )
    parser.add_argument(
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        help="environment variable to pass on or to set; repeatable",
    )
    bounds(parser, metavar="none|loopback|all|HOST,...")
    add_options(
        parser, Option("--no-start", help="add it without starting or approving it"), *APPROVAL
    )


def _module(name: str) -> ModuleType:
    module: ModuleType
    match name.split():
        case ["mcp", "add" | "remove"]:
            from callgate.features.mcp.commands import add as module  # lazy: when it runs
        case ["mcp", "approve" | "login" | "update"]:
            from callgate.features.mcp.commands import approve as module  # lazy: when it runs
        case ["mcp", "import"]:
            from callgate.features.mcp.commands import (
                import_servers as module,  # lazy: when it runs
            )
        case ["mcp", "list" | "logs" | "restart"]:
            from callgate.features.mcp.commands import servers as module  # lazy: when it runs
        case ["mcp", "serve" | "wrap"]:
            from callgate.features.mcp.commands import serve as module  # lazy: when it runs
        case _:
            raise ValueError(name)
    return module


_DECLARED = {
    "mcp list": Command("list the configured MCP servers and their state", "", takes(JSON)),
    "mcp add": Command(
        "add an MCP server and approve its tools",
        "NAME [-- COMMAND ...]",
        _mcp_add,
        "The server is started once. Its tool definitions are displayed and, after a yes, pinned.",
    ),
    "mcp remove": Command(
        "remove an MCP server from your settings",
        "NAME",
        takes(Option("--data", help="also delete the data that the server stored"), JSON),
        "The directory with the server's data stays unless you add --data.",
    ),
    "mcp import": Command(
        "import MCP servers from another program's configuration",
        "FILE",
        takes(YES, JSON),
        "FILE is a JSON configuration of Claude Desktop, Cursor, VS Code or Zed. The servers are\n"
        "displayed and, after a yes, added to your settings. No server is started.",
    ),
    "mcp approve": Command(
        "restart MCP servers and approve their tool definitions",
        "[NAME]",
        takes(*APPROVAL),
        "A new or changed tool is not offered before its approval. A running instance adopts the\n"
        "approved definitions; running calls finish unchanged.",
    ),
    "mcp update": Command(
        "fetch a server's newest packages and approve changes",
        "NAME",
        takes(*APPROVAL),
        "For servers that use npx, uvx or pipx run. Only this command changes their versions.",
    ),
    "mcp login": Command("log in to an MCP server", "NAME", takes(WORKSPACE)),
    "mcp logs": Command("show an MCP server's stderr and lifecycle log", "NAME", _logs),
    "mcp restart": Command(
        "restart an MCP server in running instances",
        "NAME",
        takes(JSON),
        "The server starts again with its next call. " + _GIVEN_UP,
    ),
    "mcp serve": Command(
        "serve callgate's tools to MCP clients over stdio",
        "",
        _mcp_offer,
        "An MCP client starts this command and, if it can, shows the questions for approval.\n"
        "callgate confirmations and the dashboard can answer them as well.",
        reports_settings=True,
    ),
    "mcp wrap": Command(
        "check calls between an MCP client and server",
        "-- COMMAND ...",
        _mcp_wrap,
        "An MCP client starts this command in place of COMMAND. The tools keep their names. The\n"
        "policy checks each call, the audit log records it, and the server runs in the sandbox.",
        reports_settings=True,
    ),
}

COMMANDS = deferred(_DECLARED, _module)
