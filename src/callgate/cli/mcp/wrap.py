"""`callgate mcp wrap -- COMMAND`: one MCP server for one client, with the gate between them.

    client <--stdio--> callgate <--sandbox, stdio--> COMMAND

Whoever writes the command into a client's configuration has chosen the server: what it says of its
tools when it is first seen is pinned. What it says differently later is refused until a person
has looked at it (`callgate mcp wrap --approve -- COMMAND`).
"""

from __future__ import annotations

import os
import re

from callgate.cli.errors import CliError
from callgate.cli.ui.terminal import say
from callgate.host.streams import take_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from callgate.config.schema import Settings
    from callgate.core.models import Model
    from callgate.core.sessions import Session
    from callgate.surfaces.mcp.server import McpServer
    from callgate.wiring.runtime import Wired

_USAGE = 2
_LONGEST = 32
_SAY_NOTHING = frozenset(
    {"index", "main", "__main__", "cli", "server", "dist", "build", "src", "bin"}
)
"""Files and directories that are called so everywhere."""
_SEES_LITTLE = (
    "It runs in the sandbox, and sees the workspace, no network and few variables unless you say "
    "more: --network, --env, --profile."
)


def wrap(options: Namespace) -> int:
    if not options.words:
        raise CliError("which command?", hint="callgate mcp wrap -- npx -y some-server")
    if options.approve:
        return _approve(options)
    if os.isatty(0):
        say("callgate mcp wrap is started by an MCP client, which speaks with it over stdin and")
        say("stdout. docs/build/mcp_server.md says how clients are set up.")
        return _USAGE
    requests, answers = take_streams()
    import asyncio  # lazy: after the streams were taken  # noqa: PLC0415

    from callgate.cli.embedded import open_runtime  # lazy: the same  # noqa: PLC0415
    from callgate.cli.mcp.serve import ensure_installed  # lazy: the same  # noqa: PLC0415
    from callgate.cli.nested_calls import refuse_within_a_call  # lazy: the same  # noqa: PLC0415

    refuse_within_a_call("callgate mcp wrap")
    ensure_installed()
    wired, session = open_runtime(
        options, audit=True, register=lambda wired, workspace: None, log="warning"
    )
    asyncio.run(_serve(requests, answers, wired, session, options))
    return 0


