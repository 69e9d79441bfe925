"""`callgate acp-proxy -- AGENT`: checks the calls of any ACP agent of an editor.

    editor <--stdio--> callgate <--sandbox, stdio--> AGENT

Like `callgate acp`, it takes stdin and stdout before it imports other modules.
"""

from __future__ import annotations

import os

from callgate.cli.errors import CliError
from callgate.cli.ui.terminal import say
from callgate.host import take_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

_USAGE = 2
_WORDS = ("agent", "none", "loopback", "all")


def acp_proxy(options: Namespace) -> int:
    if not options.words and not options.unstable:
        raise CliError("the agent's command is missing", hint="callgate acp-proxy -- gemini --acp")
    network = _network(options.network)
    if options.print_config:
        return _print_config(options)
    if os.isatty(0):
        say("An editor starts callgate acp-proxy and communicates over stdin and stdout.")
        say("Insert it before the command of an agent in the editor's settings.")
        return _USAGE
    from callgate.config.home_check import home_path  # lazy: not for wrong words  # noqa: PLC0415

    home_path()  # raises an error for a home that other users control
    requests, answers = take_streams()
    import asyncio  # lazy: after the streams were taken  # noqa: PLC0415

    from callgate.cli.logs import set_up  # lazy: the same  # noqa: PLC0415
    from callgate.cli.nested_calls import refuse_within_a_call  # lazy: the same  # noqa: PLC0415
    from callgate.features.agents.proxy.instance import ProxyOptions, serve_proxy  # lazy: the same  # noqa: PLC0415

    refuse_within_a_call("callgate acp-proxy")
    set_up(options.debug, "info" if options.verbose else "warning")
    chosen = ProxyOptions(
        argv=tuple(options.words),
        workspace=options.workspace,
        mode=options.mode,
        network=network,
        profile=options.profile,
        env=tuple(options.env),
        writable=tuple(options.writable),
        readable=tuple(options.readable),
        unstable=options.unstable,
    )
    return asyncio.run(serve_proxy(requests, answers, chosen))


def _network(given: str | None) -> str | list[str] | None:
    """Parse `--network`: a keyword or a list of hosts."""
    if given is None or given in _WORDS:
        return given
    from callgate.sandbox.allowed_hosts import parse  # lazy: only where hosts are named  # noqa: PLC0415

    named = [each.strip() for each in given.split(",") if each.strip()]
    try:
        for each in named:
            parse(each)
    except ValueError as error:
        raise CliError(f"--network: {error}") from None
    return named


def _print_config(options: Namespace) -> int:
    """Print the configuration for an editor, with the given options."""
    import re  # lazy: not for an editor  # noqa: PLC0415

    from callgate.features.agents.known import find  # lazy: as above  # noqa: PLC0415
    from callgate.features.editor.setup import show_command  # lazy: as above  # noqa: PLC0415

    if not options.words:
        raise CliError(
            "the agent's command is missing",
            hint="callgate acp-proxy --print-config zed -- gemini --acp",
        )
    chosen = ["acp-proxy"]
    for flag in ("network", "profile", "workspace", "mode"):
        if (value := getattr(options, flag)) is not None:
            chosen += [f"--{flag}", value]
    for flag in ("env", "writable", "readable"):
        chosen += [word for value in getattr(options, flag) for word in (f"--{flag}", value)]
    chosen += ["--unstable"] if options.unstable else []
    name = re.sub(r"[^a-z0-9]+", "_", find(options.words)[0])
    return show_command(
        options.print_config, f"{name}_behind_callgate", [*chosen, "--", *options.words]
    )
