"""Requests from an MCP server to its client: elicitation and sampling.

A request belongs to a running call. It becomes a callgate call itself, so the policy and the
approvers decide about it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Literal, Protocol

import msgspec

from callgate.core.calls import CallerKind, ToolCall, ToolResult
from callgate.core.content import Message, TextBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import DENIALS, ToolErrorClass, ToolExecutionError, ToolValidationError
from callgate.core.models import Model, ModelError, Prompt, Reply
from callgate.core.schemas import ForeignSchema
from callgate.core.tasks import start_task
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.dispatch.environments import CallContext
from callgate.dispatch.foreign_code import watched
from callgate.dispatch.tools.registry import Registry


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """An elicitation: a form to fill in, or a URL to visit."""

    message: str
    schema: dict[str, Any] = {}
    url: str | None = None


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """`accept` with the content of the form, `decline` if a person refused, else `cancel`."""

    action: str
    content: dict[str, Any] | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    text: str


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt for callgate's model."""

    turns: tuple[Turn, ...]
    system: str = ""
    max_tokens: int


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    model: str
    stop: str = "endTurn"


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """A log message of a server."""

    level: str
    """A log level of MCP."""
    logger: str | None = None
    text: str


Changed = Literal["resources", "prompts"]
"""A list of a server that has changed."""


class ServerRequestRefused(Exception):
    """The request is refused. The text is for the server."""


class Asks(Protocol):
    """Answers a server's requests. `DispatchedAsks` implements it with the dispatcher."""

    async def fill(self, server: str, form: Form, calling: Calling) -> Filled: ...

    async def sample(self, server: str, sample: Sample, calling: Calling) -> Sampled:
        """Raises `ServerRequestRefused`."""
        ...

    def logged(self, line: Logged, calling: Calling) -> None:
        """Receive a log message about a running call."""
        ...

    def changed(self, kind: Changed) -> None: ...


class Calling(msgspec.Struct, frozen=True, eq=False):
    """One call in flight."""

    context: ToolContext
    variables: contextvars.Context
    """The context in which requests for this call run."""


current: contextvars.ContextVar[Calling | None] = contextvars.ContextVar("calling", default=None)


TAG = "callgate:mcp"
FORM, SAMPLE = "mcp_form", "mcp_sample"
_TEXT = {"type": "string"}

_FORM = ToolDefinition(
    name=FORM,
    description="Ask a person for the input that an MCP server needs for a running call.",
    input_schema={
        "type": "object",
        "properties": {
            "server": _TEXT,
            "message": _TEXT,
            "url": _TEXT,
            "content": {"type": "object", "additionalProperties": True},
            "form": {"type": "object", "additionalProperties": True},
        },
        "required": ["server", "message"],
    },
    side_effects=SideEffects.READ,
    path_params=(),
    required_tags=frozenset({TAG}),
    source="builtin",
    always_ask=True,
)
_SAMPLE = ToolDefinition(
    name=SAMPLE,
    description="Send the prompt of an MCP server to the model during a running call.",
    input_schema={
        "type": "object",
        "properties": {
            "server": _TEXT,
            "system": _TEXT,
            "messages": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"role": {"enum": ["user", "assistant"]}, "text": _TEXT},
                    "required": ["role", "text"],
                },
            },
            "max_tokens": {"type": "integer"},
        },
        "required": ["server", "messages", "max_tokens"],
    },
    side_effects=SideEffects.READ,
    path_params=(),
    required_tags=frozenset({TAG}),
    source="builtin",
    always_ask=True,
)

OpenModel = Callable[[], Model]
"""Opens the default model of the settings, and may run a command for its key.

Raises `ModelError`.
"""


class FillForm:
    definition = _FORM

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        content, form = input.get("content", {}), input.get("form", {})
        try:
            schema = ForeignSchema(form, plain=True)
            fits = schema.is_valid(content)
        except ValueError:
            raise ToolExecutionError("The form cannot be read.", reason="mcp_form") from None
        if not fits:
            problems = [
                f"{'.'.join(map(str, each.instance_path)) or 'the form'}: {each.message}"
                for each in schema.iter_errors(content)
            ]
            message = f"The form is incomplete or invalid: {'; '.join(problems[:10])}"
            raise ToolValidationError(message, validation_errors=problems)
        return ToolOutput(content=[TextBlock("accepted")], value=content)

    async def cancel(self) -> bool:
        return False


