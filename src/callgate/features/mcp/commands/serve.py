"""`callgate mcp serve` and `mcp wrap`: serve MCP to one client over stdin and stdout."""

from __future__ import annotations

import os
import re

from callgate.cli.errors import CliError
from callgate.cli.ui.terminal import say
from callgate.host import take_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from callgate.config.schema import Settings
    from callgate.core.sessions import Session
    from callgate.instance.wiring.runtime import Wired


_USAGE = 2


def serve(options: Namespace) -> int:
    if options.words:
        raise CliError("mcp serve takes no arguments")
    if options.print_config:
        return _print_config(options)
    if os.isatty(0):
        say("An MCP client starts callgate mcp serve and communicates over stdin and stdout.")
        say("For the client's configuration, run callgate mcp serve --print-config.")
        return _USAGE
    requests, answers = take_streams()
    import asyncio  # lazy: after the streams were taken  # noqa: PLC0415

    from callgate.cli.embedded import open_runtime  # lazy: the same  # noqa: PLC0415
    from callgate.cli.nested_calls import refuse_within_a_call  # lazy: the same  # noqa: PLC0415

    refuse_within_a_call("callgate mcp serve")
    ensure_installed()
    wired, session = open_runtime(options, audit=True, log="warning")
    from callgate.features.mcp.server.local import serve_mcp  # lazy: the same  # noqa: PLC0415

    asyncio.run(
        serve_mcp(
            requests,
            answers,
            wired,
            session,
            elicits=not options.no_elicit,
            search_above=options.search_above,
        )
    )
    return 0


def _print_config(options: Namespace) -> int:
    """Print the JSON configuration that most clients read, with the path of this program."""
    import json  # lazy: not for a client  # noqa: PLC0415

    from callgate.cli.programs import this_program  # lazy: not for a client  # noqa: PLC0415

    program, *words = this_program()
    words += ["mcp", "serve", "--workspace", os.path.abspath(os.path.expanduser(options.workspace))]
    words += ["--mode", options.mode] if options.mode else []
    words += ["--no-elicit"] if options.no_elicit else []
    if options.search_above is not None:
        words += ["--search-above", str(options.search_above)]
    server: dict[str, Any] = {"command": program, "args": words}
    if home := os.environ.get("CALLGATE_HOME"):
        server["env"] = {"CALLGATE_HOME": os.path.abspath(os.path.expanduser(home))}
    print(json.dumps({"mcpServers": {"callgate": server}}, indent=2))
    return 0


def ensure_installed() -> None:
    """Raise `CliError` if the MCP SDK is not installed."""
    try:
        import mcp_types  # lazy: after the streams were taken  # noqa: F401, PLC0415
    except ImportError as error:
        raise CliError(
            "the package mcp, a dependency of callgate, is not installed",
            hint="pip install 'mcp>=2.3'",
        ) from error


_LONGEST = 32
_SAY_NOTHING = frozenset(
    {"index", "main", "__main__", "cli", "server", "dist", "build", "src", "bin"}
)
"""Common names of files and directories, which do not identify a server."""
_SEES_LITTLE = (
    "The server runs in the sandbox, with access to the workspace, no network and few variables; "
    "--network, --env and --profile allow more."
)


def wrap(options: Namespace) -> int:
    if not options.words:
        raise CliError(
            "the server's command is missing", hint="callgate mcp wrap -- npx -y some-server"
        )
    if options.approve:
        return _approve(options)
    if os.isatty(0):
        say("An MCP client starts callgate mcp wrap and communicates over stdin and stdout.")
        say("docs/build/mcp_server.md describes the setup of a client.")
        return _USAGE
    requests, answers = take_streams()
    import asyncio  # lazy: after the streams were taken  # noqa: PLC0415

    from callgate.cli.embedded import open_runtime  # lazy: the same  # noqa: PLC0415
    from callgate.cli.nested_calls import refuse_within_a_call  # lazy: the same  # noqa: PLC0415

    refuse_within_a_call("callgate mcp wrap")
    ensure_installed()
    wired, session = open_runtime(
        options, audit=True, register=lambda wired, workspace: None, log="warning"
    )
    asyncio.run(_serve(requests, answers, wired, session, options))
    return 0


def name_of(options: Namespace) -> str:
    """Return the server's name for rules and messages: `--name`, or one from its command."""
    if options.name is not None:
        return str(options.name)
    named = [each for each in options.words if not each.startswith("-")]
    last = re.sub(r"@[^/@]*\Z", "", named[min(1, len(named) - 1)]) if named else ""
    segments = re.sub(r"\.[a-z]{1,3}\Z", "", last.lower()).split("/")
    while len(segments) > 1 and segments[-1] in _SAY_NOTHING:
        segments.pop()
    plain = re.sub(r"[^a-z0-9]+", "-", segments[-1]).strip("-")
    name = plain[:_LONGEST].strip("-")
    return name if name[:1].isalpha() else "wrapped"


