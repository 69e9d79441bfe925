"""`callgate mcp serve`: the tools of a workspace for an MCP client, on stdin and stdout.

The two are taken before anything else is loaded, and point elsewhere from then on: whatever
prints, in here or in a process that is started, never reaches the protocol.
"""

from __future__ import annotations

import os

from callgate.cli.errors import CliError
from callgate.cli.ui.terminal import say
from callgate.host.streams import take_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

_USAGE = 2


def serve(options: Namespace) -> int:
    if options.words:
        raise CliError("mcp serve takes no arguments")
    if options.print_config:
        return _print_config(options)
    if os.isatty(0):
        say("callgate mcp serve is started by an MCP client, which speaks with it over")
        say("stdin and stdout. --print-config prints what to paste into its settings.")
        return _USAGE
    requests, answers = take_streams()
    import asyncio  # lazy: after the streams were taken  # noqa: PLC0415

    from callgate.cli.embedded import open_runtime  # lazy: the same  # noqa: PLC0415
    from callgate.cli.nested_calls import refuse_within_a_call  # lazy: the same  # noqa: PLC0415

    refuse_within_a_call("callgate mcp serve")
    ensure_installed()
    wired, session = open_runtime(options, audit=True, log="warning")
    from callgate.instance.mcp import serve_mcp  # lazy: the same  # noqa: PLC0415

    asyncio.run(serve_mcp(requests, answers, wired, session, elicits=not options.no_elicit))
    return 0


def _print_config(options: Namespace) -> int:
    """The JSON that most clients read, with the program as it lies here."""
    import json  # lazy: not for a client  # noqa: PLC0415

    from callgate.cli.executable import this_program  # lazy: not for a client  # noqa: PLC0415

    program, *words = this_program()
    words += ["mcp", "serve", "--workspace", os.path.abspath(os.path.expanduser(options.workspace))]
    words += ["--mode", options.mode] if options.mode else []
    words += ["--no-elicit"] if options.no_elicit else []
    server: dict[str, Any] = {"command": program, "args": words}
    if home := os.environ.get("CALLGATE_HOME"):
        server["env"] = {"CALLGATE_HOME": os.path.abspath(os.path.expanduser(home))}
    print(json.dumps({"mcpServers": {"callgate": server}}, indent=2))
    return 0


def ensure_installed() -> None:
    """Raises `CliError` where the SDK is not there."""
    try:
        import mcp_types  # lazy: after the streams were taken  # noqa: F401, PLC0415
    except ImportError as error:
        raise CliError(
            "the package mcp, which belongs to callgate, is not installed",
            hint="pip install 'mcp>=2.3'",
        ) from error
