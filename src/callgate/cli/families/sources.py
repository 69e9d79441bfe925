"""Commands for tools from elsewhere: hosts that run them, and MCP servers."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.cli import options
from callgate.cli.families.command import (
    APPROVAL,
    FOLLOW,
    YES,
    Command,
    Parser,
    add,
    bounds,
    count,
    takes,
)
from callgate.cli.options import JSON, WORKSPACE, Option

HEADING = "add tools"

LANGUAGES = ("python", "node", "bash")
_GIVEN_UP = "Also one that was given up because it kept dying."


def _new(parser: Parser) -> None:
    parser.add_argument("--lang", choices=LANGUAGES, default="python", help="default python")
    parser.add_argument("--dir", metavar="D", default=".", help="where; default: here")
    add(parser, JSON)


def _check(parser: Parser) -> None:
    parser.add_argument(
        "--call", nargs="+", metavar=("TOOL", "key=value"), help="also run one of its tools"
    )
    parser.add_argument("--config", metavar="JSON", help="for its init; default {}")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=options.seconds,
        default=5.0,
        help="how long it may take to answer; default 5",
    )
    add(parser, JSON)


def _logs(parser: Parser) -> None:
    parser.add_argument("-n", metavar="N", type=count, default=20, help="lines; default 20")
    add(parser, FOLLOW)


def _mcp_add(parser: Parser) -> None:
    parser.add_argument("--url", metavar="URL", help="reach it by HTTP, and start nothing")
    parser.add_argument(
        "--header",
        metavar="NAME:VALUE",
        action="append",
        help="with --url; ${NAME} stands for a variable; repeatable",
    )
    parser.add_argument(
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        help="a variable that it sees: passed on, or set; repeatable",
    )
    bounds(parser, metavar="none|loopback|all|HOST,...")
    add(parser, Option("--no-start", help="approve it another time"), *APPROVAL)


COMMANDS: Mapping[str, Command] = {
    "host": Command(
        "run the tools of a file, for whoever is at the other end of stdin and stdout",
        "FILE_OR_MODULE | --script PATH ...",
        takes(Option("--script", help="of executables, not of Python")),
        "FILE_OR_MODULE has @tool functions, or a plugin. Each PATH is an executable that\n"
        "answers schema, preview NAME and run NAME on its command line.",
    ),
    "host new": Command("write a plugin to begin with, and a test of it", "NAME", _new),
    "host check": Command(
        "check that a program does what every tool host has to do",
        "-- COMMAND ...",
        _check,
        "The program runs as you would run it, without a sandbox. No tool is run unless --call\n"
        "names it. Exits with 0 if all that is required is there, else with 1.",
    ),
    "hosts list": Command("list the hosts of the settings, and how each is", "", takes(JSON)),
    "hosts logs": Command(
        "show what a host wrote to stderr, and what happened to it", "NAME", _logs
    ),
    "hosts reload": Command(
        "start hosts anew, and accept what changed in their tools",
        "[NAME]",
        takes(*APPROVAL),
        "What changed is shown, and pinned after a yes. A running instance takes it over; calls\n"
        "under way finish as they began.",
    ),
    "hosts restart": Command(
        "have a running instance end a host, and start it again with its next call",
        "NAME",
        takes(JSON),
        _GIVEN_UP,
    ),
    "mcp list": Command("list the MCP servers of the settings, and how each is", "", takes(JSON)),
    "mcp add": Command(
        "add an MCP server to your settings, and approve its tools",
        "NAME [-- COMMAND ...]",
        _mcp_add,
        "It is started once; what it says of its tools is shown, and pinned after a yes.",
    ),
    "mcp remove": Command("take an MCP server out of your settings", "NAME", takes(JSON)),
    "mcp import": Command(
        "add the MCP servers of another program's configuration",
        "FILE",
        takes(YES, JSON),
        "FILE is JSON as Claude Desktop, Cursor, VS Code or Zed have it. What would be added is\n"
        "shown, and written after a yes; nothing is started.",
    ),
    "mcp approve": Command(
        "start MCP servers anew, and accept what they say of their tools",
        "[NAME]",
        takes(*APPROVAL),
        "A tool that is new or has changed is not offered before. A running instance takes over\n"
        "what is accepted; calls under way finish as they began.",
    ),
    "mcp update": Command(
        "fetch the newest packages of an MCP server, and accept what changed in its tools",
        "NAME",
        takes(*APPROVAL),
        "For npx, uvx and pipx run. Until then its versions stay what they were when it was added.",
    ),
    "mcp login": Command(
        "log in at an MCP server that wants to know who you are", "NAME", takes(WORKSPACE)
    ),
    "mcp logs": Command(
        "show what an MCP server wrote to stderr, and what happened to it", "NAME", _logs
    ),
    "mcp restart": Command(
        "have a running instance end an MCP server, and start it again with its next call",
        "NAME",
        takes(JSON),
        _GIVEN_UP,
    ),
}