def name_of(options: Namespace) -> str:
    """What rules and people call the server: what was said, or what its command says."""
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
    """The command with which a person looks at the server again, without secrets."""
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
    """The user's, with this server and no other."""
    import msgspec  # lazy: after the streams were taken  # noqa: PLC0415

    from callgate.cli.mcp.runners import around  # lazy: the same  # noqa: PLC0415
    from callgate.core.mcp_servers import McpName, McpTable  # lazy: the same  # noqa: PLC0415

    command = options.words
    table: dict[str, Any] = {
        "command": command[0],
        "args": command[1:],
        **around(command),
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
    replaced: Settings = msgspec.structs.replace(settings, mcp=servers)
    return replaced


async def _serve(
    requests: int, answers: int, wired: Wired, session: Session, options: Namespace
) -> None:
    from callgate.instance.watchdog import watch_runtime  # lazy: after the streams were taken  # noqa: PLC0415
    from callgate.surfaces.mcp import stdio  # lazy: the same  # noqa: PLC0415

    try:
        watch_runtime(wired)
        server, servers = await _open(wired, session, options)
        try:
            await stdio.serve(requests, answers, server)
        finally:
            await servers.close()
    finally:
        await wired.close()


async def _open(wired: Wired, session: Session, options: Namespace) -> tuple[McpServer, Any]:
    """Raises `CliError` where the server cannot be used."""
    from callgate.sources.mcp.questions import DispatchedAsks  # lazy: after the streams were taken  # noqa: PLC0415
    from callgate.sources.mcp.server_tools import McpTools  # lazy: the same  # noqa: PLC0415
    from callgate.surfaces.mcp import wrapped  # lazy: the same  # noqa: PLC0415
    from callgate.surfaces.mcp.client_asks import ClientAsks  # lazy: the same  # noqa: PLC0415
    from callgate.surfaces.mcp.server import McpServer, Naming  # lazy: the same  # noqa: PLC0415
    from callgate.wiring.mcp import make_wrapped  # lazy: the same  # noqa: PLC0415

    name, registry = name_of(options), wired.dispatcher.registry

    def open_model() -> Model:
        from callgate.wiring.agents import open_model  # lazy: only where a server asks for one  # noqa: PLC0415

        return open_model(wired.home, wired.settings, None)

    asks = ClientAsks(DispatchedAsks(wired.runtime.call, registry, open_model))
    table = _settings(options, wired.settings).mcp[name]
    servers = make_wrapped(wired.home, name, table, wired.sandbox, asks, again(options), say)
    tools = McpTools(servers, registry)
    await _pin_first(servers, name, session, again(options))
    registry.add(tools)
    registered_names = {
        each.aliases[0].partition("/")[2]: each.name
        for each in servers.definitions(name)
        # Of two that would be called the same by us, one is left out.
        if registry.find(each.aliases[0]) is not None
    }
    for entry in tools.entries():
        if entry.problem is not None:
            say(f"MCP server {name}: {entry.problem}")
    pinned = servers.pinned(name)
    assert pinned is not None  # by `_pin_first`
    schemas = {each["name"]: each for each in pinned.schemas}
    beside = [each for each in registered_names if each not in schemas]
    meant = {each: registered for each, registered in registered_names.items() if each in schemas}
    shown = {registered: each for each, registered in meant.items()}
    server = McpServer(
        wired.runtime,
        lambda wish: session,
        resources=[wrapped.WrappedResources(name, beside)] if "resources/list" in beside else [],
        prompts=[wrapped.WrappedPrompts(name, beside)] if "prompts/list" in beside else [],
        naming=Naming(
            shown.get,
            lambda each: meant.get(each, ""),
            lambda each: wrapped.extra_fields(schemas[shown[each]], trusted=options.trusted),
        ),
        instructions=None,
        elicits=not options.no_elicit,
        watches=False,
    )
    asks.server = server
    return server, servers


async def _pin_first(servers: Any, name: str, session: Session, look: str) -> None:
    """What is seen for the first time is gone by from now on."""
    from callgate.core.errors import ToolError  # lazy: after the streams were taken  # noqa: PLC0415
    from callgate.sources.mcp.servers import ServerLocation  # lazy: the same  # noqa: PLC0415

    doubt = servers.doubt(name)
    if doubt is not None:
        raise _unusable(name, doubt.problem, f"{look} looks at it again.")
    if name not in servers.unknown():
        return
    location = ServerLocation(session.workspace, session.extra_roots)
    try:
        pinned = await servers.ask(name, location)
    except ToolError as error:
        await servers.close()
        raise _unusable(name, str(error), _SEES_LITTLE) from None
    servers.pin_first(name, pinned)


def _unusable(name: str, problem: str, hint: str) -> Exception:
    from callgate.cli.mcp.servers import about  # lazy: only for errors  # noqa: PLC0415
    from callgate.core.errors import ToolErrorClass  # lazy: only for errors  # noqa: PLC0415

    return CliError(
        about(name, problem),
        hint=hint,
        error_class=ToolErrorClass.HOST_UNAVAILABLE,
        reason="mcp_unusable",
    )


def _approve(options: Namespace) -> int:
    """Show what the server says now, and pin it after a yes."""
    from callgate.cli.hosts.reloads import settings_of  # lazy: only for --approve  # noqa: PLC0415
    from callgate.cli.mcp.approve import Approval  # lazy: the same  # noqa: PLC0415
    from callgate.cli.nested_calls import refuse_within_a_call  # lazy: the same  # noqa: PLC0415
    from callgate.config.home import Home  # lazy: the same  # noqa: PLC0415

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
