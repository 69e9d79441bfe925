"""What the conformance suite expects of a server: its tools, resources and prompts.

They are registered in a runtime and called through the dispatcher like any others. What they
ask of the client they ask by `PendingRequest.ask`, and do not know which generation it speaks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mcp_types as types

from callgate.core.content import ContentBlock, ImageBlock, ImageSource, TextBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolExecutionError
from callgate.core.tools import ToolContext, ToolDefinition, ToolFactory, ToolOutput
from callgate.features.mcp.server import tasks
from callgate.features.mcp.server.pending_requests import LACKS, PendingRequest
from callgate.features.mcp.server.resources import Contents, Here, Typed
from callgate.features.mcp.server.server import McpServer
from callgate.protocol.provider_shapes import MCP_CONTENT

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
_STEP_S = 0.02

Work = Callable[["Suite", dict[str, Any], ToolContext], Awaitable[ToolOutput | str]]


class Fixed(NamedTuple):
    name: str
    said: str
    work: Work
    schema: dict[str, Any]
    tags: frozenset[str] = frozenset()


class Suite:
    """The fixtures of one server."""

    def __init__(self) -> None:
        self.server: McpServer | None = None
        self.tools: list[ToolFactory] = [self._tool(Fixed(*each)) for each in (*_TOOLS, *_LONG)]

    def client(self, context: ToolContext) -> PendingRequest[Any]:
        assert self.server is not None
        pending = self.server.exchange_of(context.tool_use_id)
        assert pending is not None
        return pending

    def _tool(self, fixed: Fixed) -> ToolFactory:
        suite, work = self, fixed.work
        described = ToolDefinition(
            name=fixed.name,
            description=fixed.said,
            input_schema=fixed.schema,
            tags=fixed.tags,
            side_effects=SideEffects.NONE,
            requires_workspace=False,
            source="mcp",
        )

        class Fixture:
            definition = described

            async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
                given = await work(suite, input, context)
                return given if isinstance(given, ToolOutput) else _text(given)

            async def cancel(self) -> bool:
                return False

        return Fixture


def _text(text: str) -> ToolOutput:
    return ToolOutput(content=[TextBlock(text)])


def _raw(*content: types.ContentBlock) -> ToolOutput:
    """Content that only MCP can say."""
    raw = [each.model_dump(by_alias=True, mode="json", exclude_none=True) for each in content]
    shown: list[ContentBlock] = [TextBlock(f"{len(raw)} blocks")]
    return ToolOutput(content=shown, metadata={MCP_CONTENT: raw})


# What a tool may give.


async def _simple_text(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    return "This is a simple text response for testing."


async def _image(suite: Suite, input: dict[str, Any], context: ToolContext) -> ToolOutput:
    image = ImageBlock(source=ImageSource(data=PNG), media_type="image/png")
    return ToolOutput(content=[image])


async def _audio(suite: Suite, input: dict[str, Any], context: ToolContext) -> ToolOutput:
    return _raw(types.AudioContent(type="audio", data=WAV, mime_type="audio/wav"))


def _embedded(uri: str, media_type: str, text: str) -> types.EmbeddedResource:
    inner = types.TextResourceContents(uri=uri, mime_type=media_type, text=text)
    return types.EmbeddedResource(type="resource", resource=inner)


async def _resource(suite: Suite, input: dict[str, Any], context: ToolContext) -> ToolOutput:
    said = "This is an embedded resource content."
    return _raw(_embedded("test://embedded-resource", "text/plain", said))


async def _mixed(suite: Suite, input: dict[str, Any], context: ToolContext) -> ToolOutput:
    return _raw(
        types.TextContent(type="text", text="Multiple content types test:"),
        types.ImageContent(type="image", data=PNG, mime_type="image/png"),
        _embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    )


async def _fail(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    raise ToolExecutionError("This tool intentionally returns an error for testing")


# What happens meanwhile.


async def _log(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        context.logger.info(said)
        await asyncio.sleep(_STEP_S)
    return "logged"


async def _progress(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    for percent in (0, 50, 100):
        context.progress(f"Completed step {percent} of 100", percent / 100)
        await asyncio.sleep(_STEP_S)
    return "done"


async def _reconnect(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    return "Reconnection test completed"


async def _change_tools(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    assert suite.server is not None
    suite.server.changes.tools()
    return "the tools have changed"


async def _change_prompts(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    assert suite.server is not None
    suite.server.changes.prompts()
    return "the prompts have changed"


# What a tool may ask the client.


def _form(message: str, schema: dict[str, Any]) -> types.ElicitRequest:
    params = types.ElicitRequestFormParams(message=message, requested_schema=schema)
    return types.ElicitRequest(params=params)


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _prompt(text: str, tokens: int = 100) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    params = types.CreateMessageRequestParams(messages=[message], max_tokens=tokens)
    return types.CreateMessageRequest(params=params)


_NAME = _object(name={"type": "string"})


async def _fill_in(suite: Suite, context: ToolContext, form: types.ElicitRequest) -> str:
    said = (await suite.client(context).ask({"form": form}))["form"]
    assert isinstance(said, types.ElicitResult)
    return f"action={said.action}, content={json.dumps(said.content or {})}"


async def _sample(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    said = (await suite.client(context).ask({"prompt": _prompt(input["prompt"])}))["prompt"]
    assert isinstance(said, types.CreateMessageResult)
    assert isinstance(said.content, types.TextContent)
    return f"LLM response: {said.content.text}"


async def _elicit(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    form = _form(input["message"], _object(response={"type": "string", "description": "Yours"}))
    return "User response: " + await _fill_in(suite, context, form)


async def _defaults(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    schema = _object(
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        verified={"type": "boolean", "default": True},
    )
    del schema["required"]
    return "Elicitation result: " + await _fill_in(suite, context, _form("Who are you?", schema))


def _titled(**options: str) -> list[dict[str, str]]:
    return [{"const": word, "title": title} for word, title in options.items()]


async def _enums(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    levels = _titled(low="Low Priority", medium="Medium Priority", high="High Priority")
    kinds = _titled(feature="New Feature", bug="Bug Fix", docs="Documentation")
    rights = {"type": "string", "enum": ["read", "write", "execute"]}
    schema = _object(
        untitledSingle={"type": "string", "enum": ["active", "inactive", "pending"]},
        titledSingle={"type": "string", "oneOf": levels},
        untitledMulti={"type": "array", "items": rights},
        titledMulti={"type": "array", "items": {"anyOf": kinds}},
        legacyEnum={
            "type": "string",
            "enum": ["small", "medium", "large"],
            "enumNames": ["Small Size", "Medium Size", "Large Size"],
        },
    )
    del schema["required"]
    return "Elicitation completed: " + await _fill_in(suite, context, _form("Choose.", schema))


async def _need_sampling(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    await suite.client(context).ask({"prompt": _prompt("Say hello")})
    return "the client can sample"


async def _ask_name(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    said = await suite.client(context).ask({"user_name": _form("What is your name?", _NAME)})
    return f"Hello, {_content(said['user_name'])['name']}!"


async def _ask_capital(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    asked = {"capital_question": _prompt("What is the capital of France?")}
    said = (await suite.client(context).ask(asked))["capital_question"]
    assert isinstance(said, types.CreateMessageResult)
    return f"Model said: {said.content}"


async def _ask_roots(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    said = await suite.client(context).ask({"client_roots": types.ListRootsRequest()})
    roots = said["client_roots"]
    assert isinstance(roots, types.ListRootsResult)
    return f"Client exposed {len(roots.roots)} root(s)."


async def _ask_confirm(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    form = _form("Please confirm", _object(ok={"type": "boolean"}))
    await suite.client(context).ask({"confirm": form})
    return "state-ok: confirmation received"


async def _ask_all(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    await suite.client(context).ask(
        {
            "user_name": _form("What is your name?", _NAME),
            "greeting": _prompt("Generate a greeting", 50),
            "client_roots": types.ListRootsRequest(),
        }
    )
    return "All inputs received."


async def _ask_twice(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    client = suite.client(context)
    first = await client.ask({"step1": _form("Step 1: What is your name?", _NAME)})
    color = _object(color={"type": "string"})
    second = await client.ask({"step2": _form("Step 2: What is your favorite color?", color)})
    return f"{_content(first['step1'])['name']} likes {_content(second['step2'])['color']}."


async def _ask_what_it_can(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    client = suite.client(context)
    wanted: dict[str, types.InputRequest] = {
        "sample": _prompt("Say hello", 50),
        "ask": _form("What is your name?", _NAME),
    }
    await client.ask({name: each for name, each in wanted.items() if client.can(type(each))})
    return "answered"


def _content(said: object) -> Mapping[str, Any]:
    return (said.content or {}) if isinstance(said, types.ElicitResult) else {}


_SCHEMA_2020: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
_REGION = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
}

_TOOLS: tuple[tuple[str, str, Work, dict[str, Any]], ...] = (
    ("test_simple_text", "Gives text.", _simple_text, NOTHING),
    ("test_image_content", "Gives an image.", _image, NOTHING),
    ("test_audio_content", "Gives audio.", _audio, NOTHING),
    ("test_embedded_resource", "Gives a resource.", _resource, NOTHING),
    ("test_multiple_content_types", "Gives several kinds.", _mixed, NOTHING),
    ("test_error_handling", "Fails.", _fail, NOTHING),
    ("test_tool_with_logging", "Writes to its log.", _log, NOTHING),
    ("test_logging_tool", "Writes to its log.", _log, NOTHING),
    ("test_tool_with_progress", "Says how far it is.", _progress, NOTHING),
    ("test_reconnection", "Ends at once.", _reconnect, NOTHING),
    ("test_trigger_tool_change", "Says that the tools changed.", _change_tools, NOTHING),
    ("test_trigger_prompt_change", "Says that the prompts changed.", _change_prompts, NOTHING),
    ("test_sampling", "Asks the client's model.", _sample, _object(prompt={"type": "string"})),
    ("test_elicitation", "Asks the user.", _elicit, _object(message={"type": "string"})),
    ("test_elicitation_sep1034_defaults", "A form with defaults.", _defaults, NOTHING),
    ("test_elicitation_sep1330_enums", "A form with choices.", _enums, NOTHING),
    ("test_streaming_elicitation", "Asks the user.", _ask_name, NOTHING),
    ("test_missing_capability", "Needs a client that samples.", _need_sampling, NOTHING),
    ("test_input_required_result_elicitation", "Asks for a name.", _ask_name, NOTHING),
    ("test_input_required_result_sampling", "Asks a model.", _ask_capital, NOTHING),
    ("test_input_required_result_list_roots", "Asks for roots.", _ask_roots, NOTHING),
    ("test_input_required_result_request_state", "Asks for a yes.", _ask_confirm, NOTHING),
    ("test_input_required_result_multiple_inputs", "Asks three things.", _ask_all, NOTHING),
    ("test_input_required_result_multi_round", "Asks twice.", _ask_twice, NOTHING),
    ("test_input_required_result_tampered_state", "Asks for a yes.", _ask_confirm, NOTHING),
    ("test_input_required_result_capabilities", "Asks what it can.", _ask_what_it_can, NOTHING),
    ("test_x_mcp_header", "Has a header.", _simple_text, _REGION),
    ("json_schema_2020_12_tool", "Has a rich schema.", _simple_text, _SCHEMA_2020),
)


# Calls that become tasks.


async def _greet(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    return f"Hello, {input.get('name', 'you')}!"


async def _slow(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    await asyncio.sleep(float(input.get("seconds", 0)))
    return "computed"


async def _break_down(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    raise ToolExecutionError("The client lacks something.", reason=LACKS)


async def _confirm(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    form = _form("Really?", _object(confirm={"type": "boolean"}))
    del form.params.requested_schema["required"]  # type: ignore[union-attr]
    await suite.client(context).ask({"confirm": form})
    return "deleted"


async def _two_forms(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    schema = {"type": "object", "properties": {"value": {"type": "string"}}}
    forms = {name: _form(f"The {name}?", schema) for name in ("first", "second")}
    await suite.client(context).ask(forms)
    return "both"


async def _then_long(suite: Suite, input: dict[str, Any], context: ToolContext) -> str:
    said = await _ask_name(suite, input, context)
    await asyncio.sleep(tasks.PATIENCE_S + 0.5)
    return said


_ANYTHING = {"type": "object", "additionalProperties": True}
_AS_TASK = frozenset({tasks.TASK})
_LONG: tuple[tuple[Any, ...], ...] = (
    ("greet", "Says hello.", _greet, _ANYTHING),
    ("slow_compute", "Takes its time.", _slow, _ANYTHING, _AS_TASK),
    ("failing_job", "Fails.", _fail, _ANYTHING, _AS_TASK | {tasks.REQUIRED}),
    ("protocol_error_job", "Fails otherwise.", _break_down, _ANYTHING, _AS_TASK),
    ("confirm_delete", "Asks.", _confirm, _ANYTHING, _AS_TASK),
    ("multi_input", "Asks twice at once.", _two_forms, _ANYTHING, _AS_TASK),
    ("test_tool_with_task", "Asks, then takes its time.", _then_long, _ANYTHING),
)


class SuiteResources:
    async def listed(self, here: Here) -> Sequence[types.Resource]:
        return [
            types.Resource(uri="test://static-text", name="text", mime_type="text/plain"),
            types.Resource(uri="test://static-binary", name="binary", mime_type="image/png"),
            types.Resource(uri="test://watched-resource", name="watched", mime_type="text/plain"),
        ]

    async def templates(self, here: Here) -> Sequence[types.ResourceTemplate]:
        return [
            types.ResourceTemplate(
                name="template",
                uri_template="test://template/{id}/data",
                mime_type="application/json",
            )
        ]

    async def read(self, uri: str, here: Here) -> Sequence[Contents] | None:
        texts = {
            "test://static-text": "This is the content of the static text resource.",
            "test://watched-resource": "Watched resource content",
        }
        if uri == "test://static-binary":
            return [types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)]
        if uri.startswith("test://template/") and uri.endswith("/data"):
            id = uri.split("/")[3]
            said = {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}
            text, media_type = json.dumps(said), "application/json"
        elif uri in texts:
            text, media_type = texts[uri], "text/plain"
        else:
            return None
        return [types.TextResourceContents(uri=uri, mime_type=media_type, text=text)]

    async def complete(self, template: str, typed: Typed, here: Here) -> Sequence[str]:
        return []


class SuitePrompts:
    async def listed(self, here: Here) -> Sequence[types.Prompt]:
        return [
            types.Prompt(
                name=name,
                description="A prompt of the suite.",
                arguments=[types.PromptArgument(name=each, required=True) for each in arguments],
            )
            for name, arguments in _PROMPTS.items()
        ]

    async def get(self, name: str, arguments: Mapping[str, str], here: Here) -> types.GetPromptResult | None:
        said: list[types.ContentBlock]
        match name:
            case "test_simple_prompt":
                said = [_said("This is a simple prompt for testing.")]
            case "test_prompt_with_arguments":
                one, two = arguments["arg1"], arguments["arg2"]
                said = [_said(f"Prompt with arguments: arg1='{one}', arg2='{two}'")]
            case "test_prompt_with_embedded_resource":
                text = "Embedded resource content for testing."
                uri = arguments["resourceUri"]
                said = [_embedded(uri, "text/plain", text), _said("Please process it.")]
            case "test_prompt_with_image":
                image = types.ImageContent(type="image", data=PNG, mime_type="image/png")
                said = [image, _said("Please analyze the image above.")]
            case "test_input_required_result_prompt":
                assert here.client is not None
                form = _form("What context?", _object(context={"type": "string"}))
                answer = await here.client.ask({"user_context": form})
                said = [_said(f"Use the following context: {_content(answer['user_context'])}")]
            case _:
                return None
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=each) for each in said])

    async def complete(self, prompt: str, typed: Typed, here: Here) -> Sequence[str]:
        return []


_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}


def _said(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)
