"""`callgate mcp serve`: the tools of a workspace for an MCP client, on stdin and stdout.

The two are taken before anything else is loaded, and point elsewhere from then on: whatever
prints, in here or in a process that is started, never reaches the protocol.
"""

from __future__ import annotations

import os

from callgate.cli.loading import load
from callgate.host.streams import take_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from callgate.core.sessions import Session
    from callgate.wiring import Wired

_USAGE = 2


def serve(options: Namespace) -> int:
    terminal = load("callgate.cli.terminal")
    if options.words:
        raise load("callgate.cli.problems").CliError("mcp serve takes no words")
    if options.print_config:
        return _print_config(options)
    if os.isatty(0):
        terminal.say("callgate mcp serve is started by an MCP client, which speaks with it over")
        terminal.say("stdin and stdout. --print-config prints what to paste into its settings.")
        return _USAGE
    requests, answers = take_streams()
    load("callgate.cli.lineage").refuse_within_a_call("callgate mcp serve")
    ensure_installed()
    wired, session = load("callgate.cli.embedded").open_runtime(options, audit=True, log="warning")
    load("asyncio").run(_serve(requests, answers, wired, session, not options.no_elicit))
    return 0


def _print_config(options: Namespace) -> int:
    """The JSON that most clients read, with the program as it lies here."""
    program, *words = load("callgate.cli.this_program").this_program()
    words += ["mcp", "serve", "--workspace", os.path.abspath(os.path.expanduser(options.workspace))]
    words += ["--mode", options.mode] if options.mode else []
    words += ["--no-elicit"] if options.no_elicit else []
    server: dict[str, Any] = {"command": program, "args": words}
    if home := os.environ.get("CALLGATE_HOME"):
        server["env"] = {"CALLGATE_HOME": os.path.abspath(os.path.expanduser(home))}
    print(load("json").dumps({"mcpServers": {"callgate": server}}, indent=2))
    return 0


def ensure_installed() -> None:
    """Raises `CliError` where the SDK is not there."""
    try:
        load("mcp_types")
    except ImportError as error:
        raise load("callgate.cli.problems").CliError(
            "the package mcp, which belongs to callgate, is not installed",
            hint="pip install 'mcp>=2.3'",
        ) from error


async def _serve(
    requests: int, answers: int, wired: Wired, session: Session, elicits: bool
) -> None:
    stdio = load("callgate.surfaces.mcp.stdio")
    local = load("callgate.surfaces.mcp.local")
    try:
        load("callgate.cli.watchdog").watch_runtime(wired)
        wired.warm()
        server = local.local_server(
            wired.runtime,
            session,
            home=wired.home.path,
            skills=lambda: wired.skills,
            elicits=elicits,
        )
        await stdio.serve(requests, answers, server)
    finally:
        await wired.close()
