"""Commands through which others reach the tools: an instance, an editor, an MCP client."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.cli.families.command import (
    WORKSPACE_AND_MODE,
    Command,
    Parser,
    add,
    bounds,
    positive,
    takes,
)
from callgate.cli.options import ACP, EDITORS, JSON, MODE, MODES, WORKSPACE, Option, minutes

NOW = Option("--now", help="stop what runs, too; without it that has [instance] drain_seconds")
HEADING = "serve editors and other programs"


def _serve(parser: Parser) -> None:
    parser.add_argument(
        "--workspace",
        metavar="DIR",
        dest="workspaces",
        action="append",
        help="serve this directory and what lies in it; may be repeated; default: here",
    )
    parser.add_argument("--socket", metavar="PATH", help="default: run/callgate.sock in the home")
    parser.add_argument("--label", metavar="NAME", help="by which others may name it")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--foreground", action="store_true", help="stay here: the default")
    where.add_argument("--detach", action="store_true", help="return once it is ready")
    http = parser.add_mutually_exclusive_group()
    http.add_argument("--http", metavar="HOST:PORT", help="default: 127.0.0.1:4177, or any port")
    http.add_argument("--no-http", action="store_true", help="the socket alone")
    parser.add_argument(
        "--http-allow-remote", action="store_true", help="--http may be seen by other machines"
    )
    parser.add_argument(
        "--idle",
        metavar="MINUTES",
        type=minutes,
        help="with --no-http: end after so long without a peer or a call",
    )
    parser.add_argument(
        "--dev", action="store_true", help="take over what changes in the plugins of hosts, unasked"
    )
    add(parser, MODE)


def _mcp_serve(parser: Parser) -> None:
    add(parser, *WORKSPACE_AND_MODE)
    parser.add_argument(
        "--no-elicit",
        action="store_true",
        help="ask in the dashboard or a terminal only, never through the client",
    )


def _mcp_offer(parser: Parser) -> None:
    _mcp_serve(parser)
    add(parser, Option("--print-config", help="print what to paste into a client's settings"))


def _mcp_wrap(parser: Parser) -> None:
    parser.add_argument("--name", metavar="NAME", help="in rules: mcp.NAME/TOOL")
    parser.add_argument(
        "--env",
        metavar="NAME",
        action="append",
        help="a variable that is passed on to it; repeatable",
    )
    bounds(parser, choices=("none", "loopback", "all"))
    parser.add_argument("--sampling", action="store_true", help="it may ask a model")
    parser.add_argument(
        "--approve",
        action="store_true",
        help="look at what it says of its tools now, and accept it",
    )
    parser.add_argument("--yes", action="store_true", help="with --approve: do not ask")
    _mcp_serve(parser)


def _worker(parser: Parser) -> None:
    parser.add_argument(
        "--server",
        metavar="URL",
        dest="servers",
        action="append",
        help="of a callgate server, such as https://callgate.example; may be repeated",
    )
    parser.add_argument("--pool", metavar="NAME", help="the pool that it belongs to")
    parser.add_argument("--name", metavar="NAME", help="its own in the pool; default: the host's")
    parser.add_argument(
        "--workspace",
        metavar="[NAME=]DIR",
        dest="workspaces",
        action="append",
        help="a directory that it brings; may be repeated; default: here",
    )
    parser.add_argument(
        "--token-file", metavar="F", help="its token; default: $CALLGATE_WORKER_TOKEN"
    )
    parser.add_argument(
        "--slots", metavar="N", type=positive, default=8, help="calls at once; default 8"
    )
    parser.add_argument("--ca", metavar="FILE", help="trust these authorities alone, as PEM")
    parser.add_argument(
        "--insecure", action="store_true", help="an unencrypted server on another machine is fine"
    )
    parser.add_argument("--detach", action="store_true", help="return once it is connected")


_DRY_RUN = Option("--dry-run", help="show what would be changed")
_PROJECT = Option("--project", help="in the workspace's own settings of the agent")
_AGENT = "claude|codex|gemini|cursor|opencode|qwen|vibe|kimi"


def _hook_install(parser: Parser) -> None:
    parser.add_argument("--form", choices=("http", "command"), help="command is the only form left")
    parser.add_argument(
        "--managed", action="store_true", help="print the settings for an administrator to install"
    )
    add(parser, _PROJECT, WORKSPACE, _DRY_RUN, JSON)


def _sandbox(parser: Parser) -> None:
    parser.add_argument("--network", metavar="none|all|HOST,...", help="default: as [hooks] says")
    parser.add_argument("--no-hooks", action="store_true", help="install no hooks for this run")
    add(parser, WORKSPACE)


def _workers_token(parser: Parser) -> None:
    parser.add_argument(
        "--pool",
        metavar="NAME",
        dest="pools",
        action="append",
        help="with create: may connect to this pool; may be repeated",
    )
    parser.add_argument("--name", metavar="NAME", help="with create: of the token; default: random")
    parser.add_argument(
        "--worker", metavar="NAME", help="with create: only a worker of this name may use it"
    )
    add(parser, JSON)


def _acp_proxy(parser: Parser) -> None:
    parser.add_argument(
        "--network",
        metavar="agent|none|loopback|all|HOST,...",
        help="default agent: where its model is",
    )
    parser.add_argument("--profile", choices=("workspace", "open"), help="default workspace")
    for name, about in (
        ("--env", "pass this variable on; may be repeated"),
        ("--writable", "it may write there, too; may be repeated"),
        ("--readable", "it sees this, too; may be repeated"),
    ):
        metavar = "NAME" if name == "--env" else "DIR"
        parser.add_argument(name, metavar=metavar, action="append", default=[], help=about)
    parser.add_argument(
        "--workspace", metavar="DIR", help="of the process that is greeted; default: here"
    )
    add(parser, Option("--mode", choices=MODES, help="in which sessions begin"))
    parser.add_argument("--unstable", action="store_true", help="also be a proxy of a chain")
    parser.add_argument(
        "--print-config", choices=EDITORS, help="print what to paste into an editor's settings"
    )


COMMANDS: Mapping[str, Command] = {
    "serve": Command("run an instance that others reach through a socket", "", _serve),
    "status": Command("show the instances that run", "", takes(JSON)),
    "servers": Command(
        "show the servers that share the store, and how each is",
        "",
        takes(JSON),
        "A server is an instance that answers HTTP. Those that live and do not answer are listed,\n"
        "and clocks that differ by more than two seconds.",
    ),
    "stop": Command("stop an instance", "[PID|LABEL]", takes(NOW, JSON)),
    "dashboard": Command(
        "open the page of an instance in a browser",
        "",
        takes(
            Option("--no-open", help="print the link, open no browser"),
            Option("--rotate", help="void every token and cookie first"),
            Option("--instance", metavar="PID|LABEL", help="default: the newest"),
            JSON,
        ),
        "The link logs a browser in once, within a minute.",
    ),
    "acp": Command(
        "be the agent of an editor, over stdin and stdout",
        "",
        takes(*ACP),
        "An editor starts it, and speaks the Agent Client Protocol with it. --print-config says\n"
        "what to write into the editor's settings.",
    ),
    "acp-proxy": Command(
        "put the gate before any ACP agent, for an editor",
        "-- AGENT ...",
        _acp_proxy,
        "An editor starts it in place of AGENT, which runs in the sandbox; its files, terminals\n"
        "and questions are judged by the policy, recorded, and asked about in the editor or\n"
        "elsewhere. Options given here are added to [acp.proxy] of the settings.",
    ),
    "hook install": Command(
        "put the calls of an agent behind the gate",
        _AGENT,
        _hook_install,
        "Adds hooks to the agent's settings and keeps all else that stands there; the diff is\n"
        "shown. Every call of the agent is then judged by the policy, asked about in the inbox,\n"
        "and recorded. A failure of callgate refuses the call.",
    ),
    "hook remove": Command(
        "take the calls of an agent out again",
        _AGENT,
        takes(_PROJECT, WORKSPACE, _DRY_RUN, JSON),
        "The file becomes what it was before, to the byte, unless it was changed since.",
    ),
    "hook status": Command(
        "say which agents are behind the gate, and where they fail open",
        "[AGENT]",
        takes(JSON),
        "Exit code 1: a hook is installed, and does not protect.",
    ),
    "hook test": Command(
        "run an agent's own program on a harmless call, without its model",
        _AGENT,
        takes(JSON),
        "The program talks to a scripted model on this machine. The call it makes must come\n"
        "through the hook.",
    ),
    "hook run": Command(
        "be the hook of an agent: an event on stdin, the answer on stdout",
        "AGENT [pre|post]",
        takes(),
    ),
    "sandbox": Command(
        "run a program, such as a whole agent, in the sandbox",
        "-- COMMAND ...",
        _sandbox,
        "The workspace is writable; callgate's home is masked. An agent that callgate knows gets\n"
        "its hooks for this run. [hooks] and [sandbox] in the settings say what it reaches.",
    ),
    "mcp serve": Command(
        "offer the tools to an MCP client, over stdin and stdout",
        "",
        _mcp_offer,
        "A client starts it. Where a person must be asked, the client shows the question if it\n"
        "can; callgate confirmations and the dashboard can answer it as well.",
    ),
    "mcp wrap": Command(
        "put the gate before one MCP server, for an MCP client",
        "-- COMMAND ...",
        _mcp_wrap,
        "A client starts it in place of COMMAND. Its tools keep their names; each call is judged\n"
        "by the policy and recorded, and the server runs in the sandbox.",
    ),
    "worker": Command(
        "run calls of a server on this machine, in its own workspace and sandbox",
        "--server URL --pool NAME",
        _worker,
        "It dials the server with a worker token, and dials again when the connection is lost.\n"
        "Sessions that name the pool work here; the server decides, asks and records.",
    ),
    "workers list": Command("list the workers that are connected, on any server", "", takes(JSON)),
    "workers token": Command(
        "make, list or revoke the tokens with which workers connect",
        "create --pool NAME [--worker NAME] | list | revoke NAME",
        _workers_token,
        "A token is shown once. It lets its holder connect as a worker of its pools, and do\n"
        "nothing else; one that is revoked cuts the workers that came with it.",
    ),
}
