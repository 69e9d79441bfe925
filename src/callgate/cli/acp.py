"""`callgate acp`: the agent of an editor, on stdin and stdout.

The two are taken before anything else is loaded, and point elsewhere from then on: whatever
prints, in here or in a process that is started, never reaches the protocol. What the greeting
does not need is loaded once it was answered.
"""

from __future__ import annotations

import os

from callgate.cli.loading import load
from callgate.cli.terminal import say
from callgate.host.streams import take_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from callgate.wiring import Wired

_HEAVY = ("callgate.surfaces.acp.agent", "callgate.cli.acp_parts", "callgate.wiring_agents")
_USAGE = 2


def acp(options: Any) -> int:
    if options.words:
        raise load("callgate.cli.problems").CliError("acp takes no words")
    if options.print_config:
        return int(load("callgate.cli.acp_editors").show(options))
    if options.setup:
        return int(load("callgate.cli.acp_setup").set_up())
    if os.isatty(0) or os.isatty(1):
        say("callgate acp is started by an editor, which speaks with it over stdin and stdout.")
        say("callgate acp --print-config zed (or neovim, jetbrains, emacs, vscode) sets one up.")
        return _USAGE
    load("callgate.cli.targets").home()  # refuses one that others control
    requests, answers = take_streams()
    load("callgate.cli.lineage").refuse_within_a_call("callgate acp")
    load("callgate.cli.logs").set_up(options.debug, _level(options))
    return _serve(requests, answers, options)


def _level(options: Any) -> str:
    if options.vv:
        return "debug"
    return "info" if options.v else "warning"


def _serve(requests: int, answers: int, options: Any) -> int:
    stdio, asyncio = load("callgate.surfaces.acp.stdio"), load("asyncio")
    chosen = stdio.AcpOptions(model_of(options), options.mode, options.unstable)
    load("callgate.cli.provenance").begin(verbose=options.v or options.vv)

    async def make_agent(peer: Any, client: Any) -> Any:
        await asyncio.to_thread(lambda: [load(name) for name in _HEAVY])

        wired = await asyncio.to_thread(_open)
        parts = load("callgate.cli.acp_parts").make_parts(wired, chosen)
        agent = load("callgate.surfaces.acp.agent").AcpAgent(parts, peer, client)
        load("callgate.cli.watchdog").watch_runtime(wired)
        return agent

    return int(asyncio.run(stdio.serve(requests, answers, chosen, make_agent)))


def model_of(options: Any) -> str | None:
    """`scripted:FILE` is `scripted/FILE`, wherever a session or an editor may be."""
    name: str | None = options.model
    kind, colon, path = (name or "").partition(":")
    return f"scripted/{os.path.abspath(path)}" if colon and kind == "scripted" else name


def _open() -> Wired:
    """A runtime with every configured tool. `RpcError` says why there is none."""
    wiring, jsonrpc = load("callgate.wiring"), load("callgate.protocol.jsonrpc")
    places = load("callgate.config.places")
    try:
        wired: Wired = wiring.Wired(places.Home.from_environment())
        wiring.register_configured(wired, os.getcwd())
        load("callgate.cli.provenance").from_own_runtime(wired, os.getcwd())
    except (load("callgate.config.load").SettingsError, OSError) as error:
        raise jsonrpc.RpcError(jsonrpc.INTERNAL_ERROR, f"callgate cannot start: {error}") from error
    return wired
