"""Commands for servers and remote workers."""

# ruff: noqa: PLC0415

from __future__ import annotations

from callgate.cli.command import Command, add, deferred, positive, takes
from callgate.cli.options import JSON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from callgate.cli.parsers import Parser


def _worker(parser: Parser) -> None:
    parser.add_argument(
        "--server",
        metavar="URL",
        dest="servers",
        action="append",
        help="callgate server, such as https://callgate.example; repeatable",
    )
    parser.add_argument("--pool", metavar="NAME", help="pool of the worker")
    parser.add_argument("--name", metavar="NAME", help="name in the pool; default: the host name")
    parser.add_argument(
        "--workspace",
        metavar="[NAME=]DIR",
        dest="workspaces",
        action="append",
        help="directory of the worker; repeatable; default: here",
    )
    parser.add_argument(
        "--token-file", metavar="F", help="file with the token; default: $CALLGATE_WORKER_TOKEN"
    )
    parser.add_argument(
        "--slots",
        metavar="N",
        type=positive,
        default=8,
        help="maximum number of concurrent calls; default 8",
    )
    parser.add_argument(
        "--ca", metavar="FILE", help="trust only these certificate authorities (PEM)"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="allow an unencrypted server on another machine"
    )
    parser.add_argument("--detach", action="store_true", help="return as soon as it is connected")


def _workers_token(parser: Parser) -> None:
    parser.add_argument(
        "--pool",
        metavar="NAME",
        dest="pools",
        action="append",
        help="with create: admit to this pool; repeatable",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="with create: name of the token; default: random"
    )
    parser.add_argument(
        "--worker", metavar="NAME", help="with create: admit only the worker of this name"
    )
    add(parser, JSON)


def _module(name: str) -> ModuleType:
    module: ModuleType
    match name.split():
        case ["servers"]:
            from callgate.features.fleet.commands import workers as module  # lazy: when it runs
        case ["worker"]:
            from callgate.features.fleet.commands import workers as module  # lazy: when it runs
        case ["workers", _]:
            from callgate.features.fleet.commands import workers as module  # lazy: when it runs
        case _:
            raise ValueError(name)
    return module


_DECLARED = {
    "servers": Command(
        "list the servers that share the store",
        "",
        takes(JSON),
        "A server is an instance with HTTP. The list includes running servers that do not answer,\n"
        "and warns about clocks that differ by more than two seconds.",
    ),
    "worker": Command(
        "run a server's calls on this machine",
        "--server URL --pool NAME",
        _worker,
        "The worker connects to the server with a worker token, and reconnects after a loss.\n"
        "Calls of the pool's sessions run here, in a sandbox; the server decides, asks for\n"
        "approval and records.",
        is_local=True,
    ),
    "workers list": Command("list the connected workers", "", takes(JSON)),
    "workers token": Command(
        "create, list or revoke worker tokens",
        "create --pool NAME [--worker NAME] | list | revoke NAME",
        _workers_token,
        "A token is displayed once. It only permits connections as a worker of its pools. After a\n"
        "token is revoked, its workers are disconnected.",
    ),
}

COMMANDS = deferred(_DECLARED, _module)
