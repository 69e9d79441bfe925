"""A real MCP server, on the official SDK. What its tool is said to do stands in a file."""

import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import (
    AudioContent,
    ContentBlock,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    InputRequiredResult,
    TextResourceContents,
)

server = MCPServer("inner")
FORM = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}


def double(number: int) -> int:
    return number * 2


async def paint(ctx: Context) -> str | InputRequiredResult:
    """Ask for a color."""
    answer = (ctx.input_responses or {}).get("color")
    if isinstance(answer, ElicitResult):
        return str((answer.content or {}).get("color", answer.action))
    asked = ElicitRequestFormParams(message="Which color?", requested_schema=FORM)
    return InputRequiredResult(input_requests={"color": ElicitRequest(params=asked)})


def play() -> list[ContentBlock]:
    """Give a sound, and the notes of it."""
    notes = TextResourceContents(uri="note://sound", text="la", mime_type="text/plain")
    return [
        AudioContent(type="audio", data="UklGRg==", mime_type="audio/wav"),
        EmbeddedResource(type="resource", resource=notes),
    ]


def completion() -> str:
    """Called like something that servers have beside tools."""
    return "complete"


server.add_tool(double, name="Double-It", description=Path(sys.argv[1]).read_text())
server.add_tool(paint)
server.add_tool(play, structured_output=False)
server.add_tool(completion)


@server.resource("note://{name}")
def note(name: str) -> str:
    return f"a note on {name}"


@server.prompt()
def greet(name: str) -> str:
    return f"Say hello to {name}."


server.run("stdio")