class AskModel:
    definition = _SAMPLE

    def __init__(self, open_model: OpenModel) -> None:
        self._open_model = open_model

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        try:
            model = await asyncio.to_thread(self._open_model)
        except ModelError as error:
            raise ToolExecutionError(error.message, reason="model") from None
        try:
            reply = await _reply(model, input)
        except ModelError as error:
            raise ToolExecutionError(error.message, reason="model") from None
        finally:
            await model.close()
        text = "\n".join(
            block.text for block in reply.message.content if isinstance(block, TextBlock)
        )
        stop = "maxTokens" if reply.stop == "max_tokens" else "endTurn"
        value = {"text": text, "model": reply.model or model.name, "stop": stop}
        return ToolOutput(content=[TextBlock(text)], value=value)

    async def cancel(self) -> bool:
        return False


async def _reply(model: Model, input: Mapping[str, Any]) -> Reply:
    prompt = Prompt(
        messages=[Message.text(each["role"], each["text"]) for each in input["messages"]],
        system=input.get("system", ""),
        max_tokens=input["max_tokens"],
    )
    async with aclosing(model.stream(prompt)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Reply):
                return piece
    raise ToolExecutionError("The model did not answer.", reason="model")


class DispatchedAsks:
    """Implements `Asks` with calls of the tools `mcp_form` and `mcp_sample`."""

    def __init__(
        self,
        call: Callable[[ToolCall], Coroutine[Any, Any, ToolResult]],
        registry: Registry,
        open_model: OpenModel,
    ) -> None:
        self._call = call
        if registry.find(FORM) is None:  # several instances may share a registry
            registry.register(FillForm)
            registry.register(lambda: AskModel(open_model))

    async def fill(self, server: str, form: Form, calling: Calling) -> Filled:
        arguments: dict[str, Any] = {"server": server, "message": form.message}
        if form.url is not None:
            arguments["url"] = form.url
        else:
            arguments |= {"content": _prepared(form.schema), "form": form.schema}
        result = await self._ask(FORM, arguments, calling)
        if result.ok:
            return Filled(action="accept", content=None if form.url else result.value)
        denied = result.error is not None and result.error.error_class in DENIALS
        timed_out = ToolErrorClass.CONFIRMATION_TIMEOUT
        if denied and result.error is not None and result.error.error_class is not timed_out:
            return Filled(action="decline")
        return Filled(action="cancel")

    async def sample(self, server: str, sample: Sample, calling: Calling) -> Sampled:
        arguments = {
            "server": server,
            "system": sample.system,
            "messages": [{"role": each.role, "text": each.text} for each in sample.turns],
            "max_tokens": sample.max_tokens,
        }
        result = await self._ask(SAMPLE, arguments, calling)
        if not result.ok:
            raise ServerRequestRefused("the user did not allow it, or the model did not answer")
        return msgspec.convert(result.value, Sampled)

    def logged(self, line: Logged, calling: Calling) -> None:
        """Drop the message: the server's stderr is logged instead."""

    def changed(self, kind: Changed) -> None:
        """Do nothing: the lists are requested again for each use."""

    async def _ask(self, tool: str, arguments: dict[str, Any], calling: Calling) -> ToolResult:
        """Run a call in the context of the call that it belongs to, independent of this task."""
        context = calling.context
        if not isinstance(context, CallContext):
            raise ServerRequestRefused("no approver is available")
        parent = context.call
        session = msgspec.structs.replace(parent.session, tags=parent.session.tags | {TAG})
        call = ToolCall(
            tool=tool,
            arguments=arguments,
            session=session,
            caller=CallerKind.MCP,
            turn_id=parent.turn_id,
        )

        async def ask() -> ToolResult:
            watched.set(["", session.id])  # the call that waits for this has a slot already
            return await self._call(call)

        variables = calling.variables.copy()
        return await start_task(ask(), context=variables)


def _prepared(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the initial content of a form, which the person sees and may change.

    It contains the form's defaults, and true for each boolean without a default.
    """
    named = schema.get("properties")
    content: dict[str, Any] = {}
    for name, field in named.items() if isinstance(named, dict) else ():
        if isinstance(field, dict) and "default" in field:
            content[name] = field["default"]
        elif isinstance(field, dict) and field.get("type") == "boolean":
            content[name] = True
    return content
