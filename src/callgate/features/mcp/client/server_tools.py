"""Tool source of all MCP servers, and the tools of one server for the dispatcher.

The source uses approved definitions, and asks for the approval of changed ones. The tools include
the resources, prompts and completions of a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.core.content import TextBlock
from callgate.core.errors import (
    ToolError,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolProtocolError,
    ToolRegistrationError,
)
from callgate.core.schemas import ForeignSchema, first_line
from callgate.core.tools import ToolContext, ToolDefinition, ToolFactory, ToolOutput
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import OnlyIn, ToolSource
from callgate.features.mcp.client.definitions import (
    Beliefs,
    definitions,
    model_name,
    names_of,
    rule_name,
)
from callgate.features.mcp.client.server_requests import Asks
from callgate.features.mcp.client.servers import Server, ServerLocation, ServerSettings
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.redaction.texts import redact
from callgate.sources.logs import PROBLEM, LifeLog, LoggedMessage
from callgate.sources.pins import (
    LARGEST,
    PinChanges,
    PinDoubt,
    Pinned,
    Pins,
    Proposal,
    compare,
    fingerprint,
    hash_of,
    propose,
)
from callgate.sources.providers import ProvidedTools, ProviderKind, Providers

if TYPE_CHECKING:
    from callgate.features.mcp.client.connections import Connection

LONGEST_ERROR = 2_000


class ResultSchema:
    """Output schema of a tool. Compiled once, for the first result."""

    def __init__(self, schema: dict[str, Any] | None) -> None:
        self._schema = schema
        self._validator: ForeignSchema | None = None

    def problem(self, output: ToolOutput) -> str | None:
        """Return the problem of a result, or None. Error results are not checked."""
        if self._schema is None or not output.success:
            return None
        if output.value is msgspec.UNSET:
            return "it declares an output schema but returned no structured content"
        try:
            self._validator = self._validator or ForeignSchema(self._schema)
            fits = self._validator.is_valid(output.value)
        except ValueError as error:
            return f"its structured content cannot be checked: {first_line(error)}"
        return None if fits else "its structured content does not fit its output schema"


class McpTool:
    """One call of a server's tool."""

    stoppable = False
    """False: a cancellation notifies the server, but it may continue to work."""

    def __init__(
        self,
        server: Server,
        name: str,
        definition: ToolDefinition,
        pin: str,
        results: ResultSchema,
    ) -> None:
        self._server = server
        self._name = name
        """Name of the tool on the server."""
        self._definition = definition
        self._pin = pin
        self._results = results

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        connection = await self._server.connection(self._server.location(context))
        if connection.prints.get(self._name) != self._pin:
            raise self._changed()
        try:
            with connection.watched(self._definition, context):
                result = await connection.call(self._name, input, context)
        except (ToolError, asyncio.CancelledError):
            raise
        except Exception as error:  # from the SDK: the server is untrusted
            if await connection.is_lost(error):
                raise self._server.died(connection) from None
            raise to_error(self._server, error, connection) from None
        from callgate.features.mcp.client.sdk_messages import (  # lazy: with the SDK  # noqa: PLC0415
            to_output,
        )

        output = to_output(result)
        if not output.success:
            output = with_refusals(connection, output)
        problem = self._results.problem(output)
        if problem is not None:
            raise to_error(self._server, ValueError(problem))
        return output

    async def cancel(self) -> bool:
        return False  # cancelling the waiting task notifies the server

    def _changed(self) -> ToolPermissionDenied:
        server = self._server
        problem = f"the definition of tool {self._name} differs from the approved one"
        server.log.note(PROBLEM + problem)
        approve = server.settings.accept or f"callgate mcp approve {server.settings.name}"
        since = f"it was approved. Review and approve it with {approve}."
        if server.settings.of_session:
            since = "this session was opened. Reopen the session to use it."
        return ToolPermissionDenied(
            f"The definition of tool {self._definition.name!r} has changed since {since}",
            reason="definition_changed",
        )


def tool_factory(server: Server, tool: str, definition: ToolDefinition, pin: str) -> ToolFactory:
    """Return a factory of the tool; `tool` is its name on the server."""
    results = ResultSchema(definition.output_schema)
    return lambda: McpTool(server, tool, definition, pin, results)


def with_refusals(connection: Connection, output: ToolOutput) -> ToolOutput:
    """Add the known sandbox refusals to a failed result."""
    text = "\n".join(each.text for each in output.content if isinstance(each, TextBlock))
    refused = connection.explain(text)
    if not refused:
        return output
    return msgspec.structs.replace(output, content=[*output.content, TextBlock(refused)])


def to_error(server: Server, error: Exception, connection: Connection | None = None) -> ToolError:
    """Return the error of a failed request.

    It contains the truncated message of the server, but only the class of the SDK's own errors.
    It also contains the sandbox refusals if `connection` is set.
    """
    name = server.settings.name
    code = getattr(error, "code", None)
    if isinstance(code, int):
        text = server.settings.covered(str(error))[:LONGEST_ERROR] or "it gave no reason"
        refused = "" if connection is None else connection.explain(str(error))
        text = f"{text}\n{refused}" if refused else text
        return ToolExecutionError(text, reason="mcp_error", details={"server": name, "code": code})
    server.log.note(f"{PROBLEM}its response is invalid: {str(error)[:300]}")
    return ToolProtocolError(
        f"MCP server {name!r} sent an invalid response ({type(error).__name__}).",
        reason="mcp_answer",
    )


