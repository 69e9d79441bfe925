"""What an MCP server has beside tools, offered as tools: resources, prompts, completion.

    mcp.NAME/resources/list, /read     mcp.NAME/prompts/list, /get     mcp.NAME/completion

Which of these a server has is pinned with its tools. What they can do is what the settings say of
all its tools, or of the one by its name here (`effects = { "resources/read" = "read" }`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from callgate.core.content import TextBlock
from callgate.core.errors import ToolError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.sources.mcp.definitions import Beliefs
from callgate.sources.mcp.names import model_name, rule_name
from callgate.sources.mcp.servers import Server
from callgate.sources.mcp.tools import to_error

RESOURCES, PROMPTS, COMPLETIONS = "resources", "prompts", "completions"
_TEXT = {"type": "string"}
_PAGE = {"cursor": {**_TEXT, "description": "Where the last page ended."}}


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
        "Ask MCP server {} how an argument may go on.",
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
    """The names that rules know them by, and their definitions."""
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
    """One call of such a tool."""

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
        except Exception as error:  # of the SDK, which speaks with a stranger
            if await connection.is_lost(error):
                raise self._server.died(connection) from None
            raise to_error(self._server, error) from None
        from callgate.sources.mcp import outputs  # lazy: with the SDK, which is heavy  # noqa: PLC0415

        value = outputs.plain(result)
        if self._name == "resources/read":
            content = [block for each in result.contents for block in outputs.to_blocks(each)]
        else:
            content = [TextBlock(msgspec.json.encode(value).decode())]
        return ToolOutput(content=content, value=value)

    async def cancel(self) -> bool:
        return False