def again(options: Namespace) -> str:
    """Return the command that reviews the server's tools again, with secrets masked."""
    workspace = os.path.abspath(os.path.expanduser(options.workspace))
    command = ["callgate", "mcp", "wrap", "--approve", "--workspace", workspace]
    for key in ("name", "network", "profile"):
        if (value := getattr(options, key)) is not None:
            command += [f"--{key}", value]
    for each in options.env or ():
        command += ["--env", each]
    import shlex  # lazy: after the streams were taken  # noqa: PLC0415

    from callgate.redaction.texts import redact  # lazy: the same  # noqa: PLC0415

    return shlex.join([*command, "--", *(redact(each) for each in options.words)])


def _settings(options: Namespace, settings: Settings) -> Settings:
    """Return the user's settings with this MCP server only."""
    import msgspec  # lazy: after the streams were taken  # noqa: PLC0415

    from callgate.features.mcp.commands.add import own_sandbox  # lazy: the same  # noqa: PLC0415
    from callgate.features.mcp.settings import McpName, McpSettings, McpTable  # lazy: the same  # noqa: PLC0415

    command = options.words
    table: dict[str, Any] = {
        "command": command[0],
        "args": command[1:],
        **own_sandbox(command),
        "env": options.env or [],
        "trusted": options.trusted,
        "sampling": options.sampling,
    }
    for key in ("effect", "profile", "network"):
        if (value := getattr(options, key)) is not None:
            table[key] = value
    try:
        name = msgspec.convert(name_of(options), McpName)
        servers = {name: msgspec.convert(table, McpTable)}
    except msgspec.ValidationError as error:
        raise CliError(f"mcp wrap: {error}") from error
    replaced: Settings = msgspec.structs.replace(
        settings, parts={**settings.parts, McpSettings.owner: McpSettings(mcp=servers)}
    )
    return replaced


async def _serve(
    requests: int, answers: int, wired: Wired, session: Session, options: Namespace
) -> None:
    from callgate.features.mcp.server import stdio  # lazy: the same  # noqa: PLC0415
    from callgate.features.mcp.server.wrapped import WrappedServer  # lazy: the same  # noqa: PLC0415
    from callgate.features.mcp.settings import McpSettings  # lazy: the same  # noqa: PLC0415
    from callgate.instance.watchdog import watch_runtime  # lazy: the same  # noqa: PLC0415

    name, look = name_of(options), again(options)
    try:
        watch_runtime(wired)
        table = _settings(options, wired.settings).of(McpSettings).mcp[name]
        wrapped = WrappedServer(wired, session, name, table, look, elicits=not options.no_elicit)
        if wrapped.doubt is not None:
            raise _unusable(name, wrapped.doubt, f"Review it with {look}.")
        async with wrapped:
            await stdio.serve(requests, answers, wrapped.server)
            problem = await wrapped.problem()
        if problem is not None:
            raise _unusable(name, problem.text, None if problem.says_what_to_do else _SEES_LITTLE)
    finally:
        await wired.close()


def _unusable(name: str, problem: str, hint: str | None) -> Exception:
    from callgate.core.errors import ToolErrorClass  # lazy: only for errors  # noqa: PLC0415
    from callgate.features.mcp.client.server_tools import name_server  # lazy: only for errors  # noqa: PLC0415

    return CliError(
        name_server(name, problem),
        hint=hint,
        error_class=ToolErrorClass.HOST_UNAVAILABLE,
        reason="mcp_unusable",
    )


def _approve(options: Namespace) -> int:
    """Show the server's present tools, and pin them after a yes."""
    from callgate.cli.hosts.reloads import settings_of  # lazy: only for --approve  # noqa: PLC0415
    from callgate.cli.nested_calls import refuse_within_a_call  # lazy: the same  # noqa: PLC0415
    from callgate.config.home import Home  # lazy: the same  # noqa: PLC0415
    from callgate.features.mcp.commands.approve import Approval  # lazy: the same  # noqa: PLC0415

    refuse_within_a_call("callgate mcp wrap --approve")
    home = Home.from_environment()
    settings = _settings(options, settings_of(home))
    approval = Approval(home, settings, options.workspace)
    found = approval.look([name_of(options)])
    for each in found:
        if each.problem is not None:
            raise _unusable(each.name, each.problem, _SEES_LITTLE)
    approval.tell(found, yes=options.yes)
    approval.accept(found, yes=options.yes)
    return 0