RESOURCES, PROMPTS, COMPLETIONS = "resources", "prompts", "completions"
_TEXT = {"type": "string"}
_PAGE = {"cursor": {**_TEXT, "description": "The nextCursor of the previous page."}}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


_ARGUMENTS = {"type": "object", "additionalProperties": _TEXT}
_EXTRAS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    (
        RESOURCES,
        "resources/list",
        "List the resources and resource templates of MCP server {}.",
        _object([], **_PAGE),
    ),
    (RESOURCES, "resources/read", "Read a resource of MCP server {}.", _object(["uri"], uri=_TEXT)),
    (PROMPTS, "prompts/list", "List the prompts of MCP server {}.", _object([], **_PAGE)),
    (
        PROMPTS,
        "prompts/get",
        "Get a prompt of MCP server {}, filled in.",
        _object(["name"], name=_TEXT, arguments=_ARGUMENTS),
    ),
    (
        COMPLETIONS,
        "completion",
        "Get completions for an argument from MCP server {}.",
        _object(
            ["argument", "value"],
            prompt=_TEXT,
            template=_TEXT,
            argument=_TEXT,
            value=_TEXT,
            context=_ARGUMENTS,
        ),
    ),
)


def extras(
    server: Server, has: Collection[str], beliefs: Beliefs
) -> Iterator[tuple[str, ToolDefinition]]:
    """Yield the tools for resources, prompts and completions: name in rules, and definition."""
    named = server.settings.name
    for part, name, description, schema in _EXTRAS:
        if part in has and beliefs.includes(name):
            yield (
                name,
                ToolDefinition(
                    name=model_name(named, name),
                    aliases=(rule_name(named, name),),
                    description=description.format(named),
                    input_schema=schema,
                    side_effects=beliefs.effects.get(name, beliefs.beside or beliefs.effect),
                    path_params=(),
                    timeout_s=beliefs.timeout_s,
                    source="mcp",
                ),
            )


class Extra:
    """One call of a tool from `extras`."""

    stoppable = False

    def __init__(self, server: Server, name: str, definition: ToolDefinition) -> None:
        self._server = server
        self._name = name
        self._definition = definition

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        connection = await self._server.connection(self._server.location(context))
        try:
            with connection.watched(self._definition, context):
                result = await connection.ask(self._name, input, context)
        except (ToolError, asyncio.CancelledError):
            raise
        except Exception as error:  # from the SDK: the server is untrusted
            if await connection.is_lost(error):
                raise self._server.died(connection) from None
            raise to_error(self._server, error, connection) from None
        from callgate.features.mcp.client import sdk_messages  # lazy: with the SDK, which is heavy  # noqa: PLC0415

        value = sdk_messages.plain(result)
        if self._name == "resources/read":
            content = [block for each in result.contents for block in sdk_messages.to_blocks(each)]
        else:
            content = [TextBlock(msgspec.json.encode(value).decode())]
        return ToolOutput(content=content, value=value)

    async def cancel(self) -> bool:
        return False


ACCEPT = "callgate mcp approve"


class ServerProvider:
    """One MCP server of the settings, with its connections."""

    def __init__(self, settings: ServerSettings, pins: Pins, asks: Asks | None) -> None:
        self._settings = settings
        self.name, self.pin, self.command = settings.name, settings.pin, settings.command
        self.process = Server(settings, LifeLog(pins.log_path(settings.pin)), asks)

    async def ask(self, location: ServerLocation) -> Pinned:
        """Start the server read-only and return its definitions. Raises `ToolError`."""
        connection = await self.process.connection(location._replace(read_only=True))
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                beside = await connection.beside()
        except TimeoutError:
            beside = []
        pinned = Pinned(command=self.command, schemas=connection.tools, tags=beside)
        if len(msgspec.json.encode(pinned)) > LARGEST:
            raise ToolError(f"Its definitions exceed {LARGEST} bytes.", reason="mcp_schema")
        return pinned

    def factories(self, pinned: Pinned) -> list[ToolFactory]:
        prints = _prints(pinned.schemas, self.name)
        server, beliefs = self.process, self._settings.beliefs
        tools = [
            tool_factory(server, tool, definition, prints[tool])
            for tool, definition in definitions(pinned.schemas, self.name, beliefs)
        ]
        return [*tools, *starmap(partial(_extra, server), extras(server, pinned.tags, beliefs))]

    def definitions(self, pinned: Pinned) -> list[ToolDefinition]:
        return [definition for _, definition in self.named_definitions(pinned)]

    def named_definitions(self, pinned: Pinned) -> list[tuple[str, ToolDefinition]]:
        """Return the definitions with the names on the server."""
        beliefs = self._settings.beliefs
        tools = definitions(pinned.schemas, self.name, beliefs)
        return [*tools, *extras(self.process, pinned.tags, beliefs)]

    def changed(self, pinned: Pinned) -> set[str]:
        """Return the callgate names of the tools whose present definition differs from the pin."""
        running = self.process.running
        if not running:
            return set()
        known = _prints(pinned.schemas, self.name)
        return {
            definition.name
            for tool, definition in definitions(pinned.schemas, self.name, self._settings.beliefs)
            if any(each.prints.get(tool) != known[tool] for each in running)
        }

    def compare(self, before: Pinned | None, after: Pinned) -> PinChanges:
        return compare(self.name, before, after, names_of)


class Servers(Providers[Server]):
    def __init__(
        self, settings: Iterable[ServerSettings], pins: Pins, asks: Asks | None = None
    ) -> None:
        providers = [ServerProvider(each, pins, asks) for each in settings]
        super().__init__(ProviderKind("MCP server", ACCEPT), providers, pins)
        self._asks = asks
        self._named_definitions = {each.name: each.named_definitions for each in providers}

    def put_server(self, settings: ServerSettings) -> None:
        """Add a server, or replace the one of this name."""
        provider = ServerProvider(settings, self._pins, self._asks)
        self._named_definitions[provider.name] = provider.named_definitions
        self.put(provider)

    def definitions_of(self, name: str, pinned: Pinned) -> list[tuple[str, ToolDefinition]]:
        """Return the definitions of a server with the names on the server."""
        return self._named_definitions[name](pinned)

    def only_in(self, name: str) -> str | None:
        """Return the workspace whose settings name the server; no other workspace may use it."""
        return self.hosts[name].settings.only_in


def _extra(server: Server, name: str, definition: ToolDefinition) -> ToolFactory:
    return lambda: Extra(server, name, definition)


def _prints(schemas: list[dict[str, Any]], server: str) -> dict[str, str]:
    """Return the fingerprints by name on the server."""
    try:
        names = names_of(schemas, server)
    except ToolRegistrationError:
        return {}
    return dict(zip(names, map(fingerprint, schemas), strict=True))


class McpTools(ProvidedTools[Server]):
    """The MCP servers of a runtime."""

    def __init__(self, servers: Servers, registry: Registry) -> None:
        super().__init__(servers, registry)
        self.servers = servers
        self._notices: dict[str, str] = {}
        self._looked_at: dict[str, Pinned] = {}
        """Definitions of each server that a person last saw."""

    def put(self, settings: ServerSettings) -> None:
        """Add a server, or replace the one of this name, and offer its pinned tools."""
        self.servers.put_server(settings)
        try:
            self.offer(settings.name, self._pinned_factories(settings.name))
        except ToolRegistrationError:
            self.offer(settings.name, ())

    def _pinned_factories(self, name: str) -> list[ToolFactory]:
        self._notices.pop(name, None)
        try:
            pinned = self.servers.pinned(name)
        except PinDoubt as doubt:
            self._notices[name] = f"offers no tools: {doubt}"
            raise
        if pinned is None:
            self._notices[name] = f"is new: run callgate mcp approve {name} to review its tools"
            return []
        return self.servers.factories_of(name, pinned)

    def _source(self, name: str, source: ToolSource) -> ToolSource:
        only_in = self.servers.only_in(name)
        return source if only_in is None else OnlyIn(source, only_in)

    def notices(self) -> list[str]:
        """Return a notice for each server without tools, with the reason."""
        self.tools()  # reads the pins
        notices = self._notices
        return [
            f"MCP server {name} {notices[name]}" for name in self.servers.hosts if name in notices
        ]

    def entry(self, name: str) -> HostEntry:
        found = super().entry(name)
        return msgspec.structs.replace(found, command=[redact(each) for each in found.command])

    def messages(self, name: str) -> Callable[[], list[LoggedMessage]]:
        return self.servers.hosts[name].messages.reader()

    async def look(self, name: str, workspace: str) -> Proposal:
        servers = self.servers
        proposed = await servers.ask(self._known(name), ServerLocation(workspace))
        doubt = servers.doubt(name)
        before = servers.pinned(name) if doubt is None else doubt.pinned
        self._looked_at[name] = proposed
        return propose(
            proposed,
            servers.definitions_of(name, proposed),
            servers.compare(name, before, proposed),
            is_new=before is None and doubt is None,
            doubt=None if doubt is None else doubt.problem,
        )

    async def approve(self, name: str, sha256: str) -> HostEntry:
        proposed = self._looked_at.get(self._known(name))
        if proposed is None or hash_of(proposed) != sha256:
            raise ToolError(
                "Its definitions have changed since you looked. Look at them again.",
                reason="not_looked_at",
            )
        self.servers.pin(name, proposed)
        self.servers.hosts[name].log.note("approved by a person at the dashboard")
        return await self.renew(name, forget=False)


def name_server(name: str, problem: str) -> str:
    """Put the server's name before a problem that does not contain it."""
    return problem if f"MCP server {name!r}" in problem else f"MCP server {name}: {problem}"
